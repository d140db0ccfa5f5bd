//! Certificate revocation lists, judged as BoringSSL does (`check_revocation`, crypto/x509/x509_vfy.cc).

use jiff::Timestamp;
use x509_parser::extensions::ParsedExtension;
use x509_parser::revocation_list::CertificateRevocationList;

use super::facts::{self, Authority, CRL_SIGN, Facts};
use super::name::Name;
use super::{Refused, signature};
use crate::trust::certificate::timestamp;
use crate::trust::der::{Cbs, SEQUENCE};

/// A revocation list.
#[derive(Clone, PartialEq, Eq)]
pub struct Crl {
    der: Vec<u8>,
    issuer: Name,
    this_update: Timestamp,
    next_update: Option<Timestamp>,
    authority: Option<Vec<u8>>,
    scope: Scope,
    has_critical: bool,
    revoked: std::collections::HashSet<Vec<u8>>,
}

/// What an issuing distribution point says (RFC 5280 section 5.2.5).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    OnlyUsers,
    OnlyCas,
    /// One distribution point, or attribute certificates.
    Part,
    /// By reason or indirect: BoringSSL does not look at it.
    Never,
}

impl std::fmt::Debug for Crl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crl({} revoked)", self.revoked.len())
    }
}

impl Crl {
    /// Reads a DER list.
    pub fn parse(der: &[u8]) -> Option<Self> {
        let (_, list) = x509_parser::parse_x509_crl(der).ok()?;
        let mut crl = Self {
            der: list.as_raw().to_vec(),
            issuer: Name::read(list.issuer().as_raw())?,
            this_update: timestamp(list.last_update().timestamp()),
            next_update: list.next_update().map(|at| timestamp(at.timestamp())),
            authority: None,
            scope: Scope::All,
            has_critical: false,
            revoked: list.iter_revoked_certificates().map(|entry| entry.raw_serial().to_vec()).collect(),
        };
        crl.extensions(&list);
        Some(crl)
    }

    /// Whether two lists are one (`X509_STORE_add_crl` ignores duplicates).
    pub(super) fn is(&self, other: &Self) -> bool {
        self.der == other.der
    }

    /// The dates at which a verdict changes.
    pub(super) fn dates(&self) -> impl Iterator<Item = Timestamp> {
        [Some(self.this_update), self.next_update].into_iter().flatten()
    }

    fn extensions(&mut self, list: &CertificateRevocationList<'_>) {
        for extension in list.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(_) => self.authority = Some(extension.value.to_vec()),
                ParsedExtension::IssuingDistributionPoint(point) => {
                    self.scope = if point.only_some_reasons.is_some() || point.indirect_crl {
                        Scope::Never
                    } else if point.distribution_point.is_some() || point.only_contains_attribute_certs {
                        Scope::Part
                    } else if point.only_contains_user_certs {
                        Scope::OnlyUsers
                    } else if point.only_contains_ca_certs {
                        Scope::OnlyCas
                    } else {
                        Scope::All
                    };
                }
                _ => self.has_critical |= extension.critical,
            }
        }
        // An entry's critical extensions may change what it means.
        let entries = list.iter_revoked_certificates();
        self.has_critical |= entries.flat_map(|entry| entry.extensions()).any(|extension| extension.critical);
    }

    fn authority(&self) -> Option<Authority<'_>> {
        facts::authority(Cbs(self.authority.as_deref()?).take(SEQUENCE, "").ok()?)
    }

    fn is_current(&self, now: Timestamp) -> bool {
        self.this_update <= now && self.next_update.is_none_or(|next| now < next)
    }

    fn covers(&self, facts: &Facts<'_>) -> bool {
        match self.scope {
            Scope::All => true,
            Scope::OnlyUsers => facts.ca != Some(true),
            Scope::OnlyCas => facts.ca == Some(true),
            Scope::Part | Scope::Never => false,
        }
    }
}

/// Checks the certificate at `at` of a path. Of lists that are equally good and equally new the first counts, or each of
/// them where the store's order is not known.
pub(super) fn check(
    crls: &[&Crl],
    is_ordered: bool,
    path: &[&Facts<'_>],
    at: usize,
    now: Timestamp,
) -> Result<(), Refused> {
    let facts = path[at];
    let candidates = crls.iter().filter(|crl| crl.issuer == facts.issuer && crl.scope != Scope::Never);
    let scored = candidates.filter_map(|crl| {
        let (signer, is_direct) = signer(crl, path, at)?;
        // The weights of BoringSSL's score, then the newer one.
        let score = (!crl.has_critical, crl.covers(facts), crl.is_current(now), is_direct, crl.this_update);
        Some((score, *crl, signer))
    });
    let scored: Vec<_> = scored.collect();
    let Some(best) = scored.iter().map(|(score, ..)| *score).max() else {
        return Err(Refused::CrlMissing { issuer: facts.certificate.issuer.clone() });
    };
    let equals = scored.iter().filter(|(score, ..)| *score == best);
    equals.take(if is_ordered { 1 } else { usize::MAX }).try_for_each(|(_, crl, signer)| apply(crl, signer, facts, now))
}

/// `check_crl` and `cert_crl`.
fn apply(crl: &Crl, signer: &Facts<'_>, facts: &Facts<'_>, now: Timestamp) -> Result<(), Refused> {
    let issuer = facts.certificate.issuer.clone();
    let unusable = |cause| Err(Refused::CrlUnusable { issuer: issuer.clone(), cause });
    if !signer.may(CRL_SIGN) {
        return unusable("the CA's key usage lacks cRLSign; issue the CA anew");
    }
    if !crl.covers(facts) {
        return unusable("it covers only a part of the certificates; publish a full one");
    }
    if !crl.is_current(now) {
        return Err(Refused::CrlOutdated { issuer });
    }
    let Some((signed, _)) = facts::signed(&crl.der) else { return unusable("it is malformed") };
    if signature::verify(&signed, &signer.certificate.public_key).is_err() {
        return unusable("its signature is not the CA's; publish it anew");
    }
    if crl.has_critical {
        return unusable("it has a critical extension that the proxy does not know; publish it without");
    }
    if crl.revoked.contains(facts.serial) {
        return Err(Refused::Revoked { subject: facts.certificate.subject.clone() });
    }
    Ok(())
}

/// `crl_akid_check`: the issuer on the path, or a CA further up with the list's name.
fn signer<'p>(crl: &Crl, path: &[&'p Facts<'p>], at: usize) -> Option<(&'p Facts<'p>, bool)> {
    let authority = crl.authority();
    let fits = |facts: &Facts<'_>| authority.as_ref().is_none_or(|id| id.fits(facts));
    let direct = (at + 1).min(path.len() - 1);
    if fits(path[direct]) {
        return Some((path[direct], true));
    }
    path[direct + 1..].iter().find(|facts| facts.subject == crl.issuer && fits(facts)).map(|facts| (*facts, false))
}
