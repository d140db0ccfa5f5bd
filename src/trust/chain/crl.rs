//! Certificate revocation lists, evaluated as by BoringSSL (`check_revocation`, crypto/x509/x509_vfy.cc).

use jiff::Timestamp;
use x509_parser::extensions::{IssuingDistributionPoint, ParsedExtension};
use x509_parser::revocation_list::CertificateRevocationList;

use super::name::Name;
use super::parsed_cert::{self, AuthorityKeyId, CRL_SIGN, KEY_CERT_SIGN, ParsedCert};
use super::{Budget, Refused, Store};
use crate::trust::Certificate;
use crate::trust::certificate::{hex, pem, sha256, timestamp};
use crate::trust::der::{self, Cbs, SEQUENCE};
use crate::trust::name;
use crate::trust::signature_verdict::SignatureFault;

/// A revocation list.
#[derive(Clone, PartialEq, Eq)]
pub struct Crl {
    der: Vec<u8>,
    /// SHA-256 over `der`, lower-case hex.
    fingerprint: String,
    issuer: Name,
    issuer_text: String,
    this_update: Timestamp,
    next_update: Option<Timestamp>,
    authority: Option<AuthorityKeyId<'static>>,
    /// The certificates that the list covers. `None`: all.
    scope: Option<Scope>,
    has_critical: bool,
    revoked: std::collections::HashSet<Vec<u8>>,
}

/// What an issuing distribution point says (RFC 5280 section 5.2.5).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    OnlyUsers,
    OnlyCas,
    /// The list covers one distribution point, or attribute certificates.
    Part,
    /// The list covers only some reasons, is indirect, or covers only two kinds of certificates. BoringSSL ignores it.
    Never,
}

/// authorityKeyIdentifier: 2.5.29.35.
const KEY_ID: &[u8] = &[0x55, 0x1d, 35];
/// issuingDistributionPoint: 2.5.29.28.
const SCOPE: &[u8] = &[0x55, 0x1d, 28];
const MALFORMED: &str = "its scope or authority key identifier is malformed or repeated";

impl Scope {
    fn of(point: &IssuingDistributionPoint<'_>) -> Self {
        let kinds = [
            (point.only_contains_user_certs, Self::OnlyUsers),
            (point.only_contains_ca_certs, Self::OnlyCas),
            (point.only_contains_attribute_certs, Self::Part),
        ];
        let only: Vec<_> = kinds.into_iter().filter(|(only, _)| *only).map(|(_, scope)| scope).collect();
        if point.only_some_reasons.is_some() || point.indirect_crl || only.len() > 1 {
            Self::Never
        } else if point.distribution_point.is_some() {
            Self::Part
        } else {
            only.first().copied().unwrap_or(Self::All)
        }
    }
}

impl std::fmt::Debug for Crl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crl({} revoked)", self.revoked.len())
    }
}

