//! TrustConsumers and MirroredFiles: until they report a later version, an earlier one is in use, regardless of the propagation
//! delay.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::history::{View, holds, verifies_to_the_end};
use super::pause::Pause;
use super::snapshot::{LoadedTrust, REPORT_TIMEOUT, Snapshot, TrustLoader};
use crate::api::{StepName, Wait};
use crate::rotation::journal::{Journal, Version};
use crate::rotation::name_list::few;
use crate::trust::content_hash;

/// In the journal, all MirroredFiles that have not reported a later version: there may be one for each node of the cluster.
const FILES: &str = "files on nodes";

/// Records which replaced contents TrustConsumers and MirroredFiles may still have.
pub(super) fn record(snapshot: &Snapshot<'_>, journal: &mut Journal, now: Timestamp) {
    let clients = journal.clients.values_mut().flat_map(|client| &mut client.versions);
    let all = journal.gateways.iter_mut().chain(clients);
    let before: Vec<_> = all.map(|version| std::mem::take(&mut version.seen.consumers)).collect();
    for loader in &snapshot.trust_loaders {
        let versions = match &loader.object {
            LoadedTrust::Managed => &mut journal.gateways,
            LoadedTrust::Client(name) => match journal.clients.get_mut(name) {
                Some(client) => &mut client.versions,
                None => continue,
            },
        };
        let name = if loader.is_read_by_others { FILES } else { &loader.name };
        let loaded = loaded(loader, versions);
        for version in versions[loaded..].iter_mut().filter(|version| version.replaced.is_some()) {
            if !version.seen.consumers.iter().any(|known| known == name) {
                version.seen.consumers.push(name.to_owned());
            }
        }
    }
    let clients = journal.clients.values_mut().flat_map(|client| &mut client.versions);
    for (version, before) in journal.gateways.iter_mut().chain(clients).zip(before) {
        let has_files = |consumers: &[String]| consumers.iter().any(|name| name == FILES);
        if has_files(&before) && !has_files(&version.seen.consumers) {
            // The readers of the last file have a later version only since now. This clock is used: the one of a node may be wrong.
            version.replaced = Some(now);
        }
    }
}

/// The newest version that was certainly loaded, or else the first. For two versions with the same CAs it does not matter which one.
fn loaded(loader: &TrustLoader, versions: &[Version]) -> usize {
    let is_loaded = |version: &Version| loader.loaded.as_ref() == Some(&content_hash(&version.trust));
    versions.iter().rposition(is_loaded).unwrap_or(0)
}

/// The waits for TrustConsumers and MirroredFiles that block a step.
pub(super) fn waits(view: &View<'_>) -> Vec<Wait> {
    let serves_old = |version: &Version| {
        !version.chain.is_empty() && !verifies_to_the_end(&view.server_issuers, &version.chain, view.now)
    };
    let of_gateways = |version: &Version| match holds(&version.trust, &view.client_issuers, view.now) {
        false => Some(view.gateway_step),
        true => serves_old(version).then_some(StepName::DropOldCA),
    };
    let of_clients = |version: &Version| {
        (!holds(&version.trust, &view.server_issuers, view.now)).then_some(StepName::SwitchServingCertificate)
    };
    // The step, and since when later content is there.
    let blocks = |loader: &TrustLoader| {
        let versions = match &loader.object {
            LoadedTrust::Managed => &view.journal.gateways,
            LoadedTrust::Client(name) => &view.journal.clients.get(name)?.versions,
        };
        let is_live = |version: &&Version| loader.object == LoadedTrust::Managed || version.is_live(view.now);
        let earlier = versions.get(loaded(loader, versions)..).unwrap_or_default().iter();
        let mut earlier = earlier.filter(|version| version.replaced.is_some()).filter(is_live);
        earlier.find_map(|version| {
            let step = match &loader.object {
                LoadedTrust::Managed => of_gateways(version),
                LoadedTrust::Client(_) => of_clients(version),
            };
            Some((step?, version.replaced))
        })
    };
    let what = |object: &LoadedTrust| match object {
        LoadedTrust::Managed => format!("Secret {}", view.entry.managed_name()),
        LoadedTrust::Client(name) => format!("what {name} read"),
    };
    let mut waits = Vec::new();
    let mut files: BTreeMap<_, Vec<(&TrustLoader, bool)>> = BTreeMap::new();
    for loader in &view.snapshot.trust_loaders {
        let Some((step, replaced)) = blocks(loader) else { continue };
        if loader.is_read_by_others {
            let is_overdue = replaced.is_some_and(|at| view.now.duration_since(at) >= REPORT_TIMEOUT);
            let needs_action = loader.needs_action || is_overdue;
            files.entry((step, what(&loader.object))).or_default().push((loader, needs_action));
            continue;
        }
        let reason = format!("{} may have earlier CAs of {}. {}", loader.name, what(&loader.object), loader.reason);
        waits.push(Pause { until: None, reason, needs_action: loader.needs_action }.wait(step));
    }
    for ((step, what), mut loaders) in files {
        // One that needs a person comes first.
        loaders.sort_by_key(|(loader, needs_action)| (!loader.needs_action, !needs_action, &loader.name));
        let Some((first, needs_action)) = loaders.first() else { continue };
        let names = few(loaders.iter().map(|(loader, _)| loader.name.clone())).unwrap_or_default();
        let reason = format!("{names} may have earlier CAs of {what}. {}", first.reason);
        waits.push(Pause { until: None, reason, needs_action: *needs_action }.wait(step));
    }
    waits
}
