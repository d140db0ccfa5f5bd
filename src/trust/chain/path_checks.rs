//! What BoringSSL looks at once the path stands.

use std::iter::zip;
use std::ptr;

use jiff::Timestamp;

use super::budget::Budget;
use super::parsed_cert::{DIGITAL_SIGNATURE, ParsedCert};
use super::path::{Path, issued};
use super::signature::{self, Key, SignatureFault};
use super::{HostNames, Presented, Purpose, Refused, Store, constraints, crl};

/// Checks a path in BoringSSL's order. What it has in common with a `sound` one is not verified again.
pub(super) fn path(
    store: &Store<'_>,
    path: &Path<'_>,
    sound: &[&ParsedCert<'_>],
    purpose: Purpose<'_>,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Refused> {
    extensions(path, purpose)?;
    if store.checks_crls {
        (0..path.links.len()).try_for_each(|at| crl::check(store, &path.links, at, now, budget))?;
    }
    let common = zip(&path.links, sound).take_while(|(link, sound)| ptr::eq(**link, **sound)).count();
    signatures_and_dates(&path.links[common.saturating_sub(1)..], now, budget)?;
    name_constraints(path, budget)?;
    if purpose != Purpose::Client {
        modern(path)?;
    }
    let below = &path.links[..path.links.len() - 1];
    if let Some(facts) = below.iter().find(|facts| facts.has_malformed_policies) {
        return Err(Refused::InvalidExtension { subject: facts.certificate.subject.clone() });
    }
    match below.iter().find(|facts| facts.has_policy_constraints) {
        Some(facts) => Err(Refused::Policy { subject: facts.certificate.subject.clone() }),
        None => Ok(()),
    }
}

/// Clients of other kinds (Go, rustls, browsers) refuse SHA-1, which Envoy takes.
fn modern(path: &Path<'_>) -> Result<(), Refused> {
    let signed = &path.links[..path.links.len() - 1];
    match signed.iter().find(|facts| signature::broken_hash(facts.certificate).is_some()) {
        Some(facts) => Err(Refused::SignatureAlgorithm { subject: facts.certificate.subject.clone() }),
        None => Ok(()),
    }
}

/// What TLS, not path validation, asks of a leaf; and its names.
pub(super) fn leaf(presented: &Presented<'_>, purpose: Purpose<'_>) -> Result<(), Refused> {
    let Some(facts) = presented.leaf() else { return Ok(()) };
    let leaf = facts.certificate;
    let subject = || facts.certificate.subject.clone();
    // Envoy itself serves with no RSA key under 2048 bits, but takes one of 1024 from a client (measured).
    let rsa = if purpose == Purpose::Client { 1024 } else { 2048 };
    let takes = |key| match key {
        Key::Rsa { bits } => bits >= rsa,
        key => matches!(key, Key::P256 | Key::P384),
    };
    if !takes(signature::key(&leaf.public_key).0) {
        return Err(Refused::LeafKey { subject: subject() });
    }
    if !facts.may(DIGITAL_SIGNATURE) {
        return Err(Refused::LeafKeyUsage { subject: subject() });
    }
    let Purpose::Server { hosts: wanted @ [_, ..] } = purpose else { return Ok(()) };
    let names = presented.names.get_or_init(|| HostNames::of(leaf));
    match wanted.iter().find(|host| !names.cover(host)) {
        Some(host) => Err(Refused::Host { subject: subject(), host: host.clone() }),
        None => Ok(()),
    }
}

/// `check_chain_extensions`: only of what is not from the bundle.
fn extensions(path: &Path<'_>, purpose: Purpose<'_>) -> Result<(), Refused> {
    let mut length = 0;
    for (at, facts) in path.links[..path.untrusted].iter().enumerate() {
        let subject = || facts.certificate.subject.clone();
        if facts.has_unknown_critical {
            return Err(Refused::UnknownCriticalExtension { subject: subject() });
        }
        if at > 0 && !facts.is_ca() {
            return Err(Refused::NotACa { subject: subject() });
        }
        let (allowed, expected) = match (purpose, facts.extended_usage) {
            (_, None) => (true, ""),
            (Purpose::Client, Some(usage)) => (usage.client, "clientAuth"),
            (Purpose::Server { .. }, Some(usage)) => (usage.server, "serverAuth"),
        };
        if !allowed {
            return Err(Refused::Purpose { subject: subject(), expected });
        }
        if at > 1 && facts.path_length.is_some_and(|most| length > most.saturating_add(1)) {
            return Err(Refused::PathLength { subject: subject() });
        }
        if at == 0 || !facts.is_self_issued() {
            length += 1;
        }
    }
    Ok(())
}

/// `internal_verify`, from the top down.
fn signatures_and_dates(links: &[&ParsedCert<'_>], now: Timestamp, budget: &mut Budget) -> Result<(), Refused> {
    let mut above: Option<&ParsedCert<'_>> = None;
    for facts in links.iter().rev() {
        if let Some(issuer) = above {
            signed(facts, issuer, budget)?;
        }
        let (certificate, subject) = (facts.certificate, || facts.certificate.subject.clone());
        if certificate.is_not_yet_valid(now) {
            return Err(Refused::NotYetValid { subject: subject(), at: certificate.not_before });
        }
        if now >= certificate.not_after {
            return Err(Refused::Expired { subject: subject(), at: certificate.not_after });
        }
        above = Some(facts);
    }
    Ok(())
}

fn signed(facts: &ParsedCert<'_>, issuer: &ParsedCert<'_>, budget: &mut Budget) -> Result<(), Refused> {
    let subject = || facts.certificate.subject.clone();
    match budget.link(facts, issuer)? {
        Ok(()) => Ok(()),
        Err(SignatureFault::Unsupported) => Err(Refused::SignatureAlgorithm { subject: subject() }),
        Err(SignatureFault::Wrong) => {
            debug_assert!(issued(issuer, facts) || facts.is_self_signed(), "a path is built by names");
            Err(Refused::Signature { subject: subject(), issuer: issuer.certificate.subject.clone() })
        }
    }
}

/// `check_name_constraints`: an anchor's count, too; self-issued intermediates need not obey.
fn name_constraints(path: &Path<'_>, budget: &mut Budget) -> Result<(), Refused> {
    if path.links.iter().all(|facts| facts.constraints.is_none()) {
        return Ok(());
    }
    for (at, facts) in path.links.iter().enumerate().rev() {
        if at > 0 && facts.is_self_issued() {
            continue;
        }
        for above in path.links[at + 1..].iter().rev() {
            let Some(constraints) = &above.constraints else { continue };
            let names = || (facts.certificate.subject.clone(), above.certificate.subject.clone());
            constraints::check(facts, constraints, &mut budget.names).map_err(|fault| match (fault, names()) {
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
    let constraining = path.links[1..].iter().find(|facts| facts.constraints.is_some());
    match constraining {
        Some(ca) if leaf.alt_names.is_none() && leaf.attributes().names_a_host => {
            let (subject, issuer) = (leaf.certificate.subject.clone(), ca.certificate.subject.clone());
            Err(Refused::NameConstraints { subject, issuer })
        }
        _ => Ok(()),
    }
}