impl Crl {
    /// Reads a list as `d2i_X509_CRL` does: trailing bytes are ignored.
    ///
    /// # Errors
    /// Why BoringSSL rejects it, or that a field cannot be read.
    pub fn parse(der: &[u8]) -> Result<Self, &'static str> {
        const FIELD: &str = "a name, a date or another field cannot be read";
        let der = der::list(der)?;
        let (_, list) = x509_parser::parse_x509_crl(der).map_err(|_| FIELD)?;
        let mut crl = Self {
            der: der.to_vec(),
            fingerprint: hex(&sha256(der)),
            issuer: Name::read(list.issuer().as_raw()).ok_or(FIELD)?,
            issuer_text: name::rfc4514(list.issuer()),
            this_update: timestamp(list.last_update().timestamp()),
            next_update: list.next_update().map(|at| timestamp(at.timestamp())),
            authority: None,
            scope: None,
            has_critical: false,
            revoked: list.iter_revoked_certificates().map(|entry| entry.raw_serial().to_vec()).collect(),
        };
        crl.extensions(&list)?;
        Ok(crl)
    }

    /// The list as a PEM block.
    pub fn pem(&self) -> String {
        pem("X509 CRL", &self.der)
    }

    /// The CA that it names as its issuer (RFC 4514).
    pub fn issuer(&self) -> &str {
        &self.issuer_text
    }

    /// When it was issued, and when the next one is due: from then on it is refused.
    pub(crate) fn validity(&self) -> (Timestamp, Option<Timestamp>) {
        (self.this_update, self.next_update)
    }

    /// Identifies the list: `X509_STORE_add_crl` ignores duplicates.
    pub(super) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(super) fn name(&self) -> &Name {
        &self.issuer
    }

    /// The dates at which a verdict changes.
    pub(super) fn dates(&self) -> impl Iterator<Item = Timestamp> {
        [Some(self.this_update), self.next_update].into_iter().flatten()
    }

    fn extensions(&mut self, list: &CertificateRevocationList<'_>) -> Result<(), &'static str> {
        for extension in list.extensions() {
            let is_known = [KEY_ID, SCOPE].contains(&extension.oid.as_bytes());
            match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(_) if self.authority.is_none() => {
                    let id = Cbs(extension.value).take(SEQUENCE, MALFORMED).map(parsed_cert::authority)?;
                    self.authority = Some(id.ok_or(MALFORMED)?.into_owned());
                }
                ParsedExtension::IssuingDistributionPoint(point) if self.scope.is_none() => {
                    self.scope = Some(Scope::of(point));
                }
                // BoringSSL rejects the list if one of these two is malformed or repeated.
                _ if is_known => return Err(MALFORMED),
                _ => self.has_critical |= extension.critical,
            }
        }
        // A critical extension of an entry may change its meaning.
        let entries = list.iter_revoked_certificates();
        self.has_critical |= entries.flat_map(|entry| entry.extensions()).any(|extension| extension.critical);
        Ok(())
    }

    fn is_current(&self, now: Timestamp) -> bool {
        self.this_update <= now && self.next_update.is_none_or(|next| now < next)
    }

    fn covers(&self, is_ca: bool) -> bool {
        match self.scope.unwrap_or(Scope::All) {
            Scope::All => true,
            Scope::OnlyUsers => !is_ca,
            Scope::OnlyCas => is_ca,
            Scope::Part | Scope::Never => false,
        }
    }
}

/// The certificate whose revocation is checked.
struct RevocationQuery<'q> {
    issuer: &'q Name,
    /// The issuer (RFC 4514).
    issuer_text: &'q str,
    subject: &'q str,
    serial: &'q [u8],
    is_ca: bool,
}

impl<'q> RevocationQuery<'q> {
    fn of(parsed: &'q ParsedCert<'_>) -> Self {
        Self {
            issuer: &parsed.issuer,
            issuer_text: &parsed.certificate.issuer,
            subject: &parsed.certificate.subject,
            serial: parsed.serial,
            is_ca: parsed.ca == Some(true),
        }
    }

    /// A client that has not been revoked.
    fn client_of(ca: &'q ParsedCert<'_>) -> Self {
        let (issuer, issuer_text) = (&ca.subject, ca.certificate.subject.as_str());
        Self { issuer, issuer_text, subject: "", serial: &[], is_ca: false }
    }
}

