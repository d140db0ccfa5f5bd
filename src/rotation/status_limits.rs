//! Limits on the size of a status (ADR 0014). Lists that are only shown to people are shortened, with a fair share for
//! each namespace, and their length is reported. What verdicts use is complete or marked as unknown, so that a verdict
//! is then the stricter one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use jiff::Timestamp;

use super::condition_types::{COMPLETE, MESSAGE, remove, set};
use super::name_list::counted;
use crate::api::{ConditionStatus, GatewaySecretStatus, GatewayUse, Leaf};
use crate::registry::Entry;
use crate::text::{bounded, clipped};

/// Items and bytes (of JSON) of one list.
#[derive(Clone, Copy)]
struct Limit {
    items: usize,
    bytes: usize,
}

const fn limit(items: usize, kibibytes: usize) -> Limit {
    Limit { items, bytes: kibibytes << 10 }
}

// Less than 256 KiB together with the messages of a dozen conditions. The API server stores up to 1.5 MiB (etcd's
// --max-request-bytes).
const GATEWAYS: Limit = limit(200, 32);
const HOSTS: Limit = limit(2_000, 48);
const LAGGING: Limit = limit(1_000, 64);
const UNKNOWN_CLIENTS: Limit = limit(1_000, 64);
const CUT_OFF_BY_COPY: Limit = limit(200, 16);
const WAITS: Limit = limit(20, 20);
const WORKLOAD_NAMESPACES: Limit = limit(500, 24);
const UNGRANTED_NAMESPACES: Limit = limit(500, 16);
/// Bytes of one host. DNS names have at most 253 (RFC 1035), and a Gateway may prefix a namespace.
const HOST: usize = 320;
/// Bytes that the leaves of clients may take.
const LEAVES: usize = 640 << 10;
/// Items that lists for people keep in a reduced status.
const REDUCED: usize = 20;

/// A number of items, for the status.
pub(super) fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

/// Shortens the lists of a status, which has their counts already, and reports what verdicts lack because of that.
pub fn fit(entry: &Entry, status: &mut GatewaySecretStatus, now: Timestamp) {
    if let Some(gateways) = &mut status.gateways {
        *gateways = fair_gateways(std::mem::take(gateways), &entry.namespace);
    }
    status.lagging.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
    keep_first(&mut status.lagging, LAGGING);
    keep_first(&mut status.unknown_clients, UNKNOWN_CLIENTS);
    if let Some(names) = &mut status.cut_off_by_copy {
        keep_first(names, CUT_OFF_BY_COPY);
    }
    status.waits.iter_mut().for_each(|wait| wait.reason = bounded(&wait.reason, MESSAGE));
    status.waits.sort_by_key(|wait| !wait.needs_action);
    keep_first(&mut status.waits, WAITS);
    for (list, limit) in [
        (&mut status.workload_namespaces, WORKLOAD_NAMESPACES),
        (&mut status.ungranted_namespaces, UNGRANTED_NAMESPACES),
    ] {
        list.take_if(|list| keep_first(list, limit));
    }
    report_missing(entry, status, now);
    // Those of an earlier version, too.
    status.conditions.iter_mut().for_each(|condition| condition.message = clipped(&condition.message, MESSAGE));
}

/// What to write when the API server rejects the complete status for its size: what verdicts need, conditions, and the first items
/// of all other lists.
pub fn reduced(status: &GatewaySecretStatus) -> GatewaySecretStatus {
    let mut status = status.clone();
    if let Some(gateways) = &mut status.gateways {
        // An empty list would mean that no Gateway uses the Secret.
        gateways.truncate(REDUCED);
        gateways.iter_mut().for_each(|gateway| gateway.hosts.clear());
    }
    status.waits.truncate(REDUCED);
    status.lagging.truncate(REDUCED);
    status.cut_off_by_copy.iter_mut().for_each(|names| names.truncate(REDUCED));
    status.cacert_sibling.iter_mut().for_each(|sibling| sibling.missing.truncate(REDUCED));
    status
}

