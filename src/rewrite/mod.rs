//! Rewrites references to a source Secret to the managed Secret: object and registry in, JSON Patch out.
//!
//!
//! Changes only references to source Secrets, the rotation hash in a pod template, and the record of the rewrite.

mod annotation;
mod json_path;
mod kinds;
mod mounted_keys;
mod patch_builder;
mod patch_text;
mod rotation_hash;
mod tls_settings;
mod undo;

use std::cell::LazyCell;

use crate::api::names::{RESYNC_REQUESTED_AT, REWRITE, REWRITE_DISABLED, ROTATION_HASH, managed_config_map_name};
use crate::api::{Kind, SourceKind};
use crate::json::{Json, Object};
use crate::registry::{Place, Registry, RewriteBlocker};
use crate::trust::credential::CA_KEYS;
use annotation::HASH;
use json_path::{JsonPath, field};
use kinds::Reference;
use patch_builder::PatchBuilder;
pub use patch_text::PatchText;
use rotation_hash::RotationHash;
pub use tls_settings::{TlsSettings, TrustSource};
pub use undo::{Undo, undo};

/// The result of a rewrite.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The changes; empty if there are none.
    pub patch: PatchText,
    /// JSON Pointers of renamed references.
    renamed: Vec<String>,
    /// Whether the rotation hash changes.
    rehashes: bool,
    /// Why references were not renamed, each reason once.
    pub blockers: Vec<RewriteBlocker>,
    /// The record for undoing the rewrite did not fit into the object's annotations.
    pub unrecorded: bool,
}

impl Outcome {
    /// Fields of renamed references, as users write them.
    pub fn renamed(&self) -> impl ExactSizeIterator<Item = String> {
        self.renamed.iter().map(|pointer| field(pointer))
    }

    /// Whether the pod template of a workload changes, which causes a rollout.
    pub fn rolls(&self) -> bool {
        !self.renamed.is_empty() || self.rehashes
    }
}

/// A reference to a Secret or ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    node: JsonPath<'a>,
    /// The name.
    pub name: &'a str,
    /// The namespaces in which it is looked up.
    pub place: Place<'a>,
}

/// Whether objects of a kind are rewritten.
pub fn is_rewritten(kind: Kind<'_>) -> bool {
    kinds::find(kind).is_some()
}

/// All Secrets that an object of a rewritten kind names.
pub fn names<'a>(kind: Kind<'_>, object: &'a Json<'a>, namespace: &'a str) -> Vec<Named<'a>> {
    let references = kinds::find(kind).map(|rule| (rule.references)(object, namespace)).unwrap_or_default();
    references.into_iter().filter(|reference| reference.kind == SourceKind::Secret).map(Named::from).collect()
}

/// The TLS settings of an object; none for a kind that is not rewritten.
pub fn tls_settings<'a>(kind: Kind<'_>, object: &'a Json<'a>, namespace: &'a str) -> Vec<TlsSettings<'a>> {
    kinds::find(kind).map(|rule| (rule.tls_settings)(object, namespace)).unwrap_or_default()
}

/// Whether an object can have settings whose CAs come from another object than their certificate. Takes less time than to read them.
pub fn can_trust_another_source(kind: Kind<'_>, object: &Json<'_>) -> bool {
    kinds::find(kind).is_some_and(|rule| (rule.can_trust_another_source)(object))
}

impl<'a> From<Reference<'a>> for Named<'a> {
    fn from(Reference { node, name, place, .. }: Reference<'a>) -> Self {
        Self { node, name, place }
    }
}

impl Named<'_> {
    /// JSON Pointer of the field that names it.
    pub fn pointer(&self) -> String {
        self.node.pointer()
    }
}

/// A write to the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The object's kind, as sent.
    pub kind: Kind<'a>,
    /// The object's namespace.
    pub namespace: &'a str,
    /// The new object.
    pub object: &'a Json<'a>,
    /// The stored object, for an UPDATE.
    pub old: Option<&'a Json<'a>>,
    /// Written by trustspan's own agent, which restarts a workload by a newer hash, or by setting annotation
    /// [`RESYNC_REQUESTED_AT`]: it then
    /// gets the current names and the current hash, though its template has not changed.
    pub by_agent: bool,
}

