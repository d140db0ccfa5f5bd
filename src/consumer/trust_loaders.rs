//! Which CAs of a GatewaySecret a TrustConsumer's workloads or a mirrored file load, and which of them they have loaded.

use std::collections::BTreeMap;

use super::condition_types::{LOADED, RESTARTABLE, VALID, WORKLOAD_MISSING};
use crate::api::{
    Condition, ConditionStatus, LoadedObject, MIRROR_SYNCED, MirrorSource, MirroredFileSpec, MirroredFileStatus,
    SourceKind, TrustBundleTarget, TrustBundleTargetKind, TrustConsumerSpec, TrustConsumerStatus,
};
use crate::registry::Entry;
use crate::rotation::planner::{LoadedTrust, TrustLoader};

/// The objects of a GatewaySecret that a TrustConsumer loads: the managed Secret, objects of `spec.trustBundleTargets`, and Secrets of
/// `spec.clients.secretNames`. `consumer` is its namespace and name.
///
/// A TrustConsumer without any workload has loaded nothing.
pub fn trust_loaders(
    entry: &Entry,
    (namespace, name): (&str, &str),
    spec: &TrustConsumerSpec,
    status: &TrustConsumerStatus,
) -> Vec<TrustLoader> {
    let has_no_workload = status.workloads.is_empty()
        && status.condition(LOADED).is_some_and(|condition| condition.reason == WORKLOAD_MISSING);
    if has_no_workload {
        return Vec::new();
    }
    let is_blocked = [RESTARTABLE, VALID].into_iter().filter_map(|type_| status.condition(type_)).any(is_not_true);
    let mut loaders = Vec::new();
    for loaded in &spec.loads {
        let keys = loaded.all_keys();
        for (object, key) in objects(entry, namespace, loaded, &keys) {
            // A hash of bytes says nothing about CAs.
            let (hash, reason, needs_action) = match keys[key] {
                true => (loaded_hash(status, loaded, key), reason(status), is_blocked),
                false => (None, list_as_ca(loaded, key), true),
            };
            loaders.push(TrustLoader {
                name: format!("TrustConsumer {namespace}/{name}"),
                object,
                loaded: hash,
                reason,
                needs_action,
                is_read_by_others: false,
            });
        }
    }
    loaders
}

/// The objects of a GatewaySecret that a mirrored file has. `object` is the namespace and name of the MirroredFile.
///
/// Only one in the GatewaySecret's namespace counts: a user who may write MirroredFiles in one namespace must not be able to block a rotation in
/// another namespace.
pub fn mirror_loaders(
    entry: &Entry,
    (namespace, name): (&str, &str),
    spec: &MirroredFileSpec,
    status: &MirroredFileStatus,
) -> Vec<TrustLoader> {
    if namespace != entry.namespace {
        return Vec::new();
    }
    let MirrorSource { kind, name: source, key } = &spec.source;
    let loaded = LoadedObject { kind: *kind, name: source.clone(), keys: Vec::new(), ca_keys: vec![key.clone()] };
    let synced = status.conditions.iter().find(|condition| condition.type_ == MIRROR_SYNCED);
    let fault = synced.filter(|condition| is_not_true(condition));
    let reason = match fault {
        Some(condition) => condition.message.trim_end_matches('.').to_owned(),
        None => format!(
            "trustspan-node mirror on that node has not reported the newest content. If it does not run, start it; if the file is \
             not used any more: kubectl delete mirroredfile -n {namespace} {name}"
        ),
    };
    let keys = loaded.all_keys();
    let loader = |(object, _)| TrustLoader {
        name: format!("File {} on node {} (MirroredFile {namespace}/{name})", spec.path, spec.node),
        object,
        loaded: status.sha256.clone(),
        reason: reason.clone(),
        needs_action: fault.is_some(),
        is_read_by_others: true,
    };
    objects(entry, namespace, &loaded, &keys).into_iter().map(loader).collect()
}

fn is_not_true(condition: &Condition) -> bool {
    condition.status != ConditionStatus::True
}

/// The objects of a GatewaySecret that `loaded` can be, in the planner's terms, each with the one of its `keys` that has the CAs.
fn objects<'a>(
    entry: &'a Entry,
    namespace: &'a str,
    loaded: &'a LoadedObject,
    keys: &BTreeMap<&'a str, bool>,
) -> Vec<(LoadedTrust, &'a str)> {
    let is_own = namespace == entry.namespace && loaded.kind == SourceKind::Secret;
    let name = loaded.name.as_str();
    let secret = if is_own && name == entry.managed_name() {
        Some(LoadedTrust::Managed)
    } else {
        let is_client = is_own && entry.spec.clients.secret_names.iter().any(|client| client == name);
        is_client.then(|| LoadedTrust::Client(name.to_owned()))
    };
    let kind = match loaded.kind {
        SourceKind::Secret => TrustBundleTargetKind::Secret,
        SourceKind::ConfigMap => TrustBundleTargetKind::ConfigMap,
    };
    let is_target = |target: &&TrustBundleTarget| {
        target.kind == kind
            && target.name == name
            && target.namespace.as_deref().unwrap_or(&entry.namespace) == namespace
            && keys.contains_key(target.key.as_str())
    };
    let targets = entry.spec.trust_bundle_targets.iter().filter(is_target);
    let targets = targets.map(|target| (LoadedTrust::Client(target.readers()), target.key.as_str()));
    let ca_key = keys.iter().find_map(|(key, is_ca)| is_ca.then_some(*key));
    secret.zip(ca_key).into_iter().chain(targets).collect()
}

