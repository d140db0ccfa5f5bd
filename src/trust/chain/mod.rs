//! Verdicts on chains: whether a gateway with a bundle accepts a client's chain, and a client with a bundle a server's chain.
//!
//! # For callers
//! [`verify`] judges one chain; a [`Store`] many. These, [`Purpose`], [`Crl`], [`Accepted`], [`Refused`] (with its
//! `id` and `rank`) and [`horizon()`] are the stable interface; a bundle is `bundle::read(..)`'s certificates in their order.
//!
//! # The model
//! Envoy verifies with BoringSSL's `X509_verify_cert` and partial chains (source/common/tls/cert_validator/
//! default_validator.cc). That builds *one* path and never backtracks: at each step it takes the first issuer that fits by name,
//! authority key identifier and key usage, from the bundle before the chain; it checks dates, signatures and the rest only then.
//! rustls-webpki searches all paths and ignores anchors' dates and usage, so its verdicts differ. Path building is modelled on
//! crypto/x509/x509_vfy.cc, and AWS-LC verifies signatures. Where something is neither modelled nor measured, the
//! chain is refused ([`Refused::Policy`], [`Refused::SignatureAlgorithm`], [`Refused::Budget`]).
//!
//! One path keeps the cost small for any input: 102 steps, each a lookup by subject. Several paths are tried, within a budget, only
//! where BoringSSL's order is not known (see [`Refused::OrderUndetermined`]).

mod budget;
mod bundle_diff;
mod constraints;
mod crl;
mod error;
mod extension_syntax;
mod general_name;
mod hosts;
mod issuing;
mod name;
mod parsed_cert;
mod path;
mod path_checks;
pub(crate) mod signature;
#[cfg(test)]
mod tests;
mod validity_horizon;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use jiff::Timestamp;

use super::limits::MAX_PATHS;
use super::{Certificate, Proxy};
use name::Name;
use parsed_cert::ParsedCert;
use path::{Choices, Path};
pub(crate) use path::{has_issued, has_valid_extensions, may_issue, may_issue_for, signers};

pub(crate) use budget::Budget;
pub(crate) use bundle_diff::{Effect, Update};
pub use crl::Crl;
pub use error::{Accepted, Refused};
pub(crate) use hosts::HostNames;
pub(crate) use issuing::{Blocked, LeafShape};
pub(crate) use validity_horizon::dates_after;
pub use validity_horizon::{Break, horizon};

/// Who presents a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// A client to a gateway that requires a certificate.
    Client,
    /// A server to clients that use these names; all of them must be covered. Paths are built as for clients, with
    /// partial chains, as Envoy's, Go's and rustls' clients do; SHA-1 is refused, since the latter two do.
    Server {
        /// Host names or addresses.
        hosts: &'a [String],
    },
}

/// Bytes for the subjects of all CAs in the request for a client certificate, each with its length: a vector of
/// 64 KiB that is shared with other extensions (RFC 8446 sections 4.2.4 and 4.3.2). Measured: with 65,400 bytes handshakes
/// work, with 65,530 Envoy accepts the update and fails each of them.
pub const MAX_SUBJECTS: usize = 65_400;

/// `SSL_MAX_CERT_LIST_DEFAULT` of BoringSSL, less what TLS adds.
const MAX_CHAIN: usize = 100 * 1024 - 16;

/// Lengths of a client's chain with which Envoy closes the connection. Measured with one certificate: from 32,401 to
/// 65,161 bytes. BoringSSL
/// writes the chain into each of two session tickets (RFC 8446 section 4.6.1), which together have to fit into 64 KiB; if the chain does
/// not fit into one, it writes none. Other fields of a ticket, such as the server's name, take up to 300 bytes.
const TICKETS: RangeInclusive<usize> = 32_100..=65_300;

/// From this number of certificates and lists on, those with one subject lose the order of the bundle: BoringSSL's store sorts
/// with `std::sort`, which keeps the order of equals only for short input. Measured: kept with 23, lost with 24.
pub(crate) const UNORDERED: usize = 24;

