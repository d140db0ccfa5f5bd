//! Revocation lists next to the CAs of gateways. As soon as there is one, Envoy refuses every client of a CA that has none (measured), so a new CA is
//! added only together with its list.

use super::history::View;
use super::snapshot::Snapshot;
use crate::rotation::SecretSummary;
use crate::rotation::name_list::few;
use crate::trust::{Certificate, blocked_by_lists};

/// The Secret whose lists the managed Secret has: the source Secret. If that has no key for them, the managed Secret keeps what it has, which can come
/// from before the agent took it over.
pub(in crate::rotation) fn list_source<'a>(snapshot: &Snapshot<'a>) -> Option<&'a SecretSummary> {
    let source = snapshot.source.filter(|source| source.revocation.is_some() || source.has_no_lists);
    source.or(snapshot.managed)
}

/// A bundle without the CAs whose clients all would be refused for want of a list, unless they are already in use.
pub(super) struct ListedBundle {
    pub(super) trust: Vec<Certificate>,
    /// Why the others are left out, and what to do.
    pub(super) left_out: Option<String>,
}

impl ListedBundle {
    /// `used`: the CAs that are in use. `lists`: what has the lists, and its name.
    pub(super) fn of(
        view: &View<'_>,
        bundle: &[Certificate],
        used: &[Certificate],
        lists: (Option<&SecretSummary>, &str),
    ) -> Self {
        let (Some(SecretSummary { revocation: Some(_), lists, .. }), object) = lists else {
            return Self { trust: bundle.to_vec(), left_out: None };
        };
        let blocked = blocked_by_lists(bundle, lists, view.now);
        let (left_out, trust): (Vec<_>, Vec<_>) =
            bundle.iter().partition(|ca| !used.contains(ca) && blocked.contains(ca));
        let names = few(left_out.into_iter().map(|ca| ca.subject.as_str()));
        let left_out = names.map(|names| {
            format!(
                "Revocation lists are in use, and none covers {names}, so gateways would refuse every client of it. Add its list to ca.crl \
                 of {object} (crl next to cacert), or set that key to an empty value to revoke nothing"
            )
        });
        Self { trust: trust.into_iter().cloned().collect(), left_out }
    }
}
