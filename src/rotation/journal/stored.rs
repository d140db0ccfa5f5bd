//! How a journal is stored: certificates by number, and one for all client certificates that no verdict distinguishes (ADR
//! 0014). Only certificates that a CA of the journal verifies are grouped. The newest contents are read from the cluster again before each
//! decision.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Journal, JournalError};
use crate::connectivity;
use crate::trust::equivalence::{constrains_names, equivalence_key};
use crate::trust::{Certificate, bundle};

/// The stored form of a journal.
#[derive(Deserialize, Serialize)]
pub(super) struct StoredJournal {
    certificates: Vec<StoredCertificate>,
    #[serde(flatten)]
    journal: Journal<usize>,
}

/// A stored certificate.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum StoredCertificate {
    /// PEM.
    Whole(String),
    /// A certificate that is equivalent to the one with this number: its fingerprint, and both dates as Unix times.
    Like(usize, String, i64, i64),
}

impl StoredJournal {
    pub(super) fn of(journal: &Journal) -> Self {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut certificates = Vec::new();
        let mut groups: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let keys = group_keys(journal);
        let numbered = journal.convert(&mut |certificate: &Certificate| {
            if let Some(number) = numbers.get(&certificate.fingerprint) {
                return Some(*number);
            }
            let number = certificates.len();
            let group = keys.get(&certificate.fingerprint).map(|key| *groups.entry(key.clone()).or_insert(number));
            certificates.push(match group.filter(|like| *like < number) {
                Some(like) => StoredCertificate::Like(
                    like,
                    certificate.fingerprint.clone(),
                    certificate.not_before.as_second(),
                    certificate.not_after.as_second(),
                ),
                None => StoredCertificate::Whole(certificate.pem()),
            });
            numbers.insert(certificate.fingerprint.clone(), number);
            Some(number)
        });
        Self { certificates, journal: numbered.unwrap_or_default() }
    }

    pub(super) fn journal(self) -> Result<Journal, JournalError> {
        let mut certificates: Vec<Option<Certificate>> = Vec::new();
        for stored in self.certificates {
            let certificate = match stored {
                StoredCertificate::Whole(pem) => read(&pem),
                StoredCertificate::Like(like, fingerprint, from, to) => {
                    let dates = Timestamp::from_second(from).ok().zip(Timestamp::from_second(to).ok());
                    let like = certificates.get(like).cloned().flatten();
                    like.zip(dates).map(|(like, (not_before, not_after))| Certificate {
                        fingerprint,
                        not_before,
                        not_after,
                        ..like
                    })
                }
            };
            certificates.push(certificate);
        }
        let mut missing = None;
        let journal = self.journal.convert(&mut |number: &usize| {
            let found = certificates.get(*number).cloned().flatten();
            missing = missing.or(found.is_none().then_some(*number));
            found
        });
        journal.ok_or_else(|| JournalError::Missing(missing.unwrap_or_default()))
    }
}

fn read(pem: &str) -> Option<Certificate> {
    bundle::read(pem.as_bytes()).into_certificates().into_iter().next()
}

/// A key for each client certificate, by fingerprint. Certificates with the same key are equivalent: the key has the
/// parts of the chain that verdicts use, and which CAs of the journal accept it alone. Only for certificates that a CA
/// accepts, and that the journal has only as a client's.
fn group_keys(journal: &Journal) -> BTreeMap<String, Vec<u8>> {
    let issuers = journal.client_issuers.iter().chain(&journal.server_issuers).map(|issuer| &issuer.certificate);
    let gateways = journal.gateways.iter().flat_map(|version| version.trust.iter().chain(&version.chain));
    let versions = || journal.clients.values().flat_map(|client| &client.versions);
    let others = versions().flat_map(|version| version.trust.iter().chain(version.chain.iter().skip(1)));
    let mut seen = BTreeSet::new();
    let known: Vec<_> = issuers.chain(gateways).filter(|ca| seen.insert(&ca.fingerprint)).collect();
    let elsewhere: BTreeSet<_> = known.iter().copied().chain(others).map(|other| &other.fingerprint).collect();
    let is_constrained = known.iter().any(|ca| constrains_names(ca));
    let mut keys = BTreeMap::new();
    for chain in versions().map(|version| version.chain.as_slice()) {
        let Some((leaf, above)) = chain.split_first() else { continue };
        if elsewhere.contains(&leaf.fingerprint) || keys.contains_key(&leaf.fingerprint) {
            continue;
        }
        let accepts = |ca: &&Certificate| {
            let at = leaf.not_before.max(ca.not_before);
            connectivity::admits(std::slice::from_ref(ca), chain, at)
        };
        let accepted: Vec<_> = known.iter().map(|ca| u8::from(accepts(ca))).collect();
        let by_names = is_constrained || above.iter().any(constrains_names);
        if let Some(mut key) = equivalence_key(chain, by_names).filter(|_| accepted.contains(&1)) {
            key.push(u8::from(by_names));
            key.extend(accepted);
            keys.insert(leaf.fingerprint.clone(), key);
        }
    }
    keys
}