/// A bundle, prepared for many chains.
pub struct Store<'a> {
    anchors: Vec<Anchor<'a>>,
    by_subject: HashMap<Name, Vec<usize>>,
    crls: HashMap<&'a Name, Vec<&'a Crl>>,
    /// The number of distinct certificates and lists, which BoringSSL keeps in one store.
    objects: usize,
    keeps_order: bool,
    checks_crls: bool,
    subjects: usize,
}

/// A chain, parsed once for several verdicts.
struct Presented<'c> {
    /// Leaf first. Certificates beyond the maximal length are not parsed.
    parsed: Vec<Option<ParsedCert<'c>>>,
    /// Its length in a handshake.
    bytes: usize,
    /// The subject of the first certificate that bytes follow.
    trailing: Option<String>,
    /// The leaf's names, read once for all dates.
    names: OnceCell<HostNames>,
    /// Whether BoringSSL reads the leaf's key.
    has_readable_key: OnceCell<bool>,
}

impl<'c> Presented<'c> {
    fn read(chain: impl IntoIterator<Item = &'c Certificate>) -> Self {
        let (mut bytes, mut trailing) = (0, None);
        let parsed = chain.into_iter().map(|certificate| {
            bytes += certificate.der.len() + 8;
            if certificate.has_trailing_bytes && trailing.is_none() {
                trailing = Some(certificate.subject.clone());
            }
            (bytes <= MAX_CHAIN).then(|| ParsedCert::read(certificate)).flatten()
        });
        let parsed = parsed.collect();
        Self { parsed, bytes, trailing, names: OnceCell::new(), has_readable_key: OnceCell::new() }
    }

    fn has_readable_key(&self) -> bool {
        let read = || self.leaf().is_some_and(|leaf| signature::is_readable(&leaf.certificate.public_key));
        *self.has_readable_key.get_or_init(read)
    }

    fn leaf(&self) -> Option<&ParsedCert<'c>> {
        self.parsed.first()?.as_ref()
    }
}

struct Anchor<'a> {
    certificate: &'a Certificate,
    parsed: OnceLock<Option<ParsedCert<'a>>>,
    /// The indices of the certificates that fit as the issuer of the bundle's certificate at an index.
    issuers: OnceLock<Vec<usize>>,
}

/// The length of all subjects of a bundle on the wire: each once, with its length prefix.
pub(crate) fn subjects_length<'c>(bundle: impl IntoIterator<Item = &'c Certificate>) -> usize {
    Store::new(bundle, None).subjects
}

/// Whether a chain is accepted at an instant. `crls` are the lists that come with the bundle: `None` without a key for them, empty for
/// a `ca.crl` without a list, which refuses every client.
///
/// # Errors
/// The most helpful reason why it is refused.
pub fn verify(
    bundle: &[Certificate],
    crls: Option<&[Crl]>,
    chain: &[Certificate],
    purpose: Purpose<'_>,
    now: Timestamp,
) -> Result<Accepted, Refused> {
    Store::new(bundle, crls).verify(chain, purpose, now)
}

/// Groups of certificates with one subject, each in the bundle's order and without duplicates.
pub(crate) fn same_subject<'c>(bundle: impl IntoIterator<Item = &'c Certificate>) -> Vec<Vec<&'c Certificate>> {
    let store = Store::new(bundle, None);
    let mut groups: Vec<_> = store.by_subject.values().filter(|group| group.len() > 1).collect();
    groups.sort();
    groups.into_iter().map(|group| group.iter().map(|at| store.anchors[*at].certificate).collect()).collect()
}

