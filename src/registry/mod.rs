//! What all GatewaySecrets together claim: which root is renamed to which managed Secret, and where that is allowed now.
//!
//! A rename needs proof: only this room makes a [`Rename`], and only for a GatewaySecret that is Ready, so a rewrite that
//! has not passed a trust decision does not type-check.

mod entry;
mod policies;
mod resolution;
mod rewrite_blocker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use entry::Entry;
pub use policies::{Policies, PolicyKey};
pub use resolution::{CLUSTER_RESOURCE_NAMESPACE, CertManagerObjects, IssuerKey, ResolutionError};
pub use rewrite_blocker::RewriteBlocker;

use crate::api::TrustSourceUse;
use crate::api::names::managed_config_map_name;
use crate::trust::{Duty, SecretUsage};

/// A snapshot of all GatewaySecrets. Memory grows with GatewaySecrets, never with Secrets.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Entry>,
    /// By namespace, every root and managed Secret's name to the entry that claims it.
    claims: HashMap<String, HashMap<String, (usize, Role)>>,
    /// A root's name to the winning entries, in any namespace.
    roots: HashMap<String, Vec<usize>>,
    /// By namespace, the name of every ConfigMap of `spec.clients.caConfigMapNames` to the entry that keeps another from it.
    config_maps: HashMap<String, HashMap<String, usize>>,
    /// A losing entry to the one that holds its name.
    lost: BTreeMap<usize, usize>,
    /// Namespace and name of those that could not be read, and are no entries where they never could.
    unread: BTreeSet<(String, String)>,
}

/// What a Secret is to a GatewaySecret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Written by the issuer.
    Root,
    /// Kept by trustspan, used by gateways.
    Managed,
    /// `<root>-cacert` or `<managed>-cacert`: Istio takes CAs from it first.
    CacertSibling,
}

/// Where a reference to a Secret is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In one namespace.
    Namespace(&'a str),
    /// In one namespace, from a Gateway in another, which a ReferenceGrant must allow.
    Granted {
        /// Namespace of the Secret.
        namespace: &'a str,
        /// Namespace of the Gateway.
        from: &'a str,
    },
    /// In every namespace that holds a workload with these labels: an Istio Gateway's `spec.selector`.
    Selected(Arc<BTreeMap<&'a str, &'a str>>),
    /// In the namespace of every gateway, from an Istio DestinationRule without a selector.
    AllGateways {
        /// Namespace of the rule.
        from: &'a str,
    },
}

/// Leave to name what the agent keeps instead of what its owner wrote: the managed Secret for the root, a managed ConfigMap for the
/// one that it is kept from. Only the registry makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    managed: &'a str,
}

impl<'a> Rename<'a> {
    /// The name of what is kept.
    pub fn managed_name(&self) -> &'a str {
        self.managed
    }
}