/// The leaves that fit, those of most clients first, and the number of clients of the others.
pub(super) fn fit_leaves(mut leaves: Vec<Leaf>) -> (Vec<Leaf>, u32) {
    let clients = |leaves: &[Leaf]| leaves.iter().map(Leaf::count).sum::<usize>();
    let all = clients(&leaves);
    leaves.sort_by_key(|leaf| Reverse(leaf.count()));
    let mut left = LEAVES;
    leaves.retain(|leaf| {
        let rest = left.checked_sub(bytes(leaf));
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    leaves.sort_by(|a, b| a.name.cmp(&b.name));
    let unlisted = count(all - clients(&leaves));
    (leaves, unlisted)
}

fn report_missing(entry: &Entry, status: &mut GatewaySecretStatus, now: Timestamp) {
    let count_of_unlisted = |list: &Option<Vec<String>>, count: Option<u32>| count.filter(|_| list.is_none());
    let workloads = count_of_unlisted(&status.workload_namespaces, status.workload_namespace_count);
    let grants = count_of_unlisted(&status.ungranted_namespaces, status.ungranted_namespace_count);
    // Condition ClientsCurrent reports those that are unknown.
    let unlisted = status.unlisted_clients.unwrap_or_default() as usize;
    let clients = unlisted.checked_sub(status.unknown_clients.len()).filter(|count| *count > 0);
    let reasons = [
        clients.map(|count| {
            format!(
                "Certificates of {} do not fit into the status, so no CA may leave the bundle. Declare fewer clients for this GatewaySecret, or \
                 give their certificates the same subject and names.",
                counted(count, "declared client")
            )
        }),
        workloads.map(|count| {
            format!(
                "Workloads run, or ran, in {count} namespaces, more than the status can list, so no Istio Gateway is rewritten. Remove \
                 the workload labels there, then remove workloadNamespaceCount from the status."
            )
        }),
        grants.map(|count| {
            format!(
                "ReferenceGrants let {count} namespaces use Secret {} but not Secret {}, more than the status can list, so no Gateway of \
                 another namespace is rewritten. Add the managed Secret to the grants.",
                entry.source_name(),
                entry.managed_name()
            )
        }),
    ];
    let reasons: Vec<_> = reasons.into_iter().flatten().collect();
    if reasons.is_empty() {
        remove(status, COMPLETE);
    } else {
        set(entry, status, COMPLETE, (ConditionStatus::False, "TooLarge", reasons.join(" ")), now);
    }
}

/// Gateways, then their hosts, both shared fairly between namespaces.
fn fair_gateways(mut gateways: Vec<GatewayUse>, own: &str) -> Vec<GatewayUse> {
    let all_hosts: Vec<_> = gateways.iter_mut().map(|gateway| std::mem::take(&mut gateway.hosts)).collect();
    let namespaces: Vec<_> = gateways.iter().map(|gateway| gateway.namespace.clone()).collect();
    let costs = gateways.iter().zip(&namespaces).map(|(gateway, namespace)| (namespace.as_str(), bytes(gateway)));
    let kept = fair(costs, own, GATEWAYS);
    let hosts = kept.iter().flat_map(|at| all_hosts[*at].iter().map(|host| (*at, host)));
    let hosts: Vec<_> = hosts.filter(|(_, host)| host.len() <= HOST).collect();
    let costs = hosts.iter().map(|(at, host)| (namespaces[*at].as_str(), bytes(host)));
    for index in fair(costs, own, HOSTS) {
        let (at, host) = hosts[index];
        gateways[at].hosts.push(host.clone());
    }
    let mut at = 0;
    gateways.retain(|_| {
        at += 1;
        kept.binary_search(&(at - 1)).is_ok()
    });
    gateways
}

/// The items that fit into a limit, in their order; each has a namespace and a size. The next item always comes from
/// the namespace with the fewest bytes so far, so that a large namespace does not reduce the share of others. The own
/// namespace gets half of the limit first.
fn fair<'n>(items: impl Iterator<Item = (&'n str, usize)>, own: &str, limit: Limit) -> Vec<usize> {
    let mut by_namespace: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (at, (namespace, bytes)) in items.enumerate() {
        by_namespace.entry(namespace).or_default().push((at, bytes));
    }
    let head_start = limit.bytes / 2;
    let mut turns: BinaryHeap<_> = by_namespace
        .into_iter()
        .map(|(namespace, items)| {
            let taken = if namespace == own { 0 } else { head_start };
            Turn { order: Reverse((taken, namespace)), items: items.into_iter() }
        })
        .collect();
    let mut kept = Vec::new();
    let mut left = limit.bytes;
    while let Some(Turn { order: Reverse((taken, namespace)), mut items }) = turns.pop() {
        let Some((at, bytes)) = items.next().filter(|(_, bytes)| *bytes <= left && kept.len() < limit.items) else {
            continue;
        };
        kept.push(at);
        left -= bytes;
        turns.push(Turn { order: Reverse((taken + bytes, namespace)), items });
    }
    kept.sort_unstable();
    kept
}

/// A namespace with items left, ordered by the bytes that it has so far.
struct Turn<'n> {
    order: Reverse<(usize, &'n str)>,
    items: std::vec::IntoIter<(usize, usize)>,
}

impl Ord for Turn<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

impl PartialOrd for Turn<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Turn<'_> {}

/// Keeps the first items within a limit. Returns whether others were removed.
fn keep_first<T: serde::Serialize>(list: &mut Vec<T>, limit: Limit) -> bool {
    let mut left = limit.bytes;
    let fits = |item: &T| {
        let bytes = bytes(item);
        let fits = bytes <= left;
        left = left.saturating_sub(bytes);
        fits
    };
    let kept = list.iter().take(limit.items).map(fits).take_while(|fits| *fits).count();
    let is_cut = kept < list.len();
    list.truncate(kept);
    is_cut
}

/// Bytes of an item of a list in JSON, with the comma.
fn bytes(item: &impl serde::Serialize) -> usize {
    serde_json::to_string(item).map_or(0, |text| text.len() + 1)
}

#[cfg(test)]
mod tests;