impl<'a> Store<'a> {
    /// Prepares a bundle. Duplicates are ignored, as `X509_STORE_add_cert` does.
    pub fn new(bundle: impl IntoIterator<Item = &'a Certificate>, crls: Option<&'a [Crl]>) -> Self {
        let mut store = Self {
            anchors: Vec::new(),
            by_subject: HashMap::new(),
            crls: HashMap::new(),
            objects: 0,
            keeps_order: true,
            checks_crls: crls.is_some(),
            subjects: 0,
        };
        let mut seen = HashSet::new();
        for certificate in bundle {
            if !seen.insert(certificate.fingerprint.as_str()) {
                continue;
            }
            // The parser has rejected names that BoringSSL cannot read.
            let Some(name) = Name::read(&certificate.subject_der) else { continue };
            let same = store.by_subject.entry(name).or_default();
            if same.is_empty() {
                store.subjects += certificate.subject_der.len() + 2;
            }
            same.push(store.anchors.len());
            store.anchors.push(Anchor { certificate, parsed: OnceLock::new(), issuers: OnceLock::new() });
        }
        let (mut seen, mut lists) = (HashSet::new(), 0);
        for crl in crls.unwrap_or_default() {
            if seen.insert(crl.fingerprint()) {
                store.crls.entry(crl.name()).or_default().push(crl);
                lists += 1;
            }
        }
        store.objects = store.anchors.len() + lists;
        store
    }

    /// The same as a proxy orders it; without this the order is that of the newest proxies ([`Proxy::keeps_order`]).
    pub fn of_proxy(self, proxy: Proxy) -> Self {
        Self { keeps_order: proxy.keeps_order(), ..self }
    }

    /// Whether a chain, leaf first, is accepted at an instant.
    ///
    /// # Errors
    /// The most helpful reason why it is refused.
    pub fn verify(&self, chain: &[Certificate], purpose: Purpose<'_>, now: Timestamp) -> Result<Accepted, Refused> {
        self.judge(&Presented::read(chain), purpose, now, &mut Budget::default())
    }

    /// The verdict on a chain; `budget` limits the cost of verdicts at many dates.
    fn judge(
        &self,
        presented: &Presented<'_>,
        purpose: Purpose<'_>,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Result<Accepted, Refused> {
        self.takes(presented, purpose)?;
        let accepted =
            self.decide(&presented.parsed, purpose, now, budget).map_err(|refused| match self.is_ordered() {
                true => self.explained(&presented.parsed, purpose, now, budget, refused),
                false => refused,
            })?;
        path_checks::leaf(presented, purpose)?;
        Ok(accepted)
    }