impl Registry {
    /// Builds the snapshot. Of two GatewaySecrets that claim the same name in a namespace, as root or as managed Secret,
    /// the older wins (`creationTimestamp`, then name), and the other has no effect.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        entries.sort_by(|a, b| a.seniority().cmp(&b.seniority()));
        let mut registry = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let names = [(entry.source_name(), Role::Root), (entry.managed_name(), Role::Managed)];
            let claims = registry.claims.entry(entry.namespace.clone()).or_default();
            if let Some((holder, _)) = names.iter().find_map(|(name, _)| claims.get(*name)) {
                registry.lost.insert(index, *holder);
                continue;
            }
            if entry.doubled_name().is_some() {
                // The CRD refuses it; a manifest can still say it.
                registry.lost.insert(index, index);
                continue;
            }
            for (name, role) in names.into_iter().filter(|(name, _)| !name.is_empty()) {
                claims.insert(name.to_owned(), (index, role));
            }
            registry.roots.entry(entry.source_name().to_owned()).or_default().push(index);
            let config_maps = registry.config_maps.entry(entry.namespace.clone()).or_default();
            for name in &entry.spec.clients.ca_config_map_names {
                config_maps.entry(name.clone()).or_insert(index);
            }
        }
        registry.entries = entries;
        registry
    }

    /// The same beside GatewaySecrets that cannot be read, by namespace and name.
    pub fn with_unread(mut self, unread: impl IntoIterator<Item = (String, String)>) -> Self {
        self.unread.extend(unread);
        self
    }

    /// Whether there is a GatewaySecret of that name, readable or not.
    pub fn knows(&self, namespace: &str, name: &str) -> bool {
        let is_named = |entry: &Entry| entry.namespace == namespace && entry.name == name;
        self.entries.iter().any(is_named) || self.unread.contains(&(namespace.to_owned(), name.to_owned()))
    }

    /// All GatewaySecrets that could be read, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The older GatewaySecret that holds a name which `entry` claims too, or `entry` itself when two of its names are one.
    pub fn conflict(&self, entry: &Entry) -> Option<&Entry> {
        let index = self.entries.iter().position(|e| e.namespace == entry.namespace && e.name == entry.name)?;
        self.lost.get(&index).map(|holder| &self.entries[*holder])
    }

    /// What a Secret is to which GatewaySecret.
    pub fn role(&self, namespace: &str, name: &str) -> Option<(&Entry, Role)> {
        let claims = self.claims.get(namespace)?;
        let claim = |name: &str| claims.get(name);
        if let Some((index, role)) = claim(name) {
            return Some((&self.entries[*index], *role));
        }
        let (index, _) = claim(name.strip_suffix(crate::api::names::CACERT_SUFFIX)?)?;
        Some((&self.entries[*index], Role::CacertSibling))
    }

    /// What a Secret is for. What gateways serve for one GatewaySecret is that, though another one has it for a CA.
    pub fn duty(&self, namespace: &str, name: &str) -> Duty<'static> {
        if let Some((entry, _)) = self.role(namespace, name) {
            return entry.duty(name);
        }
        let entries = self.entries.iter().filter(|entry| entry.namespace == namespace);
        let mut duties = entries.map(|entry| entry.duty(name));
        duties.find(|duty| duty.usage != SecretUsage::Serving).unwrap_or_default()
    }

    /// The GatewaySecrets whose gateways take their clients' CAs from an object beside the managed Secret, with the first that does.
    pub fn readers_of<'r>(
        &'r self,
        kind: &'r str,
        namespace: &'r str,
        name: &'r str,
    ) -> impl Iterator<Item = (&'r Entry, &'r TrustSourceUse)> {
        let is_it = move |source: &&TrustSourceUse| {
            (source.kind.as_str(), source.namespace.as_str(), source.name.as_str()) == (kind, namespace, name)
        };
        self.entries.iter().filter_map(move |entry| Some((entry, entry.status.trust_sources.iter().find(is_it)?)))
    }

    /// The GatewaySecret whose managed Secret this is.
    pub fn managed(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.role(namespace, name).filter(|(_, role)| *role == Role::Managed).map(|(entry, _)| entry)
    }

    /// Whether a name, looked up at a place, is a managed root, and if so whether it may be renamed now.
    pub fn rename(&self, place: &Place<'_>, name: &str) -> Option<Result<Rename<'_>, RewriteBlocker>> {
        match place {
            Place::Namespace(namespace) => self.root(namespace, name).map(ready),
            Place::Granted { namespace, from } => self.root(namespace, name).map(|entry| {
                let granted = match &entry.status.ungranted_namespaces {
                    Some(ungranted) => !ungranted.iter().any(|ungranted| ungranted == from),
                    None => match entry.status.ungranted_namespace_count {
                        Some(count) => return Err(RewriteBlocker::unlisted(entry, count)),
                        None => false,
                    },
                };
                if !granted {
                    let managed = format!("Secret {}", entry.managed_name());
                    return Err(ungranted(from, namespace, managed));
                }
                ready(entry)
            }),
            Place::Selected(selector) => {
                let candidates = self.candidates(selector, name);
                (!candidates.is_empty()).then(|| everywhere(&candidates, name))
            }
            // A rule in another namespace may be for gateways of its own, which have no managed Secret.
            Place::AllGateways { from } => {
                let candidates = self.with_root(name);
                candidates.iter().any(|entry| entry.namespace == *from).then(|| same_name(candidates, name))
            }
        }
    }

    /// Whether a ConfigMap at a place is one from which the agent keeps another, and if so whether that may be named now.
    pub fn rename_config_map(&self, place: &Place<'_>, name: &str) -> Option<Result<Rename<'_>, RewriteBlocker>> {
        let entry = self.keeper_of(place, name)?;
        if let Some(reason) = entry.unready() {
            return Some(Err(RewriteBlocker::not_ready(entry, reason)));
        }
        let managed = managed_config_map_name(name);
        let Some(kept) = entry.status.managed_config_maps.iter().find(|kept| kept.name == managed) else {
            let (name, config_map) = (entry.name.clone(), name.to_owned());
            return Some(Err(RewriteBlocker::NoConfigMap { name, config_map, managed }));
        };
        Some(match place {
            Place::Granted { namespace, from }
                if kept.ungranted_namespaces.iter().any(|ungranted| ungranted == from) =>
            {
                Err(ungranted(from, namespace, format!("ConfigMap {managed}")))
            }
            _ => Ok(Rename { managed: &kept.name }),
        })
    }

    /// The GatewaySecret that keeps another ConfigMap from one at a place.
    pub fn keeper_of(&self, place: &Place<'_>, config_map: &str) -> Option<&Entry> {
        let (Place::Namespace(namespace) | Place::Granted { namespace, .. }) = place else { return None };
        self.config_maps.get(*namespace)?.get(config_map).map(|index| &self.entries[*index])
    }

    /// Why a pod that loads a CA from a root keeps to it: with a CA of the clients' own the managed bundle holds that one, while the
    /// root holds the CA behind its leaf. In both modes, since a change of mode changes no workload.
    pub fn other_ca(&self, namespace: &str, root: &str) -> Option<RewriteBlocker> {
        let entry = self.root(namespace, root).filter(|entry| entry.spec.clients.ca_secret_ref.is_some())?;
        Some(RewriteBlocker::OtherCa { root: root.to_owned(), managed: entry.managed_name().to_owned() })
    }

    /// The GatewaySecret whose source or managed Secret a name at a place is.
    pub fn user_of(&self, place: &Place<'_>, name: &str) -> Option<&Entry> {
        match place {
            Place::Namespace(namespace) | Place::Granted { namespace, .. } => {
                let is_pair = |role: &Role| *role != Role::CacertSibling;
                self.role(namespace, name).filter(|(_, role)| is_pair(role)).map(|(entry, _)| entry)
            }
            Place::Selected(_) | Place::AllGateways { .. } => {
                self.entries.iter().enumerate().find_map(|(index, entry)| {
                    let is_asked = match place {
                        Place::Selected(selector) => entry.is_asked_for(selector),
                        _ => true,
                    };
                    let is_named = entry.source_name() == name || entry.managed_name() == name;
                    (is_asked && is_named && !self.lost.contains_key(&index)).then_some(entry)
                })
            }
        }
    }

    /// The managed names that a root stands for at a place, whether or not a rename is allowed now. An object that already
    /// names one of them keeps it while the rename is held.
    pub fn counterparts(&self, place: &Place<'_>, name: &str) -> Vec<&str> {
        match place {
            Place::Namespace(namespace) | Place::Granted { namespace, .. } => {
                self.root(namespace, name).map(Entry::managed_name).into_iter().collect()
            }
            Place::Selected(selector) => self.candidates(selector, name).into_iter().map(Entry::managed_name).collect(),
            Place::AllGateways { .. } => self.with_root(name).into_iter().map(Entry::managed_name).collect(),
        }
    }

    fn root(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.role(namespace, name).filter(|(_, role)| *role == Role::Root).map(|(entry, _)| entry)
    }

    /// The GatewaySecrets that a selector asks for: it names at least their workload labels. What they know of namespaces
    /// then covers every workload that the selector picks.
    fn candidates(&self, selector: &BTreeMap<&str, &str>, root: &str) -> Vec<&Entry> {
        let mut candidates = self.with_root(root);
        candidates.retain(|entry| entry.is_asked_for(selector));
        candidates
    }

    /// The GatewaySecrets of a source, in any namespace.
    fn with_root(&self, root: &str) -> Vec<&Entry> {
        let all = self.roots.get(root).into_iter().flatten().map(|index| &self.entries[*index]);
        all.filter(|entry| !entry.spec.workload_labels.is_empty()).collect()
    }
}

fn ungranted(from: &str, namespace: &str, managed: String) -> RewriteBlocker {
    RewriteBlocker::Ungranted { from: from.to_owned(), namespace: namespace.to_owned(), managed }
}

/// A rename at one namespace: the GatewaySecret is Ready, and no `-cacert` sibling would be left behind.
fn ready(entry: &Entry) -> Result<Rename<'_>, RewriteBlocker> {
    if let Some(reason) = entry.unready() {
        return Err(RewriteBlocker::not_ready(entry, reason));
    }
    if let Some(sibling) = entry.status.cacert_sibling.as_ref().filter(|sibling| !sibling.missing.is_empty()) {
        let managed = entry.managed_name().to_owned();
        return Err(RewriteBlocker::Sibling { sibling: sibling.name.clone(), managed, missing: sibling.missing.len() });
    }
    Ok(Rename { managed: entry.managed_name() })
}

