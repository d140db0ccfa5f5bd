//! What revocation lists do to the clients of a bundle's CAs. As soon as one list is there, or a text for lists, the proxy
//! wants a valid one of each CA on the path (`X509_V_FLAG_CRL_CHECK_ALL`), and refuses who lacks it.

use std::borrow::Cow;

use jiff::Timestamp;

use super::Text;
use super::chain::{Budget, Crl, Refused, Store};

/// The lists in force, and whom they shut out.
pub(crate) struct Revocation {
    /// The key where lists are looked for.
    pub(crate) key: &'static str,
    /// All of them: those in the bundle, then those of `ca.crl`.
    pub(crate) lists: Vec<Crl>,
    /// CAs whose clients are all refused: the place among the bundle's entries, and why.
    pub(crate) blocked: Vec<(usize, Refused)>,
    /// The issuers of lists that are of no CA in the bundle.
    pub(crate) strange: Vec<String>,
    /// How many CAs of the bundle are valid now.
    pub(crate) valid: usize,
}

impl Revocation {
    /// Judges the lists of a bundle that the proxy takes; `None` when it looks at none, or takes none.
    pub(crate) fn of(ca: &Text, crl: Option<&Text>, now: Timestamp) -> Option<Self> {
        let lists = match crl {
            None if ca.bundle.crls.is_empty() => return None,
            None => Cow::Borrowed(&ca.bundle.crls),
            Some(crl) if !crl.is_loaded() => return None,
            Some(crl) => Cow::Owned([&ca.bundle.crls[..], &crl.bundle.crls].concat()),
        };
        let store = Store::new(ca.bundle.entries.iter().map(|entry| &entry.certificate), Some(&lists));
        let mut budget = Budget::for_lists();
        let valid = ca.bundle.entries.iter().enumerate().filter(|(_, entry)| {
            // BoringSSL does not count the last second in.
            entry.certificate.is_valid_at(now) && now < entry.certificate.not_after
        });
        let valid: Vec<_> = valid.collect();
        let refused = |certificate, budget: &mut Budget| store.lists_admit_clients_of(certificate, now, budget).err();
        let blocked = valid.iter().filter_map(|(at, entry)| Some((*at, refused(&entry.certificate, &mut budget)?)));
        let blocked = blocked.collect();
        let (key, valid, strange) = (crl.map_or(ca.key, |crl| crl.key), valid.len(), store.strange_lists());
        Some(Self { key, blocked, strange, valid, lists: lists.into_owned() })
    }

    /// Whether no CA at all has a list: `crl-missing` says so once, in the place of a finding for each.
    pub(crate) fn is_of_nobody(&self) -> bool {
        let missing = |(_, refused): &(usize, Refused)| matches!(refused, Refused::CrlMissing { .. });
        let all_blocked = self.valid > 0 && self.blocked.len() == self.valid;
        self.lists.is_empty() || all_blocked && self.blocked.iter().all(missing)
    }
}