    /// Whether a chain is accepted at an instant. Costs less than [`Store::verify`], since it does not search for the best reason.
    pub(crate) fn accepts<'c>(
        &self,
        chain: impl IntoIterator<Item = &'c Certificate>,
        purpose: Purpose<'_>,
        now: Timestamp,
    ) -> bool {
        let presented = Presented::read(chain);
        self.first_refusal(&presented, purpose, now, &mut Budget::default()).is_ok()
    }

    /// Whether a chain leads to a CA of the bundle, by names and key identifiers. Verifies no signature, so it costs little.
    pub(crate) fn leads_here<'c>(&self, chain: impl IntoIterator<Item = &'c Certificate>) -> Result<(), Refused> {
        let presented = Presented::read(chain);
        let mut choices = Choices::new(!self.is_ordered());
        self.path(&presented.parsed, &mut choices, &Budget::default()).map(drop)
    }

    /// Whether a chain is accepted, or a verdict would exceed the budget.
    pub(crate) fn may_accept<'c>(
        &self,
        chain: impl IntoIterator<Item = &'c Certificate>,
        purpose: Purpose<'_>,
        now: Timestamp,
    ) -> bool {
        let presented = Presented::read(chain);
        let verdict = self.first_refusal(&presented, purpose, now, &mut Budget::default());
        matches!(verdict, Ok(()) | Err(Refused::Budget))
    }

    /// The first reason that refuses a chain on any path that BoringSSL could take; [`Refused::Budget`] if it is not known whether
    /// there is one. `budget` limits the cost of many chains.
    fn first_refusal(
        &self,
        presented: &Presented<'_>,
        purpose: Purpose<'_>,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Result<(), Refused> {
        self.takes(presented, purpose)?;
        path_checks::leaf(presented, purpose)?;
        let (mut choices, mut accepted) = (Choices::new(!self.is_ordered()), Vec::new());
        for _ in 0..MAX_PATHS {
            accepted = self.attempt(&presented.parsed, purpose, now, &mut choices, &accepted, budget)?.links;
            if !choices.next() {
                return Ok(());
            }
        }
        Err(Refused::Budget)
    }

    /// Refuses a chain for its length, or for the bundle.
    fn takes(&self, presented: &Presented<'_>, purpose: Purpose<'_>) -> Result<(), Refused> {
        if presented.parsed.is_empty() {
            return Err(Refused::NoCertificate);
        }
        self.check_bundle(purpose)?;
        // Envoy serves a chain without them.
        if let Some(subject) = presented.trailing.clone().filter(|_| purpose == Purpose::Client) {
            return Err(Refused::TrailingBytes { subject });
        }
        match presented.bytes {
            bytes if bytes > MAX_CHAIN => Err(Refused::ChainTooLong { bytes }),
            bytes if TICKETS.contains(&bytes) && purpose == Purpose::Client => Err(Refused::TicketsTooLong { bytes }),
            _ => Ok(()),
        }
    }

    /// Refuses every chain for the bundle.
    fn check_bundle(&self, purpose: Purpose<'_>) -> Result<(), Refused> {
        if self.anchors.is_empty() {
            return Err(Refused::NoAnchors);
        }
        if self.subjects > MAX_SUBJECTS && purpose == Purpose::Client {
            return Err(Refused::SubjectsTooLong { bytes: self.subjects, max: MAX_SUBJECTS });
        }
        Ok(())
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.keeps_order && self.objects < UNORDERED
    }

    /// The verdict on the path, or on all paths that BoringSSL could take.
    fn decide(
        &self,
        parsed: &[Option<ParsedCert<'_>>],
        purpose: Purpose<'_>,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Result<Accepted, Refused> {
        let mut choices = Choices::new(!self.is_ordered());
        let mut next = |choices: &mut Choices| self.attempt(parsed, purpose, now, choices, &[], budget);
        let mut worst = next(&mut choices);
        if self.is_ordered() {
            return worst.map(|path| path.accepted());
        }
        for _ in 0..MAX_PATHS {
            if !choices.next() {
                return worst.map(|path| path.accepted());
            }
            match (next(&mut choices), &worst) {
                (Err(refused), Ok(_)) => worst = Err(Refused::OrderUndetermined { because: Box::new(refused) }),
                (Ok(_), Err(refused)) if !matches!(refused, Refused::OrderUndetermined { .. }) => {
                    worst = Err(Refused::OrderUndetermined { because: Box::new(refused.clone()) });
                }
                (Ok(path), Ok(known)) if path.until() < known.until() => worst = Ok(path),
                (Err(refused), Err(known)) if refused.rank() > known.rank() => worst = Err(refused),
                _ => {}
            }
        }
        Err(worst.err().unwrap_or(Refused::Budget))
    }

    /// Builds and checks one path. `accepted` is a path that has been checked.
    fn attempt<'p>(
        &'p self,
        chain: &'p [Option<ParsedCert<'p>>],
        purpose: Purpose<'_>,
        now: Timestamp,
        choices: &mut Choices,
        accepted: &[&ParsedCert<'p>],
        budget: &mut Budget,
    ) -> Result<Path<'p>, Refused> {
        budget.path()?;
        let path = self.path(chain, choices, budget)?;
        path_checks::path(self, &path, accepted, purpose, now, budget)?;
        Ok(path)
    }

    /// Adds to a refusal that another CA with the same subject would be accepted if it were first.
    fn explained(
        &self,
        chain: &[Option<ParsedCert<'_>>],
        purpose: Purpose<'_>,
        now: Timestamp,
        budget: &mut Budget,
        refused: Refused,
    ) -> Refused {
        let mut choices = Choices::new(true);
        for _ in 0..MAX_PATHS {
            if self.attempt(chain, purpose, now, &mut choices, &[], budget).is_ok()
                && let Some((issuer, count)) = choices.taken(self)
            {
                return Refused::Shadowed { issuer, count, because: Box::new(refused) };
            }
            if !choices.next() {
                break;
            }
        }
        refused
    }
}