/// Checks the certificate at `at` of a path.
pub(super) fn check(
    store: &Store<'_>,
    path: &[&ParsedCert<'_>],
    at: usize,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Refused> {
    // The CA at the end of a path must have signed its own list.
    check_query(store, &RevocationQuery::of(path[at]), &path[(at + 1).min(path.len() - 1)..], now, budget)
}

impl Store<'_> {
    /// The issuers of lists that are not of a CA in the bundle.
    pub(crate) fn unrelated_lists(&self) -> Vec<String> {
        // A hostile Secret has thousands of each with one name.
        const COMPARED: usize = 32;
        let is_of = |list: &Crl, at: &usize| {
            let ca = self.anchors[*at].parsed();
            ca.is_some_and(|ca| list.authority.as_ref().is_none_or(|id| id.fits(ca)))
        };
        let unrelated = |(name, lists): (&&Name, &Vec<&Crl>)| {
            let cas = self.by_subject.get(*name).map(Vec::as_slice).unwrap_or_default();
            let list = lists.first().filter(|_| {
                !lists.iter().take(COMPARED).any(|list| cas.iter().take(COMPARED).any(|ca| is_of(list, ca)))
            });
            list.map(|list| list.issuer_text.clone())
        };
        let mut issuers: Vec<_> = self.crls.iter().filter_map(unrelated).collect();
        issuers.sort();
        issuers
    }

    /// Whether the lists admit clients of a CA of the bundle that have not been revoked: the list that covers them is checked, and
    /// those of the CA itself and of the CAs above it.
    ///
    /// # Errors
    /// What is wrong with the lists.
    pub(crate) fn lists_admit_clients_of(
        &self,
        ca: &Certificate,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Result<(), Refused> {
        // BoringSSL takes no anchor with malformed extensions as an issuer.
        let Some(parsed) = ParsedCert::read(ca) else { return Ok(()) };
        let path = self.above(&parsed, budget)?;
        if parsed.may(KEY_CERT_SIGN) {
            check_query(self, &RevocationQuery::client_of(&parsed), &path, now, budget)?;
        }
        (0..path.len()).try_for_each(|at| check(self, &path, at, now, budget))
    }
}

/// BoringSSL uses the first of several lists with the same score. If the order of the store is unknown, each of them is tried.
fn check_query(
    store: &Store<'_>,
    query: &RevocationQuery<'_>,
    above: &[&ParsedCert<'_>],
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Refused> {
    let lists = store.crls.get(query.issuer).map(Vec::as_slice).unwrap_or_default();
    // Each list may have been signed by the issuer or any of the CAs above it.
    budget.lists(lists.len() * above.len())?;
    let candidates = lists.iter().filter(|crl| crl.scope != Some(Scope::Never));
    let scored = candidates.filter_map(|crl| {
        let (signer, is_direct) = signer(crl, above)?;
        // The order of BoringSSL: its score, then the newer list.
        let score = (!crl.has_critical, crl.covers(query.is_ca), crl.is_current(now), is_direct, crl.this_update);
        Some((score, *crl, signer))
    });
    let scored: Vec<_> = scored.collect();
    let issuer = || query.issuer_text.to_owned();
    let has_certificate = || above.iter().any(|ca| ca.subject == *query.issuer);
    if !lists.is_empty() && !has_certificate() {
        return Err(Refused::CrlIssuerMissing { issuer: issuer() });
    }
    let Some(best) = scored.iter().map(|(score, ..)| *score).max() else {
        return Err(Refused::CrlMissing { issuer: issuer(), has_certificate: has_certificate() });
    };
    let count = if store.is_ordered() { 1 } else { usize::MAX };
    let mut equals = scored.iter().filter(|(score, ..)| *score == best).take(count);
    equals.try_for_each(|(_, crl, signer)| apply(crl, signer, query, now, budget))
}

/// Applies a list to a certificate, as BoringSSL does in `check_crl` and `cert_crl`.
fn apply(
    crl: &Crl,
    signer: &ParsedCert<'_>,
    query: &RevocationQuery<'_>,
    now: Timestamp,
    budget: &mut Budget,
) -> Result<(), Refused> {
    let issuer = || query.issuer_text.to_owned();
    let unusable = |cause| Err(Refused::CrlUnusable { issuer: issuer(), cause });
    if !signer.may(CRL_SIGN) {
        return unusable("the CA's key usage lacks cRLSign; reissue the CA");
    }
    if !crl.covers(query.is_ca) {
        return unusable("it covers only some of the certificates; publish a complete one");
    }
    if !crl.is_current(now) {
        return Err(Refused::CrlOutdated { issuer: issuer() });
    }
    let Some((signed, _)) = parsed_cert::signed(&crl.der) else { return unusable("it is malformed") };
    match budget.list(&crl.fingerprint, &signed, signer)? {
        Ok(()) => {}
        Err(SignatureFault::Wrong) => return unusable("the CA did not sign it; publish it again"),
        Err(SignatureFault::Unsupported) => {
            return unusable("it is signed with an algorithm that cannot be verified here; sign it with SHA-256");
        }
    }
    if crl.has_critical {
        return unusable("it has a critical extension that the proxy does not support; publish it without");
    }
    if crl.revoked.contains(query.serial) {
        return Err(Refused::Revoked { subject: query.subject.to_owned() });
    }
    Ok(())
}

/// `crl_akid_check`: the issuer on the path, or a CA further up with the list's name.
fn signer<'p>(crl: &Crl, above: &[&'p ParsedCert<'p>]) -> Option<(&'p ParsedCert<'p>, bool)> {
    let fits = |parsed: &ParsedCert<'_>| crl.authority.as_ref().is_none_or(|id| id.fits(parsed));
    let (direct, further) = above.split_first()?;
    if fits(direct) {
        return Some((direct, true));
    }
    further.iter().find(|parsed| parsed.subject == crl.issuer && fits(parsed)).map(|parsed| (*parsed, false))
}
