//! The checks of BoringSSL on a complete path.

use std::iter::zip;
use std::ptr;

use jiff::Timestamp;

use super::budget::Budget;
use super::parsed_cert::{DIGITAL_SIGNATURE, ParsedCert};
use super::path::{Path, issued};
use super::signature::{self, Key};
use super::{HostNames, Presented, Purpose, Refused, Store, constraints, crl};
use crate::trust::signature_verdict::SignatureFault;

/// Why a path is refused, and where.
#[derive(Debug)]
pub(super) struct Failure {
    /// The index of the certificate of the path that is the reason; 0 is the leaf.
    pub(super) at: usize,
    pub(super) refused: Refused,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        failure.refused
    }
}

/// Checks a path in BoringSSL's order. The part that it shares with an `accepted` one is not verified again.
///
/// # Errors
/// The first reason that refuses it. For an exhausted budget the index has no meaning.
pub(super) fn path(
    store: &Store<'_>,
    path: &Path<'_>,
    accepted: &[&ParsedCert<'_>],
    purpose: Purpose<'_>,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Failure> {
    if purpose == Purpose::Client {
        trust_settings(path)?;
    }
    extensions(path, purpose)?;
    if store.checks_crls {
        let mut check = |at| crl::check(store, &path.links, at, now, budget).map_err(|refused| Failure { at, refused });
        (0..path.links.len()).try_for_each(&mut check)?;
    }
    let common = zip(&path.links, accepted).take_while(|(link, accepted)| ptr::eq(**link, **accepted)).count();
    signatures_and_dates(&path.links, common.saturating_sub(1), now, budget)?;
    name_constraints(path, budget)?;
    if purpose != Purpose::Client {
        modern(path)?;
    }
    let below = || path.links[..path.links.len() - 1].iter().enumerate();
    if let Some((at, parsed)) = below().find(|(_, parsed)| parsed.has_malformed_policies) {
        return Err(Failure { at, refused: Refused::InvalidExtension { subject: parsed.certificate.subject.clone() } });
    }
    match below().find(|(_, parsed)| parsed.has_policy_constraints) {
        Some((at, parsed)) => {
            Err(Failure { at, refused: Refused::Policy { subject: parsed.certificate.subject.clone() } })
        }
        None => Ok(()),
    }
}

/// `check_trust`: only for certificates of the bundle. The lowest one with a setting decides.
fn trust_settings(path: &Path<'_>) -> Result<(), Failure> {
    let mut anchors = path.links.iter().enumerate().skip(path.untrusted);
    match anchors.find(|(_, parsed)| parsed.certificate.trusts_clients.is_some()) {
        Some((at, parsed)) if parsed.certificate.trusts_clients == Some(false) => {
            Err(Failure { at, refused: Refused::Rejected { subject: parsed.certificate.subject.clone() } })
        }
        _ => Ok(()),
    }
}

/// Refuses SHA-1 signatures, which Envoy accepts and other clients (Go, rustls, browsers) do not.
fn modern(path: &Path<'_>) -> Result<(), Failure> {
    let mut signed = path.links[..path.links.len() - 1].iter().enumerate();
    match signed.find(|(_, parsed)| signature::broken_hash(parsed.certificate).is_some()) {
        Some((at, parsed)) => {
            Err(Failure { at, refused: Refused::SignatureAlgorithm { subject: parsed.certificate.subject.clone() } })
        }
        None => Ok(()),
    }
}

/// Requirements of TLS on a leaf, and its names.
pub(super) fn leaf(presented: &Presented<'_>, purpose: Purpose<'_>) -> Result<(), Refused> {
    let Some(parsed) = presented.leaf() else { return Ok(()) };
    let leaf = parsed.certificate;
    let subject = || parsed.certificate.subject.clone();
    // Envoy does not serve with RSA keys under 2048 bits, but accepts 1024 bits from a client (measured).
    let rsa = if purpose == Purpose::Client { 1024 } else { 2048 };
    let takes = |key| match key {
        Key::Rsa { bits } => bits >= rsa,
        key => matches!(key, Key::P256 | Key::P384),
    };
    if !takes(signature::key(&leaf.public_key).0) || !presented.has_readable_key() {
        return Err(Refused::LeafKey { subject: subject() });
    }
    if !parsed.may(DIGITAL_SIGNATURE) {
        return Err(Refused::LeafKeyUsage { subject: subject(), is_ca: parsed.is_ca() });
    }
    let Purpose::Server { hosts: wanted @ [_, ..] } = purpose else { return Ok(()) };
    let names = presented.names.get_or_init(|| HostNames::of(leaf));
    match wanted.iter().find(|host| !names.cover(host)) {
        Some(host) => Err(Refused::Host { subject: subject(), host: host.clone() }),
        None => Ok(()),
    }
}

/// `check_chain_extensions`: only for certificates that are not from the bundle.
fn extensions(path: &Path<'_>, purpose: Purpose<'_>) -> Result<(), Failure> {
    let mut length = 0;
    for (at, parsed) in path.links[..path.untrusted].iter().enumerate() {
        let subject = || parsed.certificate.subject.clone();
        let failure = |refused| Failure { at, refused };
        if parsed.has_unknown_critical {
            return Err(failure(Refused::UnknownCriticalExtension { subject: subject() }));
        }
        if at > 0 && !parsed.is_ca() {
            return Err(failure(Refused::NotACa { subject: subject() }));
        }
        let (allowed, expected) = match (purpose, parsed.extended_usage) {
            (_, None) => (true, ""),
            (Purpose::Client, Some(usage)) => (usage.client, "clientAuth"),
            (Purpose::Server { .. }, Some(usage)) => (usage.server, "serverAuth"),
        };
        if !allowed {
            return Err(failure(Refused::Purpose { subject: subject(), expected }));
        }
        if at > 1 && parsed.path_length.is_some_and(|most| length > most.saturating_add(1)) {
            return Err(failure(Refused::PathLength { subject: subject() }));
        }
        if at == 0 || !parsed.is_self_issued() {
            length += 1;
        }
    }
    Ok(())
}

/// `internal_verify`, from the top down, to the certificate at the index `from`. The issuer is the reason for a signature that it does not verify.
fn signatures_and_dates(
    links: &[&ParsedCert<'_>],
    from: usize,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Failure> {
    for (at, parsed) in links.iter().enumerate().skip(from).rev() {
        if let Some(issuer) = links.get(at + 1) {
            signed(parsed, issuer, budget).map_err(|refused| Failure { at: at + 1, refused })?;
        }
        let (certificate, subject) = (parsed.certificate, || parsed.certificate.subject.clone());
        if certificate.is_not_yet_valid(now) {
            let refused = Refused::NotYetValid { subject: subject(), at: certificate.not_before };
            return Err(Failure { at, refused });
        }
        if certificate.is_expired(now) {
            return Err(Failure { at, refused: Refused::Expired { subject: subject(), at: certificate.not_after } });
        }
    }
    Ok(())
}

fn signed(parsed: &ParsedCert<'_>, issuer: &ParsedCert<'_>, budget: &mut Budget) -> Result<(), Refused> {
    let subject = || parsed.certificate.subject.clone();
    match budget.link(parsed, issuer)? {
        Ok(()) => Ok(()),
        Err(SignatureFault::Unsupported) => Err(Refused::SignatureAlgorithm { subject: subject() }),
        Err(SignatureFault::Wrong) => {
            debug_assert!(issued(issuer, parsed) || parsed.is_self_signed(), "a path is built by names");
            Err(Refused::Signature { subject: subject(), issuer: issuer.certificate.subject.clone() })
        }
    }
}

/// `check_name_constraints`: those of an anchor apply, too; self-issued intermediates are exempt. The reason is the certificate with the
/// constraints.
fn name_constraints(path: &Path<'_>, budget: &mut Budget) -> Result<(), Failure> {
    if path.links.iter().all(|parsed| parsed.constraints.is_none()) {
        return Ok(());
    }
    for (at, parsed) in path.links.iter().enumerate().rev() {
        if at > 0 && parsed.is_self_issued() {
            continue;
        }
        for (above_at, above) in path.links.iter().enumerate().skip(at + 1).rev() {
            let Some(constraints) = &above.constraints else { continue };
            let names = || (parsed.certificate.subject.clone(), above.certificate.subject.clone());
            constraints::check(parsed, constraints, &mut budget.names).map_err(|fault| {
                let refused = match (fault, names()) {
                    (constraints::ConstraintFault::Violation, (subject, issuer)) => {
                        Refused::NameConstraints { subject, issuer }
                    }
                    (constraints::ConstraintFault::Unsupported, (subject, issuer)) => {
                        Refused::UnsupportedConstraint { subject, issuer }
                    }
                    (constraints::ConstraintFault::Budget, _) => Refused::Budget,
                };
                Failure { at: above_at, refused }
            })?;
        }
    }
    let leaf = path.links[0];
    let mut above = path.links.iter().enumerate().skip(1);
    match above.find(|(_, parsed)| parsed.constraints.is_some()) {
        Some((at, ca)) if leaf.alt_names.is_none() && leaf.attributes().names_a_host => {
            let (subject, issuer) = (leaf.certificate.subject.clone(), ca.certificate.subject.clone());
            Err(Failure { at, refused: Refused::NameConstraints { subject, issuer } })
        }
        _ => Ok(()),
    }
}
