//! The workloads of TrustConsumers: until they are restarted they use an earlier version, regardless of the propagation
//! delay.

use super::blockers::Pause;
use super::history::{View, holds, verifies_to_the_end};
use super::snapshot::{LoadedTrust, Snapshot, TrustLoader};
use crate::api::{StepName, Wait};
use crate::rotation::journal::{Journal, Version};
use crate::trust::content_hash;

/// Records which replaced contents TrustConsumers may still use.
pub(super) fn record(snapshot: &Snapshot<'_>, journal: &mut Journal) {
    let clients = journal.clients.values_mut().flat_map(|client| &mut client.versions);
    journal.gateways.iter_mut().chain(clients).for_each(|version| version.seen.consumers.clear());
    for loader in &snapshot.trust_loaders {
        let versions = match &loader.object {
            LoadedTrust::Managed => &mut journal.gateways,
            LoadedTrust::Client(name) => match journal.clients.get_mut(name) {
                Some(client) => &mut client.versions,
                None => continue,
            },
        };
        let is_loaded = |version: &Version| loader.loaded.as_ref() == Some(&content_hash(&version.trust));
        // For two versions with the same CAs it does not matter which one was loaded.
        let loaded = versions.iter().rposition(is_loaded).unwrap_or(0);
        let earlier = versions[loaded..].iter_mut().filter(|version| version.replaced.is_some());
        earlier.for_each(|version| version.seen.consumers.push(loader.name.clone()));
    }
}

/// The waits for TrustConsumers that block a step.
pub(super) fn waits(view: &View<'_>) -> Vec<Wait> {
    let serves_old = |version: &Version| {
        !version.chain.is_empty() && !verifies_to_the_end(&view.server_issuers, &version.chain, view.now)
    };
    let of_gateways = |version: &Version| match holds(&version.trust, &view.client_issuers) {
        false => Some(view.gateway_step),
        true => serves_old(version).then_some(StepName::DropOldCA),
    };
    let of_clients = |version: &Version| {
        (!holds(&version.trust, &view.server_issuers)).then_some(StepName::SwitchServingCertificate)
    };
    let blocks = |loader: &TrustLoader| match &loader.object {
        LoadedTrust::Managed => {
            let mut used = view.gateways_in_use.iter().filter(|version| version.seen.consumers.contains(&loader.name));
            used.find_map(|version| of_gateways(version))
        }
        LoadedTrust::Client(name) => {
            let is_used =
                |(client, version): &&(&str, &Version)| client == name && version.seen.consumers.contains(&loader.name);
            view.clients_in_use.iter().filter(is_used).find_map(|(_, version)| of_clients(version))
        }
    };
    let wait = |loader: &TrustLoader| {
        let what = match &loader.object {
            LoadedTrust::Managed => format!("Secret {}", view.entry.managed_name()),
            LoadedTrust::Client(name) => format!("what {name} read"),
        };
        let reason = format!("TrustConsumer {} may have earlier CAs of {what}. {}", loader.name, loader.reason);
        let pause = Pause { until: None, reason, needs_action: loader.needs_action };
        blocks(loader).map(|step| pause.wait(step))
    };
    view.snapshot.trust_loaders.iter().filter_map(wait).collect()
}