/// A rename in every namespace that holds a selected workload: each must map the root to the same Ready name.
fn everywhere<'a>(candidates: &[&'a Entry], root: &str) -> Result<Rename<'a>, RewriteBlocker> {
    // Each observed list covers every selected workload, so their intersection does too; a GatewaySecret that declares
    // broad labels cannot widen it.
    let observed = candidates.iter().filter_map(|entry| entry.status.workload_namespaces.as_ref());
    let namespaces = observed
        .map(|list| list.iter().map(String::as_str).collect::<BTreeSet<_>>())
        .reduce(|all, list| &all & &list)
        .ok_or_else(|| unobserved(candidates, root))?;
    if namespaces.is_empty() {
        return Err(RewriteBlocker::NoWorkload { root: root.to_owned() });
    }
    let mapped = namespaces.into_iter().map(|namespace| {
        let entry = candidates.iter().find(|entry| entry.namespace == namespace);
        entry.copied().ok_or_else(|| RewriteBlocker::Unmapped { root: root.to_owned() })
    });
    same_name(mapped.collect::<Result<Vec<_>, _>>()?, root)
}

/// A rename to the one name that these GatewaySecrets have for a root; each must be Ready.
fn same_name<'a>(entries: impl IntoIterator<Item = &'a Entry>, root: &str) -> Result<Rename<'a>, RewriteBlocker> {
    let mut names = BTreeMap::new();
    for entry in entries {
        let rename = ready(entry)?;
        names.insert(rename.managed, rename);
    }
    match names.pop_first() {
        Some((_, rename)) if names.is_empty() => Ok(rename),
        _ => Err(RewriteBlocker::Differs { root: root.to_owned() }),
    }
}

/// Why it is not known where the selected workloads run.
fn unobserved(candidates: &[&Entry], root: &str) -> RewriteBlocker {
    let unlisted = candidates.iter().find_map(|entry| Some((entry, entry.status.workload_namespace_count?)));
    unlisted.map_or_else(
        || RewriteBlocker::Unobserved { root: root.to_owned() },
        |(entry, count)| RewriteBlocker::unlisted(entry, count),
    )
}

#[cfg(test)]
pub(crate) mod tests;
