//! Flags of the rotation controller, for `trustspan agent` and for `trustspan serve --with-agent`.

use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use crate::agent::Settings;
use crate::agent::lease::{self, LeaderElection};

/// How the rotation controller runs.
#[derive(Debug, clap::Args)]
pub(super) struct ControllerArgs {
    /// Namespace of the leader-election Lease.
    #[arg(long, value_name = "NAMESPACE", default_value = "trustspan-system")]
    lease_namespace: String,

    /// Name of the leader-election Lease.
    #[arg(long, value_name = "NAME", default_value = "trustspan-agent")]
    lease_name: String,

    /// How long other candidates wait for a renewal before they acquire the Lease, in whole seconds.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration)]
    lease_duration: Duration,

    /// Identity of this process in the Lease. Default: the pod's name and a random suffix.
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,

    /// Full resync interval: everything is read again this often, in case a watch lost an event.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    poll: Duration,

    /// Reconcile only the GatewaySecrets and TrustConsumers in this namespace; can be given more than once. Default: all namespaces.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,

    /// Treat every GatewaySecret as mode Copy (true) or mode Bundle (false). Default: its own spec.mode.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    legacy_copy: Option<bool>,

    /// File with CAs: only these, and CAs that they signed, are written to trust bundle targets in other namespaces and to ClusterTrustBundles.
    /// It may change while the agent runs. Default: every CA of the source Secret.
    #[arg(long, value_name = "FILE")]
    signers: Option<PathBuf>,

    /// Restart at most this many workloads of TrustConsumers at the same time, over all namespaces.
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    max_concurrent_restarts: u16,
}

impl ControllerArgs {
    /// The leader election's configuration.
    pub(super) fn election(&self) -> LeaderElection {
        LeaderElection {
            namespace: self.lease_namespace.clone(),
            name: self.lease_name.clone(),
            identity: self.identity.clone().unwrap_or_else(lease::identity),
            lease_duration: self.lease_duration.max(Duration::from_secs(1)),
        }
    }

    /// The controller's settings.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            namespaces: self.namespace.clone(),
            poll: self.poll.max(Duration::from_millis(100)),
            legacy_copy: self.legacy_copy,
            signers: self.signers.clone(),
            max_concurrent_restarts: self.max_concurrent_restarts.into(),
            ..Settings::default()
        }
    }
}

/// Parses a duration of the command line.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: SignedDuration = text.parse().map_err(|_| "expected a duration such as 5s or 1m30s".to_owned())?;
    parsed.try_into().map_err(|_| "expected a duration of zero or more".to_owned())
}