/// The hash of the CAs under a key, if all workloads have loaded the content that the status describes.
fn loaded_hash(status: &TrustConsumerStatus, loaded: &LoadedObject, key: &str) -> Option<String> {
    let hash = status.hash.as_ref()?;
    let has_loaded = !status.workloads.is_empty() && status.workloads.iter().all(|one| one.hash == *hash);
    let mut content = status.content.iter().filter(|_| has_loaded);
    let of_key = content.find(|one| one.kind == loaded.kind && one.name == loaded.name && one.key == key);
    of_key.map(|one| one.sha256.clone())
}

/// Why workloads may have earlier content, in the words of the first condition that says so.
fn reason(status: &TrustConsumerStatus) -> String {
    let first = [VALID, LOADED].into_iter().filter_map(|type_| status.condition(type_)).find(|one| is_not_true(one));
    let message = first.map(|condition| condition.message.trim_end_matches('.').to_owned());
    message.unwrap_or_else(|| "The agent restarts its workloads".to_owned())
}

fn list_as_ca(loaded: &LoadedObject, key: &str) -> String {
    format!("List key {key} of {} {} under caKeys there, not under keys", loaded.kind.name(), loaded.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{KeyContent, LoadedContent, WorkloadKind, WorkloadRef};
    use crate::registry::tests::entry;

    fn spec(kind: SourceKind, name: &str, keys: &[&str], ca_keys: &[&str]) -> TrustConsumerSpec {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let loaded = LoadedObject { kind, name: name.to_owned(), keys: names(keys), ca_keys: names(ca_keys) };
        TrustConsumerSpec { loads: vec![loaded], ..TrustConsumerSpec::default() }
    }

    /// A status in which all workloads have loaded the content, and one of them this hash.
    fn status(kind: SourceKind, name: &str, key: &str, of_workload: &str) -> TrustConsumerStatus {
        let content = KeyContent { kind, name: name.to_owned(), key: key.to_owned(), sha256: "of the CAs".to_owned() };
        let workload = LoadedContent {
            workload: WorkloadRef { kind: WorkloadKind::Deployment, name: "web".to_owned() },
            uid: String::new(),
            annotation: None,
            hash: of_workload.to_owned(),
            first_expiry: None,
            restarted_at: None,
            rollout: None,
        };
        let (hash, workloads) = (Some("of all".to_owned()), vec![workload]);
        TrustConsumerStatus { hash, content: vec![content], workloads, ..TrustConsumerStatus::default() }
    }

    fn condition(type_: &str, status: ConditionStatus, reason: &str) -> Condition {
        let (reason, message) = (reason.to_owned(), "Says why.".to_owned());
        let last_transition_time = crate::trust::fixtures::now();
        Condition { type_: type_.to_owned(), status, observed_generation: None, last_transition_time, reason, message }
    }

    #[test]
    fn reports_the_cas_that_all_workloads_have_loaded() {
        let entry = entry("mesh", "root", "gw");
        let (kind, key) = (SourceKind::Secret, "ca.crt");
        let of = |spec: &TrustConsumerSpec, status: &TrustConsumerStatus| {
            trust_loaders(&entry, ("mesh", "web"), spec, status)
        };
        let managed = spec(kind, "gw", &["tls.crt", key], &[]);
        let [found] = of(&managed, &status(kind, "gw", key, "of all")).try_into().expect("one");
        assert_eq!(
            (found.name.as_str(), &found.object, found.loaded.as_deref()),
            ("TrustConsumer mesh/web", &LoadedTrust::Managed, Some("of the CAs"))
        );
        for other in [status(kind, "gw", key, "of earlier content"), TrustConsumerStatus::default()] {
            assert_eq!(of(&managed, &other)[0].loaded, None, "{other:?}");
        }
        let mut paused = status(kind, "gw", key, "of earlier content");
        paused.conditions = vec![
            condition(RESTARTABLE, ConditionStatus::False, "Paused"),
            condition(LOADED, ConditionStatus::False, "Paused"),
        ];
        let [found] = of(&managed, &paused).try_into().expect("one");
        assert_eq!((found.needs_action, found.reason.as_str()), (true, "Says why"));
        let none = TrustConsumerStatus {
            workloads: Vec::new(),
            conditions: vec![condition(LOADED, ConditionStatus::Unknown, "WorkloadMissing")],
            ..paused
        };
        assert_eq!(of(&managed, &none), [], "no workload exists");
        assert_eq!(
            of(&spec(kind, "gw", &["tls.crt"], &[]), &status(kind, "gw", "tls.crt", "of all")),
            [],
            "it loads no CA"
        );
        assert_eq!(of(&spec(kind, "other", &[key], &[]), &status(kind, "other", key, "of all")), []);
        assert_eq!(
            trust_loaders(&entry, ("apps", "web"), &managed, &TrustConsumerStatus::default()),
            [],
            "another namespace"
        );
    }

    #[test]
    fn finds_trust_bundle_targets_and_secrets_of_clients() {
        let mut entry = entry("mesh", "root", "gw");
        let target = TrustBundleTarget {
            kind: TrustBundleTargetKind::ConfigMap,
            namespace: Some("apps".to_owned()),
            name: "trust".to_owned(),
            key: "bundle.pem".to_owned(),
        };
        let readers = LoadedTrust::Client(target.readers());
        entry.spec.trust_bundle_targets = vec![target];
        entry.spec.clients.secret_names = vec!["client".to_owned()];
        let kind = SourceKind::ConfigMap;
        let known = status(kind, "trust", "bundle.pem", "of all");
        let as_cas = spec(kind, "trust", &[], &["bundle.pem"]);
        let [found] = trust_loaders(&entry, ("apps", "web"), &as_cas, &known).try_into().expect("one");
        assert_eq!((found.object, found.loaded.is_some(), found.needs_action), (readers, true, false));
        let as_bytes = spec(kind, "trust", &["bundle.pem"], &[]);
        let [found] = trust_loaders(&entry, ("apps", "web"), &as_bytes, &known).try_into().expect("one");
        assert_eq!((found.loaded, found.needs_action), (None, true), "a hash of bytes says nothing about CAs");
        assert!(found.reason.contains("under caKeys"), "{}", found.reason);
        let client = spec(SourceKind::Secret, "client", &["ca.crt"], &[]);
        let [found] =
            trust_loaders(&entry, ("mesh", "web"), &client, &TrustConsumerStatus::default()).try_into().expect("one");
        assert_eq!(found.object, LoadedTrust::Client("client".to_owned()));
        assert_eq!(trust_loaders(&entry, ("mesh", "web"), &as_cas, &known), [], "another namespace");
    }

    #[test]
    fn a_mirrored_file_counts_in_the_namespace_of_the_gateway_secret_only() {
        let mut entry = entry("mesh", "root", "gw");
        let target = TrustBundleTarget {
            kind: TrustBundleTargetKind::ConfigMap,
            namespace: Some("apps".to_owned()),
            name: "trust".to_owned(),
            key: "bundle.pem".to_owned(),
        };
        entry.spec.trust_bundle_targets = vec![target.clone(), TrustBundleTarget { namespace: None, ..target }];
        let of = |namespace: &str, kind, name: &str, key: &str, status: &MirroredFileStatus| {
            let source = MirrorSource { kind, name: name.to_owned(), key: key.to_owned() };
            let spec = MirroredFileSpec { node: "n1".to_owned(), path: "/etc/ca.crt".to_owned(), source };
            mirror_loaders(&entry, (namespace, "f"), &spec, status)
        };
        let (secret, config_map) = (SourceKind::Secret, SourceKind::ConfigMap);
        let status = MirroredFileStatus { sha256: Some("of the CAs".to_owned()), ..MirroredFileStatus::default() };
        let [managed] = of("mesh", secret, "gw", "ca.crt", &status).try_into().expect("one");
        assert_eq!(managed.name, "File /etc/ca.crt on node n1 (MirroredFile mesh/f)");
        assert_eq!((managed.object, managed.loaded.as_deref()), (LoadedTrust::Managed, Some("of the CAs")));
        assert!(managed.is_read_by_others && !managed.needs_action);
        assert!(managed.reason.contains("kubectl delete mirroredfile -n mesh f"), "{}", managed.reason);
        let [in_target] = of("mesh", config_map, "trust", "bundle.pem", &status).try_into().expect("one");
        assert_eq!(in_target.object, LoadedTrust::Client("readers of ConfigMap trust (bundle.pem)".to_owned()));
        for (namespace, kind, name, key) in [
            ("apps", config_map, "trust", "bundle.pem"),
            ("apps", secret, "gw", "ca.crt"),
            ("mesh", secret, "other", "ca.crt"),
            ("mesh", config_map, "trust", "other"),
        ] {
            assert_eq!(of(namespace, kind, name, key, &status), [], "{namespace} {name} {key}");
        }
        let mut refused = status;
        refused.conditions = vec![condition("Synced", ConditionStatus::False, "Refused")];
        let [refused] = of("mesh", secret, "gw", "ca.crt", &refused).try_into().expect("one");
        assert_eq!((refused.needs_action, refused.reason.as_str()), (true, "Says why"));
    }
}
