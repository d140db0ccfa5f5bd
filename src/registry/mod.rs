//! All GatewaySecrets together: which source Secret is rewritten to which managed Secret, and where this is allowed.
//!
//! Only this module creates a [`Rename`], and only for a GatewaySecret that is Ready. A rewrite needs a [`Rename`], so one without this
//! check does not compile.

mod entry;
mod policies;
mod resolution;
mod rewrite_blocker;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use entry::Entry;
pub use policies::{Policies, PolicyKey};
pub use resolution::{CLUSTER_RESOURCE_NAMESPACE, CertManagerObjects, IssuerKey, ResolutionError};
pub(crate) use resolution::{owner_of_certificate, rename_secret};
pub use rewrite_blocker::RewriteBlocker;

use crate::api::TrustSourceUse;
use crate::api::names::{CACERT_SUFFIX, managed_config_map_name};
use crate::trust::{GatewayUse, SecretUsage, UsageKind};

/// A snapshot of all GatewaySecrets. Memory grows with GatewaySecrets, never with Secrets.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// Shared with the snapshots before and after: of a thousand, one has changed.
    entries: Vec<Arc<Entry>>,
    /// By namespace and name of a source or managed Secret: the index of the GatewaySecret that claims it, and the
    /// Secret's role.
    claims: HashMap<String, HashMap<String, (usize, Role)>>,
    /// By name of a source or managed Secret: the indices of the GatewaySecrets that claim it in any namespace, oldest first, and its role.
    by_name: HashMap<String, Vec<(usize, Role)>>,
    /// By namespace and name of a ConfigMap of `spec.clients.caConfigMapNames`: the index of the GatewaySecret that
    /// copies it.
    config_maps: HashMap<String, HashMap<String, usize>>,
    /// By namespace and name of a GatewaySecret without effect: the index of the older one that claims one of its names.
    conflicts: HashMap<String, HashMap<String, usize>>,
    /// Namespace and name of GatewaySecrets that cannot be parsed.
    unread: BTreeSet<(String, String)>,
    served: ServedSecrets,
}

/// The Secrets that Gateways without a GatewaySecret serve, by namespace and name. The namespace is empty where any pod may be a gateway. Only
/// known where all objects are, as in a directory.
pub(crate) type ServedSecrets = BTreeMap<(String, String), ServedSecret>;

/// How Gateways use a Secret.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServedSecret {
    /// The Gateways that serve its certificate.
    pub(crate) gateways: Vec<GatewayUse>,
    /// Whether a Gateway takes its clients' CAs from it.
    pub(crate) verifies_clients: bool,
}

/// The role of a Secret for a GatewaySecret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The source Secret, written by the issuer.
    Source,
    /// The managed Secret, written by the agent and used by gateways.
    Managed,
    /// `<source>-cacert` or `<managed>-cacert`, whose CAs Istio prefers.
    CacertSibling,
}

/// The namespaces in which a reference to a Secret is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// One namespace.
    Namespace(&'a str),
    /// One namespace, for a Gateway in another one, which a ReferenceGrant must allow.
    Granted {
        /// Namespace of the Secret.
        namespace: &'a str,
        /// Namespace of the Gateway.
        from: &'a str,
    },
    /// Every namespace with a workload that has these labels: an Istio Gateway's `spec.selector`.
    Selected(Arc<BTreeMap<&'a str, &'a str>>),
    /// The namespaces of all gateways, for an Istio DestinationRule without a selector.
    AllGateways {
        /// Namespace of the rule.
        from: &'a str,
    },
}

/// Permission to rewrite a reference from a source Secret to the managed Secret, or from a ConfigMap to the managed one. Only the registry
/// creates one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    managed: &'a str,
}

impl<'a> Rename<'a> {
    /// The name of the managed object.
    pub fn managed_name(&self) -> &'a str {
        self.managed
    }
}

