//! Simulates the next rotation with a temporary CA. Its private keys are dropped as soon as its three certificates are
//! signed.

use std::sync::OnceLock;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::cluster_state::ClusterState;
use crate::api::{GatewaySecretStatus, Phase};
use crate::registry::Entry;
use crate::rotation::planner::Plan;
use crate::rotation::{self, TrialCa};
use crate::trust::Certificate;

/// Adds condition `RotationReady` to a status in phase Steady.
pub(super) fn report(
    entry: &Entry,
    state: &ClusterState,
    plan: &Plan,
    status: &mut GatewaySecretStatus,
    now: Timestamp,
) {
    let is_steady = status.phase == Some(Phase::Steady);
    let simulate = |trial| rotation::forecast(&state.snapshot(entry), &plan.journal, trial, now);
    let forecast = trial_ca().filter(|_| is_steady).map(simulate);
    rotation::report_readiness(entry, forecast.as_ref(), status, now);
}

/// The CA with which the next rotation is simulated, generated once per process; `None` if no key can be generated.
fn trial_ca() -> Option<&'static TrialCa> {
    static TRIAL: OnceLock<Option<TrialCa>> = OnceLock::new();
    TRIAL.get_or_init(|| sign().inspect_err(|error| tracing::warn!("cannot simulate rotations: {error}")).ok()).as_ref()
}

fn sign() -> Result<TrialCa, rcgen::Error> {
    let mut params = named("trustspan simulated CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let leaf = |usage| {
        let mut params = named("trustspan simulation");
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        Ok(parsed(params.signed_by(&KeyPair::generate()?, &ca)?.der()))
    };
    Ok(TrialCa {
        ca: parsed(ca.der())?,
        serving: leaf(ExtendedKeyUsagePurpose::ServerAuth)??,
        client: leaf(ExtendedKeyUsagePurpose::ClientAuth)??,
    })
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn parsed(der: &[u8]) -> Result<Certificate, rcgen::Error> {
    Certificate::parse(der).map_err(|_| rcgen::Error::CouldNotParseCertificate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ca_verifies_both_certificates() {
        let TrialCa { ca, serving, client } = sign().expect("a CA");
        let now = jiff::Timestamp::now();
        let trust = std::slice::from_ref(&ca);
        assert!(crate::connectivity::verifies(trust, &[serving], now));
        assert!(crate::connectivity::admits(trust, &[client], now));
    }
}
