//! The effect of revocation lists on the clients of a bundle's CAs. As soon as the Secret has a revocation list, or any text under the key for them,
//! the proxy requires a valid one of each CA on the path (`X509_V_FLAG_CRL_CHECK_ALL`), and refuses other clients.

use std::borrow::Cow;

use jiff::Timestamp;

use super::chain::{Budget, Crl, Refused, Store};
use super::{Certificate, Text};

/// The lists in use, and the CAs whose clients they block.
pub(crate) struct Revocation {
    /// The key that holds the lists.
    pub(crate) key: &'static str,
    /// All of them: those in the bundle, then those of `ca.crl`.
    pub(crate) lists: Vec<Crl>,
    /// CAs whose clients are all refused: the index among the bundle's entries, and the reason.
    pub(crate) blocked: Vec<(usize, Refused)>,
    /// The issuers of lists that are not of a CA in the bundle.
    pub(crate) unrelated: Vec<String>,
    /// The number of CAs of the bundle that are valid now.
    pub(crate) valid: usize,
}

/// The CAs of a bundle whose clients are all refused if these lists are in use.
pub(crate) fn blocked_by_lists<'c>(bundle: &'c [Certificate], lists: &[Crl], now: Timestamp) -> Vec<&'c Certificate> {
    let (store, mut budget) = (Store::new(bundle, Some(lists)), Budget::for_lists());
    bundle.iter().filter(|ca| store.lists_admit_clients_of(ca, now, &mut budget).is_err()).collect()
}

impl Revocation {
    /// Judges the lists of a bundle; `None` if the proxy checks no lists, or rejects them.
    pub(crate) fn of(ca: &Text, crl: Option<&Text>, now: Timestamp) -> Option<Self> {
        let lists = match crl {
            None if ca.bundle.crls.is_empty() => return None,
            None => Cow::Borrowed(&ca.bundle.crls),
            Some(crl) if !crl.is_loaded() => return None,
            Some(crl) => Cow::Owned([&ca.bundle.crls[..], &crl.bundle.crls].concat()),
        };
        let store = Store::new(ca.bundle.entries.iter().map(|entry| &entry.certificate), Some(&lists));
        let mut budget = Budget::for_lists();
        let valid = ca.bundle.entries.iter().enumerate().filter(|(_, entry)| entry.certificate.is_valid_at(now));
        let valid: Vec<_> = valid.collect();
        let refused = |certificate, budget: &mut Budget| store.lists_admit_clients_of(certificate, now, budget).err();
        let blocked = valid.iter().filter_map(|(at, entry)| Some((*at, refused(&entry.certificate, &mut budget)?)));
        let blocked = blocked.collect();
        let (key, valid, unrelated) = (crl.map_or(ca.key, |crl| crl.key), valid.len(), store.unrelated_lists());
        Some(Self { key, blocked, unrelated, valid, lists: lists.into_owned() })
    }

    /// Whether no CA has a list: `crl-missing` reports that once, instead of a finding for each CA.
    pub(crate) fn is_of_no_ca(&self) -> bool {
        let all_blocked = self.valid > 0 && self.blocked.len() == self.valid;
        self.lists.is_empty()
            || all_blocked && self.lists.iter().all(|list| self.unrelated.iter().any(|of| of == list.issuer()))
    }
}