impl Registry {
    /// Builds the snapshot. Of two GatewaySecrets that claim the same name in a namespace, as source or as managed Secret or as the `-cacert`
    /// Secret of one, the older one is used (`creationTimestamp`, then name), and the other has no effect.
    pub fn new(entries: impl IntoIterator<Item = impl Into<Arc<Entry>>>) -> Self {
        let mut entries: Vec<Arc<Entry>> = entries.into_iter().map(Into::into).collect();
        entries.sort_by(|a, b| a.seniority().cmp(&b.seniority()));
        let mut registry = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let names = [(entry.source_name(), Role::Source), (entry.managed_name(), Role::Managed)];
            let claims = registry.claims.entry(entry.namespace.clone()).or_default();
            // Gateways take CAs from the `-cacert` Secret of a name, so that belongs to the name.
            let claim = |name: &str| {
                let pair = name.strip_suffix(CACERT_SUFFIX).and_then(|pair| claims.get(pair));
                claims.get(name).or(pair).or_else(|| claims.get(&format!("{name}{CACERT_SUFFIX}")))
            };
            let owner = names.iter().find_map(|(name, _)| claim(name)).map(|(owner, _)| *owner);
            // The CRD rejects a doubled name, but a manifest can contain it.
            if let Some(owner) = owner.or_else(|| entry.doubled_name().map(|_| index)) {
                let conflicts = registry.conflicts.entry(entry.namespace.clone()).or_default();
                conflicts.insert(entry.name.clone(), owner);
                continue;
            }
            for (name, role) in names.into_iter().filter(|(name, _)| !name.is_empty()) {
                claims.insert(name.to_owned(), (index, role));
                registry.by_name.entry(name.to_owned()).or_default().push((index, role));
            }
            let config_maps = registry.config_maps.entry(entry.namespace.clone()).or_default();
            for name in &entry.spec.clients.ca_config_map_names {
                config_maps.entry(name.clone()).or_insert(index);
            }
        }
        registry.entries = entries;
        registry
    }

    /// Adds GatewaySecrets that cannot be parsed, by namespace and name.
    pub fn with_unread(mut self, unread: impl IntoIterator<Item = (String, String)>) -> Self {
        self.unread.extend(unread);
        self
    }

    /// Adds the Secrets that Gateways serve.
    pub(crate) fn with_served(self, served: ServedSecrets) -> Self {
        Self { served, ..self }
    }

    /// How Gateways use a Secret that no GatewaySecret names, if that is known.
    pub(crate) fn served(&self, namespace: &str, name: &str) -> Option<&ServedSecret> {
        let of = |namespace: &str| self.served.get(&(namespace.to_owned(), name.to_owned()));
        of(namespace).or_else(|| of(""))
    }

    /// Whether a GatewaySecret of that name exists, even if it cannot be parsed.
    pub fn knows(&self, namespace: &str, name: &str) -> bool {
        let is_named = |entry: &Arc<Entry>| entry.namespace == namespace && entry.name == name;
        self.entries.iter().any(is_named) || self.unread.contains(&(namespace.to_owned(), name.to_owned()))
    }

    /// All GatewaySecrets that can be parsed, oldest first.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The other GatewaySecrets of the same namespace that have effect.
    pub fn others<'r>(&'r self, entry: &'r Entry) -> impl Iterator<Item = &'r Arc<Entry>> {
        let is_other = |other: &&Arc<Entry>| other.namespace == entry.namespace && other.name != entry.name;
        let others = self.entries.iter().filter(is_other);
        others.filter(|other| !other.being_deleted && self.conflict(other).is_none())
    }

    /// The older GatewaySecret that claims one of the names of `entry`, or `entry` itself if two of its names are the same.
    pub fn conflict(&self, entry: &Entry) -> Option<&Entry> {
        let owner = self.conflicts.get(&entry.namespace)?.get(&entry.name)?;
        Some(&self.entries[*owner])
    }

    /// The GatewaySecret that a Secret belongs to, and the Secret's role.
    pub fn role(&self, namespace: &str, name: &str) -> Option<(&Entry, Role)> {
        let claims = self.claims.get(namespace)?;
        let claim = |name: &str| claims.get(name);
        if let Some((index, role)) = claim(name) {
            return Some((&self.entries[*index], *role));
        }
        let (index, _) = claim(name.strip_suffix(CACERT_SUFFIX)?)?;
        Some((&self.entries[*index], Role::CacertSibling))
    }

    /// How a Secret is used. A Secret that gateways serve for one GatewaySecret counts as that, even if it is a CA's for another.
    pub fn usage(&self, namespace: &str, name: &str) -> SecretUsage<'static> {
        if let Some((entry, _)) = self.role(namespace, name) {
            return entry.usage(name);
        }
        let entries = self.entries.iter().filter(|entry| entry.namespace == namespace);
        let mut usages = entries.map(|entry| entry.usage(name));
        usages.find(|usage| usage.kind != UsageKind::Serving).unwrap_or_default()
    }

    /// The GatewaySecrets whose gateways use an object other than the managed Secret as a source of trust, each with that use.
    pub fn readers_of<'r>(
        &'r self,
        kind: &'r str,
        namespace: &'r str,
        name: &'r str,
    ) -> impl Iterator<Item = (&'r Entry, &'r TrustSourceUse)> {
        let matches = move |source: &&TrustSourceUse| {
            (source.kind.as_str(), source.namespace.as_str(), source.name.as_str()) == (kind, namespace, name)
        };
        let entries = self.entries.iter().map(Arc::as_ref);
        entries.filter_map(move |entry| Some((entry, entry.status.trust_sources.iter().find(matches)?)))
    }

    /// The GatewaySecret whose managed Secret this is.
    pub fn managed(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.role(namespace, name).filter(|(_, role)| *role == Role::Managed).map(|(entry, _)| entry)
    }

    /// Whether a name is that of a source Secret, and whether the reference can be rewritten now.
    pub fn rename(&self, place: &Place<'_>, name: &str) -> Option<Result<Rename<'_>, RewriteBlocker>> {
        match place {
            Place::Namespace(namespace) => self.by_source_name(namespace, name).map(ready),
            Place::Granted { namespace, from } => self.by_source_name(namespace, name).map(|entry| {
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
                if candidates.is_empty() {
                    let blocker = |entry: &&Entry| {
                        let (secret, managed) = (name.to_owned(), entry.managed_name().to_owned());
                        Err(RewriteBlocker::OtherWorkloads { secret, managed })
                    };
                    return self.with_source(name).first().map(blocker);
                }
                Some(everywhere(&candidates, name))
            }
            // A rule in another namespace can be for gateways of that namespace, without a managed Secret.
            Place::AllGateways { from } => {
                let candidates = self.with_source(name);
                candidates.iter().any(|entry| entry.namespace == *from).then(|| same_name(candidates, name))
            }
        }
    }

    /// Whether a ConfigMap has a copy that the agent writes, and whether the reference can be rewritten to it now.
    pub fn rename_config_map(&self, place: &Place<'_>, name: &str) -> Option<Result<Rename<'_>, RewriteBlocker>> {
        let entry = self.config_map_owner(place, name)?;
        if let Some(reason) = entry.unready() {
            return Some(Err(RewriteBlocker::not_ready(entry, reason)));
        }
        let managed = managed_config_map_name(name);
        let Some(found) = entry.status.managed_config_maps.iter().find(|found| found.name == managed) else {
            let (name, config_map) = (entry.name.clone(), name.to_owned());
            return Some(Err(RewriteBlocker::NoConfigMap { name, config_map, managed }));
        };
        Some(match place {
            Place::Granted { namespace, from }
                if found.ungranted_namespaces.iter().any(|ungranted| ungranted == from) =>
            {
                Err(ungranted(from, namespace, format!("ConfigMap {managed}")))
            }
            _ => Ok(Rename { managed: &found.name }),
        })
    }

    /// The GatewaySecret for which the agent copies a ConfigMap.
    pub fn config_map_owner(&self, place: &Place<'_>, config_map: &str) -> Option<&Entry> {
        let (Place::Namespace(namespace) | Place::Granted { namespace, .. }) = place else { return None };
        self.config_maps.get(*namespace)?.get(config_map).map(|index| self.entries[*index].as_ref())
    }

    /// Why a pod that loads `ca.crt` from a source Secret is not rewritten: with a separate clients' CA, the managed bundle contains that
    /// one, and the source Secret the CA of the serving certificate. In both modes, since a change of mode does not change workloads.
    pub fn other_ca(&self, namespace: &str, source: &str) -> Option<RewriteBlocker> {
        let entry =
            self.by_source_name(namespace, source).filter(|entry| entry.spec.clients.ca_secret_ref.is_some())?;
        Some(RewriteBlocker::OtherCa { secret: source.to_owned(), managed: entry.managed_name().to_owned() })
    }

    /// The GatewaySecret with this source or managed Secret.
    pub fn user_of(&self, place: &Place<'_>, name: &str) -> Option<&Entry> {
        match place {
            Place::Namespace(namespace) | Place::Granted { namespace, .. } => {
                let is_pair = |role: &Role| *role != Role::CacertSibling;
                self.role(namespace, name).filter(|(_, role)| is_pair(role)).map(|(entry, _)| entry)
            }
            Place::Selected(selector) => {
                self.named(name).map(|(entry, _)| entry).find(|entry| entry.is_asked_for(selector))
            }
            Place::AllGateways { .. } => self.named(name).map(|(entry, _)| entry).next(),
        }
    }

    /// The managed Secrets of a source Secret, whether or not a rewrite is allowed now. An object that already names one of
    /// them keeps it while the rewrite is blocked.
    pub fn counterparts(&self, place: &Place<'_>, name: &str) -> Vec<&str> {
        match place {
            Place::Namespace(namespace) | Place::Granted { namespace, .. } => {
                self.by_source_name(namespace, name).map(Entry::managed_name).into_iter().collect()
            }
            Place::Selected(selector) => self.candidates(selector, name).into_iter().map(Entry::managed_name).collect(),
            Place::AllGateways { .. } => self.with_source(name).into_iter().map(Entry::managed_name).collect(),
        }
    }

    fn by_source_name(&self, namespace: &str, name: &str) -> Option<&Entry> {
        self.role(namespace, name).filter(|(_, role)| *role == Role::Source).map(|(entry, _)| entry)
    }

    /// The GatewaySecrets whose workload labels a selector contains. The namespaces in their status then include every
    /// workload that the selector matches.
    fn candidates(&self, selector: &BTreeMap<&str, &str>, source: &str) -> Vec<&Entry> {
        let mut candidates = self.with_source(source);
        candidates.retain(|entry| entry.is_asked_for(selector));
        candidates
    }

    /// The GatewaySecrets of a source Secret's name, in any namespace.
    fn with_source(&self, source: &str) -> Vec<&Entry> {
        let sources = self.named(source).filter(|(_, role)| *role == Role::Source).map(|(entry, _)| entry);
        sources.filter(|entry| !entry.spec.workload_labels.is_empty()).collect()
    }

    /// The GatewaySecrets of a source or managed Secret's name, in any namespace, oldest first.
    fn named(&self, name: &str) -> impl Iterator<Item = (&Entry, Role)> {
        self.by_name.get(name).into_iter().flatten().map(|(index, role)| (self.entries[*index].as_ref(), *role))
    }
}

fn ungranted(from: &str, namespace: &str, managed: String) -> RewriteBlocker {
    RewriteBlocker::Ungranted { from: from.to_owned(), namespace: namespace.to_owned(), managed }
}

/// A rewrite in one namespace: the GatewaySecret must be Ready, and the managed Secret must contain the CAs of `<source>-cacert`.
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

/// A rewrite in every namespace with a selected workload: each must have the same managed Secret, and it must be Ready.
fn everywhere<'a>(candidates: &[&'a Entry], source: &str) -> Result<Rename<'a>, RewriteBlocker> {
    // Each list includes every selected workload, and so does their intersection. A GatewaySecret with broad labels
    // therefore cannot extend the result.
    let observed = candidates.iter().filter_map(|entry| entry.status.workload_namespaces.as_ref());
    let namespaces = observed
        .map(|list| list.iter().map(String::as_str).collect::<BTreeSet<_>>())
        .reduce(|all, list| &all & &list)
        .ok_or_else(|| unobserved(candidates, source))?;
    if namespaces.is_empty() {
        return Err(RewriteBlocker::NoWorkload { secret: source.to_owned() });
    }
    let mapped = namespaces.into_iter().map(|namespace| {
        let entry = candidates.iter().find(|entry| entry.namespace == namespace);
        entry.copied().ok_or_else(|| RewriteBlocker::Unmapped { secret: source.to_owned() })
    });
    same_name(mapped.collect::<Result<Vec<_>, _>>()?, source)
}

/// A rewrite to the managed Secret of these GatewaySecrets, which must be the same for all; each must be Ready.
fn same_name<'a>(entries: impl IntoIterator<Item = &'a Entry>, source: &str) -> Result<Rename<'a>, RewriteBlocker> {
    let mut names = BTreeMap::new();
    for entry in entries {
        let rename = ready(entry)?;
        names.insert(rename.managed, rename);
    }
    match names.pop_first() {
        Some((_, rename)) if names.is_empty() => Ok(rename),
        _ => Err(RewriteBlocker::Differs { secret: source.to_owned() }),
    }
}

/// Why the namespaces of the selected workloads are unknown.
fn unobserved(candidates: &[&Entry], source: &str) -> RewriteBlocker {
    let unlisted = candidates.iter().find_map(|entry| Some((entry, entry.status.workload_namespace_count?)));
    unlisted.map_or_else(
        || RewriteBlocker::Unobserved { secret: source.to_owned() },
        |(entry, count)| RewriteBlocker::unlisted(entry, count),
    )
}

#[cfg(test)]
pub(crate) mod tests;