/// Rewrites an object as it is written to the cluster.
/// An update that does not change the pod template keeps the stored names and the stored hash, whatever the manifest has and whether or not
/// the GatewaySecret is Ready: it never causes a rollout, unless the agent requests one.
/// Applying the patch and rewriting again gives an empty patch.
pub fn rewrite(write: &Write<'_>, registry: &Registry) -> Outcome {
    let Write { kind, namespace, object, old, by_agent } = *write;
    let opted_out = object["metadata"]["annotations"][REWRITE] == REWRITE_DISABLED;
    // A new object with this field is not being deleted, whatever its maker writes.
    let being_deleted = old.is_some_and(|old| old["metadata"]["deletionTimestamp"].is_string());
    let Some(rule) = kinds::find(kind).filter(|_| !opted_out && !being_deleted) else { return Outcome::default() };

    let references = (rule.references)(object, namespace);
    let kept = |reference: &Reference<'_>| -> Option<String> {
        let stored = reference.node.found_in(old?)?.as_str()?;
        let (place, name) = (&reference.place, reference.name);
        let counterparts = match reference.kind {
            SourceKind::Secret => registry.counterparts(place, name).into_iter().map(str::to_owned).collect(),
            SourceKind::ConfigMap => registry
                .config_map_owner(place, name)
                .map(|_| managed_config_map_name(name))
                .into_iter()
                .collect::<Vec<_>>(),
        };
        counterparts.iter().map(|name| reference.renamed(name)).find(|name| name == stored)
    };

    let requests_rollout = |old: &Json<'_>| {
        let [new, old] = [object, old].map(|object| &object["metadata"]["annotations"][RESYNC_REQUESTED_AT]);
        by_agent && new != old
    };
    if let Some(old) = old.filter(|old| rule.has_template && !requests_rollout(old)) {
        let mut builder = PatchBuilder::new(object, &references, kept);
        if same_template(&builder.template(), &old["spec"]["template"]) {
            builder.annotate(stored_or_newer(object, old, by_agent));
            return builder.finish();
        }
    }

    let loaded = LazyCell::new(|| mounted_keys::of(&object["spec"]["template"]["spec"]));
    let loads_ca = |name: &str| loaded.get(name).is_some_and(|keys| CA_KEYS.iter().any(|key| keys.contains(key)));
    let found = |reference: &Reference<'_>| {
        let rename = match reference.kind {
            SourceKind::Secret => registry.rename(&reference.place, reference.name)?,
            SourceKind::ConfigMap => registry.rename_config_map(&reference.place, reference.name)?,
        };
        let other_ca = loads_ca(reference.name).then(|| registry.other_ca(namespace, reference.name)).flatten();
        let issued = || {
            let (managed, annotation) = (rename.as_ref().ok()?.managed_name().to_owned(), reference.issuer_annotation?);
            Some(RewriteBlocker::IssuedByAnnotation { annotation, secret: reference.name.to_owned(), managed })
        };
        Some(other_ca.or_else(issued).map_or(rename, Err))
    };
    let mut blockers: Vec<RewriteBlocker> = Vec::new();
    // The servers of a Gateway often name the same Secret.
    let mut last: Option<(&Reference<'_>, _)> = None;
    let mut builder = PatchBuilder::new(object, &references, |reference| {
        let (_, rename) = match &last {
            Some(same) if reference.is_same_name(same.0) => same,
            _ => last.insert((reference, found(reference))),
        };
        match rename.clone()? {
            Ok(rename) => Some(reference.renamed(rename.managed_name())),
            Err(blocker) => {
                if !blockers.contains(&blocker) {
                    blockers.push(blocker);
                }
                // A stored object that names the managed Secret keeps it: the source Secret may have other CAs.
                kept(reference)
            }
        }
    });
    if rule.has_template {
        builder.annotate(newest(&builder.template(), object, old, namespace, registry));
    }
    Outcome { blockers, ..builder.finish() }
}

/// The hash for an update that does not change the template: the stored one. Only the agent sends another, to restart the workload; other
/// writers send that of an old manifest.
fn stored_or_newer(object: &Json<'_>, old: &Json<'_>, by_agent: bool) -> Option<String> {
    let stored = HASH.read(old);
    let sent = HASH.read(object).filter(|sent| {
        let (sent, stored) = (RotationHash::parse(sent), stored.and_then(RotationHash::parse));
        by_agent && sent.is_some_and(|sent| stored.is_none_or(|stored| !stored.is_newer_than(&sent)))
    });
    sent.or(stored).map(str::to_owned)
}

/// The hash for a new or changed template: the newest of the current one, the stored one and the one in the request. If another one is
/// newer, the state of this replica is stale; the request has one when the API server invokes the webhook again, on another replica.
fn newest(
    template: &Json<'_>,
    object: &Json<'_>,
    old: Option<&Json<'_>>,
    namespace: &str,
    registry: &Registry,
) -> Option<String> {
    let (stored, sent) = (old.and_then(|old| HASH.read(old)), HASH.read(object));
    let Some(current) = RotationHash::of(template, namespace, registry) else {
        return stored.filter(|_| sent.is_none()).map(str::to_owned);
    };
    let others = [stored, sent].into_iter().flatten().filter_map(RotationHash::parse);
    let newer = others.filter(|other| other.is_newer_than(&current)).max_by_key(|other| other.revision);
    Some(newer.unwrap_or(current).to_string())
}

/// Whether two pod templates are equal, except for the rotation hash.
fn same_template(a: &Json<'_>, b: &Json<'_>) -> bool {
    match (a, b) {
        (Json::Object(a), Json::Object(b)) => {
            let others = |map| Object::iter(map).filter(|(key, _)| *key != "metadata");
            metadata_without_hash(a) == metadata_without_hash(b)
                && others(a).count() == others(b).count()
                && others(a).all(|(key, value)| b.get(key) == Some(value))
        }
        (a, b) => a == b,
    }
}

/// The metadata of a template; `None` if it has only the hash.
fn metadata_without_hash<'a>(template: &Object<'a>) -> Option<Json<'a>> {
    let mut metadata = template.get("metadata")?.clone();
    let is_empty = |value: &Json<'_>| value.is_null() || value.as_object().is_some_and(Object::is_empty);
    if let Json::Object(fields) = &mut metadata {
        if let Some(Json::Object(annotations)) = fields.get_mut("annotations") {
            annotations.remove(ROTATION_HASH);
        }
        if fields.get("annotations").is_some_and(is_empty) {
            fields.remove("annotations");
        }
    }
    (!is_empty(&metadata)).then_some(metadata)
}

#[cfg(test)]
mod tests;
