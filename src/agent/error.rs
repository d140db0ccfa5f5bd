//! Why the agent did not do something, and what mends it.

use crate::registry::Entry;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The API server refused or failed.
    #[error("cannot {verb} {resource} {name}: {source}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// On which resource.
        resource: &'static str,
        /// Of which name.
        name: String,
        /// Why not.
        source: Box<kube::Error>,
    },
    /// A Secret stands where the agent would write, and it is somebody else's.
    #[error(
        "Secret {name} was not made by trustspan: it is not overwritten. Delete it, or allow it with the annotation \
         trustspan.dev/adopt: \"true\""
    )]
    Foreign {
        /// Its name.
        name: String,
    },
    /// The managed Secret got another name under its users.
    #[error(
        "Secret {former} is in use: who names it would not follow to Secret {managed}, and its pair is not to be had for that. \
         Nothing is done until spec.secretName is {former} again"
    )]
    Renamed {
        /// The name under which it stands.
        former: String,
        /// The name that the spec has now.
        managed: String,
    },
    /// An object cannot be sent.
    #[error("cannot encode an object: {0}")]
    Encode(serde_json::Error),
    /// The API server does not answer.
    #[error("the API server does not answer")]
    NoAnswer,
    /// Another process leads by now.
    #[error("leadership lost")]
    NotLeading,
}

impl AgentError {
    pub(super) fn api(verb: &'static str, resource: &'static str, name: &str, source: kube::Error) -> Self {
        Self::Api { verb, resource, name: name.to_owned(), source: Box::new(source) }
    }

    pub(super) fn is(&self, code: u16) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == code))
    }

    /// What happened, and what mends it.
    pub(super) fn advice(&self, entry: &Entry) -> String {
        let Entry { namespace, name, .. } = entry;
        let mend = || {
            format!("kubectl get gatewaysecret -n {namespace} {name} -o yaml | trustspan rbac - | kubectl apply -f -")
        };
        if self.is(403) { format!("{self}. An administrator grants it: {}", mend()) } else { self.to_string() }
    }

    /// A word for a condition.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Foreign { .. } => "ForeignSecret",
            Self::Renamed { .. } => "ManagedRenamed",
            error if error.is(403) => "Forbidden",
            _ => "Failed",
        }
    }
}
