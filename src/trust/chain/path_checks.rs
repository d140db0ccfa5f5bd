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

/// Checks a path in BoringSSL's order. The part that it shares with an `accepted` one is not verified again.
pub(super) fn path(
    store: &Store<'_>,
    path: &Path<'_>,
    accepted: &[&ParsedCert<'_>],
    purpose: Purpose<'_>,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Refused> {
    if purpose == Purpose::Client {
        trust_settings(path)?;
    }
    extensions(path, purpose)?;
    if store.checks_crls {
        (0..path.links.len()).try_for_each(|at| crl::check(store, &path.links, at, now, budget))?;
    }
    let common = zip(&path.links, accepted).take_while(|(link, accepted)| ptr::eq(**link, **accepted)).count();
    signatures_and_dates(&path.links[common.saturating_sub(1)..], now, budget)?;
    name_constraints(path, budget)?;
    if purpose != Purpose::Client {
        modern(path)?;
    }
    let below = &path.links[..path.links.len() - 1];
    if let Some(parsed) = below.iter().find(|parsed| parsed.has_malformed_policies) {
        return Err(Refused::InvalidExtension { subject: parsed.certificate.subject.clone() });
    }
    match below.iter().find(|parsed| parsed.has_policy_constraints) {
        Some(parsed) => Err(Refused::Policy { subject: parsed.certificate.subject.clone() }),
        None => Ok(()),
    }
}

/// `check_trust`: only for certificates of the bundle.
fn trust_settings(path: &Path<'_>) -> Result<(), Refused> {
    let mut anchors = path.links.iter().skip(path.untrusted).map(|parsed| parsed.certificate);
    match anchors.find(|anchor| anchor.rejects_clients) {
        Some(anchor) => Err(Refused::Rejected { subject: anchor.subject.clone() }),
        None => Ok(()),
    }
}

/// Refuses SHA-1 signatures, which Envoy accepts and other clients (Go, rustls, browsers) do not.
fn modern(path: &Path<'_>) -> Result<(), Refused> {
    let signed = &path.links[..path.links.len() - 1];
    match signed.iter().find(|parsed| signature::broken_hash(parsed.certificate).is_some()) {
        Some(parsed) => Err(Refused::SignatureAlgorithm { subject: parsed.certificate.subject.clone() }),
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
fn extensions(path: &Path<'_>, purpose: Purpose<'_>) -> Result<(), Refused> {
    let mut length = 0;
    for (at, parsed) in path.links[..path.untrusted].iter().enumerate() {
        let subject = || parsed.certificate.subject.clone();
        if parsed.has_unknown_critical {
            return Err(Refused::UnknownCriticalExtension { subject: subject() });
        }
        if at > 0 && !parsed.is_ca() {
            return Err(Refused::NotACa { subject: subject() });
        }
        let (allowed, expected) = match (purpose, parsed.extended_usage) {
            (_, None) => (true, ""),
            (Purpose::Client, Some(usage)) => (usage.client, "clientAuth"),
            (Purpose::Server { .. }, Some(usage)) => (usage.server, "serverAuth"),
        };
        if !allowed {
            return Err(Refused::Purpose { subject: subject(), expected });
        }
        if at > 1 && parsed.path_length.is_some_and(|most| length > most.saturating_add(1)) {
            return Err(Refused::PathLength { subject: subject() });
        }
        if at == 0 || !parsed.is_self_issued() {
            length += 1;
        }
    }
    Ok(())
}

/// `internal_verify`, from the top down.
fn signatures_and_dates(links: &[&ParsedCert<'_>], now: Timestamp, budget: &mut Budget) -> Result<(), Refused> {
    let mut above: Option<&ParsedCert<'_>> = None;
    for parsed in links.iter().rev() {
        if let Some(issuer) = above {
            signed(parsed, issuer, budget)?;
        }
        let (certificate, subject) = (parsed.certificate, || parsed.certificate.subject.clone());
        if certificate.is_not_yet_valid(now) {
            return Err(Refused::NotYetValid { subject: subject(), at: certificate.not_before });
        }
        if certificate.is_expired(now) {
            return Err(Refused::Expired { subject: subject(), at: certificate.not_after });
        }
        above = Some(parsed);
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

/// `check_name_constraints`: those of an anchor apply, too; self-issued intermediates are exempt.
fn name_constraints(path: &Path<'_>, budget: &mut Budget) -> Result<(), Refused> {
    if path.links.iter().all(|parsed| parsed.constraints.is_none()) {
        return Ok(());
    }
    for (at, parsed) in path.links.iter().enumerate().rev() {
        if at > 0 && parsed.is_self_issued() {
            continue;
        }
        for above in path.links[at + 1..].iter().rev() {
            let Some(constraints) = &above.constraints else { continue };
            let names = || (parsed.certificate.subject.clone(), above.certificate.subject.clone());
            constraints::check(parsed, constraints, &mut budget.names).map_err(|fault| match (fault, names()) {
                (constraints::ConstraintFault::Violation, (subject, issuer)) => {
                    Refused::NameConstraints { subject, issuer }
                }
                (constraints::ConstraintFault::Unsupported, (subject, issuer)) => {
                    Refused::UnsupportedConstraint { subject, issuer }
                }
                (constraints::ConstraintFault::Budget, _) => Refused::Budget,
            })?;
        }
    }
    let leaf = path.links[0];
    let constraining = path.links[1..].iter().find(|parsed| parsed.constraints.is_some());
    match constraining {
        Some(ca) if leaf.alt_names.is_none() && leaf.attributes().names_a_host => {
            let (subject, issuer) = (leaf.certificate.subject.clone(), ca.certificate.subject.clone());
            Err(Refused::NameConstraints { subject, issuer })
        }
        _ => Ok(()),
    }
}
