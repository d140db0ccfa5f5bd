//! The grammar: who writes, how, to which object, and which fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Actor::{self, Agent, Approver, Certgen, EditorOfA, EditorOfB, Mirror};
use super::objects::{DELETED, Kind, Kind::*, Object, Tenants};
use crate::stage::{deployment, istio};
use crate::stolen_tokens::missing_owner;
use crate::testbed::{Seed, base64};

/// Objects that one actor creates under several names.
const EVIL: [&str; 3] = ["evil-0", "evil-1", "evil-2"];
/// Characters of a text that is drawn as huge.
const HUGE: usize = 200 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    /// The stored object with changes.
    Replace,
    Merge,
    Json,
    Apply,
    Delete,
    DeleteCollection,
    /// A merge patch of the subresource.
    Status,
}

/// A change of an object, by a JSON pointer.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Set(String, Value),
    Remove(String),
    Move(String, String),
}

use Change::{Move, Remove, Set};

#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) actor: Actor,
    pub(super) verb: Verb,
    pub(super) object: Object,
    /// What is created or applied, before the changes.
    pub(super) template: Value,
    pub(super) changes: Vec<Change>,
}

fn set(pointer: &str, value: Value) -> Change {
    Set(pointer.to_owned(), value)
}

impl Change {
    /// The operation of a JSON patch.
    pub(super) fn operation(&self) -> Value {
        match self {
            Set(path, value) => json!({ "op": "add", "path": path, "value": value }),
            Remove(path) => json!({ "op": "remove", "path": path }),
            Move(from, path) => json!({ "op": "move", "from": from, "path": path }),
        }
    }

    /// Makes the change; a path that does not exist is created where it can be.
    pub(super) fn make(&self, object: &mut Value) {
        match self {
            Set(path, value) => {
                let mut at = object;
                for part in path.split('/').skip(1) {
                    let part = part.replace("~1", "/");
                    if at.is_array() {
                        let item = part.parse::<usize>().ok().and_then(|number| at.get_mut(number));
                        let Some(item) = item else { return };
                        at = item;
                    } else {
                        if !at.is_object() {
                            *at = json!({});
                        }
                        at = &mut at[part];
                    }
                }
                *at = value.clone();
            }
            change => {
                let operations = serde_json::from_value(json!([change.operation()]));
                let patched = operations.map(|operations: json_patch::Patch| json_patch::patch(object, &operations));
                // A path that the object does not have leaves it as it is.
                drop(patched);
            }
        }
    }

    fn path(&self) -> &str {
        match self {
            Set(path, _) | Remove(path) | Move(path, _) => path,
        }
    }

    /// Whether it replaces all labels or annotations.
    fn is_of_marks(&self) -> bool {
        ["/metadata/annotations", "/metadata/labels"].contains(&self.path())
    }

    /// Whether it sets one label or annotation.
    fn is_of_one_mark(&self) -> bool {
        self.path().starts_with("/metadata/annotations/") || self.path().starts_with("/metadata/labels/")
    }

    /// Whether a merge patch can say it.
    pub(super) fn merges(&self) -> bool {
        matches!(self, Set(path, _) if path.split('/').all(|part| part.parse::<usize>().is_err()))
    }
}

/// Draws writes.
pub(super) struct Grammar {
    pub(super) seed: Seed,
    pub(super) tenants: Tenants,
    /// The CA of each actor, in PEM.
    pub(super) evil: BTreeMap<Actor, String>,
    /// The CA that the clients of a tenant need, in PEM.
    pub(super) good: BTreeMap<String, String>,
    /// An owner that exists, for each namespace.
    pub(super) owners: BTreeMap<String, Value>,
    /// The last object of each actor.
    last: BTreeMap<Actor, Object>,
}

impl Grammar {
    pub(super) fn new(
        tenants: Tenants,
        evil: BTreeMap<Actor, String>,
        good: BTreeMap<String, String>,
        owners: BTreeMap<String, Value>,
    ) -> Self {
        Self { seed: Seed::of_run("attacks"), tenants, evil, good, owners, last: BTreeMap::new() }
    }

    fn one_in(&mut self, number: u64) -> bool {
        self.seed.below(number) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.seed.below(all.len() as u64) as usize].clone()
    }

    /// One to three writes that an actor sends one after the other: often of one object, since it takes several to have it deleted and created
    /// again as something else.
    pub(super) fn chain(&mut self) -> Vec<Write> {
        let actor = self.actor();
        let object = match self.last.get(&actor).cloned() {
            Some(last) if self.one_in(4) => last,
            _ => self.object(actor),
        };
        let object = if self.is_own(actor, &object) { Object::new(Secret, &self.tenants.b, "managed") } else { object };
        let length = self.of(&[1, 1, 2, 3]);
        let mut verbs: Vec<_> = (0..length).map(|_| None).collect();
        if length > 1 && !self.one_in(3) {
            let end = self.of(&[Verb::Delete, Verb::Merge, Verb::Merge, Verb::Apply]);
            verbs[0] = Some(end);
            verbs[length - 1] = Some(self.of(&[Verb::Create, Verb::Apply]));
        }
        let writes = verbs.into_iter().enumerate().map(|(number, verb)| match (number, verb) {
            (0, Some(Verb::Delete)) => self.write(actor, &object, Verb::Delete, Vec::new()),
            (0, Some(verb)) => {
                let owner = vec![set("/metadata/ownerReferences", json!([missing_owner()]))];
                self.write(actor, &object, verb, owner)
            }
            (_, verb) => self.drawn(actor, &object, verb),
        });
        let writes: Vec<_> = writes.collect();
        self.last.insert(actor, object);
        writes
    }

    /// Whether a write of the object by this actor is its own decision: by an editor of what belongs to it, by a stolen token of the agent of what no
    /// agent restores.
    fn is_own(&self, actor: Actor, object: &Object) -> bool {
        let Tenants { b, c, .. } = &self.tenants;
        let kinds = [Gateway, GatewaySecret, Deployment, TrustConsumer];
        // The owner of a client may retire it, and then no gateway needs its CA.
        let is_client = object.kind == Secret && object.name == "client";
        actor == EditorOfB
            && object.ns == *b
            && (kinds.contains(&object.kind) && !object.name.starts_with("evil") || is_client)
            || actor == Agent && object.ns == *c
    }

    fn actor(&mut self) -> Actor {
        match self.seed.below(40) {
            0..=11 => EditorOfA,
            12..=22 => EditorOfB,
            23..=28 => Agent,
            29..=34 => Approver,
            35..=36 => Certgen,
            37..=38 => Mirror,
            _ => Actor::Webhook,
        }
    }

    fn object(&mut self, actor: Actor) -> Object {
        // Mostly one for which the actor has a right: RBAC denies the others.
        let actor = if self.one_in(12) { self.of(&Actor::ALL) } else { actor };
        let objects = self.objects_of(actor);
        self.of(&objects)
    }

    /// The objects that an actor writes, and those that it would like to write.
    fn objects_of(&self, actor: Actor) -> Vec<Object> {
        let Tenants { a, b, c } = &self.tenants;
        let mut all = Vec::new();
        let mut add =
            |kind: Kind, ns: &str, names: &[&str]| all.extend(names.iter().map(|name| Object::new(kind, ns, name)));
        const TRUST: [&str; 7] =
            ["root", "root-cacert", "managed", "managed-cacert", "trust", "partners", "partners-cacert"];
        match actor {
            EditorOfA => {
                add(Secret, a, &TRUST);
                add(ConfigMap, a, &["trust", "partners", "none", "gateway.trustspan-journal"]);
                add(Gateway, a, &EVIL);
                add(Gateway, a, &EVIL);
                add(GatewaySecret, a, &["gateway", "evil-0", "evil-1"]);
                add(TrustConsumer, a, &["evil-0"]);
                add(ReferenceGrant, a, &["evil-0"]);
                add(Deployment, a, &["evil-0"]);
                add(Secret, b, &["managed", "partners-cacert"]);
            }
            EditorOfB => {
                add(Secret, b, &TRUST);
                add(Secret, b, &EVIL);
                add(ConfigMap, b, &["trust", "partners", "gateway.trustspan-journal", "evil-0"]);
                add(ConfigMap, c, &DELETED);
                add(Secret, c, &DELETED);
                add(Secret, c, &["gateway", "gateway-cacert"]);
                add(Gateway, b, &EVIL);
                add(GatewaySecret, b, &["evil-0", "evil-1"]);
                add(TrustConsumer, b, &["evil-0"]);
                add(Deployment, b, &["evil-0"]);
                add(MirroredFile, b, &["evil-0"]);
            }
            Agent => {
                for ns in [a, b] {
                    add(Secret, ns, &["managed", "managed-cacert", "trust"]);
                }
                add(Secret, b, &["root", "partners-cacert"]);
                add(ConfigMap, b, &["trust", "gateway.trustspan-journal"]);
                add(Deployment, b, &["app"]);
                add(Gateway, b, &["shop", "partners"]);
                add(MutatingWebhookConfiguration, "", &["trustspan"]);
                add(ValidatingWebhookConfiguration, "", &["trustspan"]);
                let pending = ["trustspan-webhook-tls", "trustspan-webhook-certgen-pending", "evil-0"];
                add(Secret, "trustspan-system", &pending);
                add(Lease, "trustspan-system", &["trustspan-approver", "evil-0"]);
            }
            Approver => {
                add(Secret, b, &TRUST);
                add(Secret, b, &["client", "payments-bootstrap", "evil-0"]);
                let tokens = ["bootstrap-token-kubead", "bootstrap-token-evil00", "bootstrap-token-evil01", "evil-0"];
                add(Secret, "kube-system", &tokens);
                let own = "trustspan.dev:client-identity:payments";
                add(Role, b, &[own, "evil-0"]);
                add(RoleBinding, b, &[own, "evil-0"]);
                let own = format!("trustspan.dev:client-identity:{b}:payments");
                let roles = [&own, "trustspan-agent", "cluster-admin", "edit"];
                add(ClusterRole, "", &roles);
                add(ClusterRoleBinding, "", &[&own, "trustspan-agent", "cluster-admin"]);
                add(ClientIdentity, b, &["payments"]);
                add(Lease, "trustspan-system", &["trustspan-agent", "trustspan-approver"]);
            }
            Certgen => {
                let names = ["envoy-gateway", "envoy", "envoy-rate-limit", "envoy-oidc-hmac"];
                add(Secret, "envoy-gateway-system", &names);
                add(Secret, "envoy-gateway-system", &["envoy-gateway-certgen-pending", "evil-0"]);
                add(Deployment, "envoy-gateway-system", &["envoy-ratelimit"]);
            }
            Mirror | Actor::Webhook => {
                add(MirroredFile, b, &EVIL);
                add(Secret, b, &["managed"]);
            }
        }
        all
    }

    fn drawn(&mut self, actor: Actor, object: &Object, verb: Option<Verb>) -> Write {
        const VERBS: [Verb; 10] = [
            Verb::Replace,
            Verb::Replace,
            Verb::Create,
            Verb::Delete,
            Verb::Merge,
            Verb::Merge,
            Verb::Json,
            Verb::Json,
            Verb::Apply,
            Verb::Apply,
        ];
        let verb = verb.unwrap_or_else(|| match self.seed.below(40) {
            // Of other kinds, an editor deletes what belongs to it.
            0 if [Secret, ConfigMap].contains(&object.kind) => Verb::DeleteCollection,
            1 => Verb::Status,
            // RBAC lets most accounts patch, and not update.
            _ if ![EditorOfA, EditorOfB].contains(&actor) => self.of(&VERBS[2..]),
            _ => self.of(&VERBS),
        });
        let mut changes: Vec<_> = (0..self.of(&[1, 1, 1, 2, 3])).flat_map(|_| self.changes(actor, object)).collect();
        let verb = if actor == Agent { self.of_agent(object, verb, &mut changes) } else { verb };
        self.write(actor, object, verb, changes)
    }

    /// What a stolen token of the agent can do is documented (docs/tenants.md, "Stolen tokens"): it can change what gateways load and Gateways, the
    /// agent's own records, the status from which webhooks decide, and the mark without which editors may write an object. None of that is drawn, because
    /// after it others could do what they cannot without it.
    fn of_agent(&mut self, object: &Object, verb: Verb, changes: &mut Vec<Change>) -> Verb {
        let verb = if verb == Verb::Status { Verb::Merge } else { verb };
        if object.kind == Gateway {
            changes.retain(|change| change.path().starts_with("/metadata"));
            return Verb::Merge;
        }
        if ![Secret, ConfigMap].contains(&object.kind) {
            return verb;
        }
        let good = self.good.get(&object.ns).cloned().unwrap_or_default() + &self.evil[&Agent];
        let good = if object.kind == Secret { json!(base64(&good)) } else { json!(good) };
        let is_journal = object.name.ends_with("journal");
        changes.retain(|change| !change.is_of_marks() && !change.path().ends_with("~1gateway-secret"));
        // A serving certificate that clients need no CA for takes their CA out of the bundles.
        changes.retain(|change| change.path() != "/data/tls.crt");
        changes.retain(|change| !is_journal || change.path().starts_with("/metadata"));
        for change in changes.iter_mut() {
            if change.path() == "/data" || change.path() == "/data/ca.crt" {
                *change = set("/data/ca.crt", good.clone());
            }
        }
        let is_mark = changes.iter().any(Change::is_of_one_mark);
        if is_journal || is_mark && verb == Verb::Json { Verb::Merge } else { verb }
    }

    fn write(&mut self, actor: Actor, object: &Object, verb: Verb, changes: Vec<Change>) -> Write {
        let template = self.template(actor, object);
        Write { actor, verb, object: object.clone(), template, changes }
    }

    /// An object as a benign author would send it, except for the CA.
    fn template(&mut self, actor: Actor, object: &Object) -> Value {
        let mut template = match object.kind {
            Secret => json!({ "type": "Opaque", "data": { "ca.crt": base64(self.bundle(actor, &object.ns)) } }),
            ConfigMap => json!({ "data": { "ca.crt": self.bundle(actor, &object.ns) } }),
            Deployment => {
                let mut deployment = deployment(&object.name, "root", &[]);
                deployment["spec"]["replicas"] = json!(0);
                deployment
            }
            Gateway => {
                let of = self.of(&[self.tenants.a.clone(), self.tenants.b.clone()]);
                istio(&object.name, "managed", &of)
            }
            GatewaySecret => {
                json!({ "spec": { "sourceSecretName": "root", "workloadLabels": { "istio": object.ns } } })
            }
            TrustConsumer => json!({ "spec": {
                "workloads": [{ "kind": "Deployment", "name": "app" }],
                "loads": [{ "kind": "Secret", "name": "managed", "keys": ["ca.crt"] }],
            } }),
            ReferenceGrant => json!({ "spec": {
                "from": [{ "group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": self.tenants.b }],
                "to": [{ "group": "", "kind": "Secret" }],
            } }),
            MirroredFile => json!({ "spec": {
                "node": "evil", "path": format!("/etc/{}", object.name),
                "source": { "kind": "Secret", "name": "managed", "key": "ca.crt" },
            } }),
            Role | ClusterRole => json!({ "rules": [] }),
            RoleBinding | ClusterRoleBinding => {
                let group = "rbac.authorization.k8s.io";
                let kind = if object.kind == RoleBinding { "Role" } else { "ClusterRole" };
                json!({
                    "roleRef": { "apiGroup": group, "kind": kind, "name": object.name },
                    "subjects": [{ "apiGroup": group, "kind": "User", "name": "evil" }],
                })
            }
            ClientIdentity => json!({ "spec": { "rules": [], "server": { "endpoint": "https://api.example.com" } } }),
            Lease => json!({ "spec": { "holderIdentity": "evil", "leaseDurationSeconds": 3600 } }),
            MutatingWebhookConfiguration | ValidatingWebhookConfiguration | RotationPolicy => json!({}),
        };
        template["apiVersion"] = json!(object.kind.api_version());
        template["kind"] = json!(object.kind.name());
        template["metadata"] = json!({ "name": object.name });
        if !object.ns.is_empty() {
            template["metadata"]["namespace"] = json!(object.ns);
        }
        // Without these labels the policy denies all Secrets of the approver.
        if actor == Approver && object.kind == Secret && !self.one_in(6) {
            template["metadata"]["labels"] = self.identity_labels(&object.ns);
            if self.one_in(2) {
                template["data"] = json!({ "kubeconfig": base64(self.bundle(actor, &object.ns)) });
            }
        }
        template
    }

    fn identity_labels(&mut self, ns: &str) -> Value {
        let b = self.tenants.b.clone();
        let of = self.of(&[ns, ns, ns, &b, "other"]);
        json!({ "trustspan.dev/client-identity-namespace": of, "trustspan.dev/client-identity-name": "payments" })
    }

    /// CAs with the one of the actor, mostly with those that clients need.
    fn bundle(&mut self, actor: Actor, ns: &str) -> String {
        let evil = self.evil[&actor].clone();
        let good = self.good.get(ns).cloned().unwrap_or_default();
        match self.seed.below(6) {
            0 if actor != Agent => evil,
            1 | 2 => evil + &good,
            3 => format!("# \u{1}\u{1b}[2J\n{good}{evil}"),
            _ => good + &evil,
        }
    }

    fn changes(&mut self, actor: Actor, object: &Object) -> Vec<Change> {
        if self.one_in(3) {
            return vec![self.metadata(object)];
        }
        match object.kind {
            Secret | ConfigMap => self.content(actor, object),
            Gateway => vec![self.gateway()],
            GatewaySecret => vec![self.gateway_secret(actor)],
            Deployment => vec![self.workload()],
            MutatingWebhookConfiguration | ValidatingWebhookConfiguration => vec![self.webhook(actor)],
            Role | ClusterRole => {
                let all = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
                let secrets = json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }]);
                let aggregated =
                    set("/metadata/labels", json!({ "rbac.authorization.k8s.io/aggregate-to-edit": "true" }));
                vec![self.of(&[set("/rules", all), set("/rules", secrets), set("/rules", json!([])), aggregated])]
            }
            RoleBinding | ClusterRoleBinding => {
                let role = self.of(&["cluster-admin", "trustspan-approver-namespace", "edit"]);
                let user = self.of(&["evil".to_owned(), object.name.clone()]);
                let subject = json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }]);
                vec![self.of(&[
                    set(
                        "/roleRef",
                        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role }),
                    ),
                    set("/subjects", subject),
                ])]
            }
            ClientIdentity => {
                let rules = json!([{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }]);
                vec![set("/spec/rules", rules)]
            }
            TrustConsumer => {
                let name = self.of(&["root", "managed", "evil-0"]);
                vec![set("/spec/loads", json!([{ "kind": "Secret", "name": name, "keys": ["tls.key"] }]))]
            }
            MirroredFile => {
                let node = self.of(&["node-1", "evil"]);
                vec![self.of(&[
                    set("/spec/node", json!(node)),
                    set("/status", json!({ "conditions": [] })),
                    set("/spec/source/name", json!("trust")),
                ])]
            }
            Lease | ReferenceGrant | RotationPolicy => vec![set("/spec", json!({}))],
        }
    }

    fn metadata(&mut self, object: &Object) -> Change {
        let owner = self.owners.get(&object.ns).cloned().unwrap_or_else(missing_owner);
        let text = match self.seed.below(20) {
            0 => "x".repeat(HUGE),
            1 => "\u{1}\u{202e}\n\"\\".repeat(200),
            _ => "evil".to_owned(),
        };
        let annotation = |key: &str, value: &str| set(&format!("/metadata/annotations/{key}"), json!(value));
        let label = |key: &str, value: Value| set(&format!("/metadata/labels/{key}"), value);
        let identity = self.identity_labels(&object.ns);
        let own = format!("{}/gateway", self.tenants.b);
        self.of(&[
            set("/metadata/ownerReferences", json!([missing_owner()])),
            set("/metadata/ownerReferences", json!([missing_owner()])),
            set("/metadata/ownerReferences", json!([owner])),
            set("/metadata/ownerReferences", json!([missing_owner(), owner])),
            set("/metadata/finalizers", json!(["example.com/hold"])),
            set("/metadata/deletionTimestamp", json!("2030-01-01T00:00:00Z")),
            set("/metadata/generateName", json!("evil-")),
            set("/metadata/labels", identity),
            set("/metadata/labels", json!({})),
            label("trustspan.dev~1managed", json!("false")),
            label("trustspan.dev~1managed", json!("true")),
            label("trustspan.dev~1client", json!("gateway")),
            label("trustspan.dev~1guard", json!("disabled")),
            annotation("trustspan.dev~1gateway-secret", "gateway"),
            annotation("trustspan.dev~1gateway-secret", &own),
            annotation("trustspan.dev~1adopt", "true"),
            annotation("trustspan.dev~1carry-over", "true"),
            annotation("trustspan.dev~1retired", "true"),
            annotation("trustspan.dev~1resync-requested-at", &text),
            annotation("breakglass.trustspan.dev~1connectivity", "evil"),
            annotation("breakglass.trustspan.dev~1kept-by-agent", "evil"),
            annotation("note", &text),
            set("/metadata/annotations", json!({})),
            Remove("/metadata/annotations".to_owned()),
            Remove("/metadata/labels".to_owned()),
        ])
    }

    fn content(&mut self, actor: Actor, object: &Object) -> Vec<Change> {
        let is_secret = object.kind == Secret;
        let text = |text: &str| if is_secret { json!(base64(text)) } else { json!(text) };
        let data = |key: &str, value: Value| vec![set(&format!("/data/{key}"), value)];
        let bundle = self.bundle(actor, &object.ns);
        match self.seed.below(14) {
            0..=4 => data("ca.crt", text(&bundle)),
            5 => data("cacert", text(&bundle)),
            6 => data("tls.crt", text(&bundle)),
            7 => vec![Remove("/data/ca.crt".to_owned()), set("/data/other", text(&bundle))],
            8 => vec![set("/data", json!({}))],
            9 if self.one_in(4) => data("padding", text(&"x".repeat(HUGE))),
            9 => vec![set("/immutable", json!(true))],
            10 if is_secret => {
                let types = [
                    "kubernetes.io/tls",
                    "istio.io/ca",
                    "Opaque",
                    "kubernetes.io/basic-auth",
                    "kubernetes.io/dockercfg",
                ];
                vec![set("/type", json!(self.of(&types)))]
            }
            11 if is_secret => self.bootstrap_token(object),
            _ if is_secret => vec![
                set("/type", json!("kubernetes.io/service-account-token")),
                set("/metadata/annotations/kubernetes.io~1service-account.name", json!("default")),
            ],
            _ => vec![set("/binaryData/ca.crt", json!(base64(&bundle)))],
        }
    }

    /// A token with which anyone can authenticate.
    fn bootstrap_token(&mut self, object: &Object) -> Vec<Change> {
        let id = object.name.rsplit('-').next().unwrap_or_default().to_owned();
        let own = format!("system:bootstrappers:trustspan:{}:payments", self.tenants.b);
        let kubeadm = "system:bootstrappers:kubeadm:default-node-token";
        let groups = self.of(&[own.clone(), kubeadm.to_owned(), format!("{own},{kubeadm}")]);
        let data = json!({
            "token-id": base64(id), "token-secret": base64("0123456789abcdef"),
            "usage-bootstrap-authentication": base64("true"), "auth-extra-groups": base64(groups),
        });
        vec![set("/type", json!("bootstrap.kubernetes.io/token")), set("/data", data)]
    }

    fn gateway(&mut self) -> Change {
        let Tenants { a, b, .. } = self.tenants.clone();
        let server = "/spec/servers/0/tls";
        let name = self.of(&["root", "managed", "partners", "trust", "evil-0"]);
        let cas = self.of(&[
            format!("configmap://{b}/partners"),
            format!("configmap://{a}/none"),
            format!("configmap://{b}/none"),
            format!("configmap://{b}/trust"),
            "partners-cacert".to_owned(),
            "root".to_owned(),
            "managed-cacert".to_owned(),
        ]);
        let mode = self.of(&["SIMPLE", "MUTUAL", "OPTIONAL_MUTUAL"]);
        let host = self.of(&["*".to_owned(), "x".repeat(200), "\u{1}\n".to_owned()]);
        let of = self.of(&[a, b.clone(), b.clone(), b]);
        self.of(&[
            set(&format!("{server}/credentialName"), json!(name)),
            set(&format!("{server}/caCertCredentialName"), json!(cas)),
            set(&format!("{server}/caCertCredentialName"), json!(cas)),
            set(server, json!({ "mode": "MUTUAL", "credentialName": name, "caCertCredentialName": cas })),
            set(&format!("{server}/credentialNames"), json!([name, "other"])),
            set(&format!("{server}/mode"), json!(mode)),
            set("/spec/servers/0/hosts", json!([host])),
            set("/spec/selector", json!({ "istio": of })),
        ])
    }

    fn gateway_secret(&mut self, actor: Actor) -> Change {
        let Tenants { a, b, .. } = self.tenants.clone();
        let name = self.of(&["root", "managed", "trust", "partners", "client", "evil-0"]);
        let other = if actor == EditorOfA { b } else { a };
        let of = self.of(&[other.clone(), self.tenants.b.clone()]);
        self.of(&[
            set("/spec/sourceSecretName", json!(name)),
            set("/spec/secretName", json!(name)),
            set("/spec/issuerSecretName", json!(name)),
            set("/spec/caSecretRef", json!({ "namespace": of, "name": name })),
            set("/spec/clients", json!({ "namespaces": [of], "secretNames": ["client"], "allDeclared": true })),
            set("/spec/clients", json!({ "caConfigMapNames": ["partners"] })),
            set("/spec/trustBundleTargets", json!([{ "kind": "ConfigMap", "namespace": of, "name": name }])),
            set("/spec/trustBundleTargets", json!([{ "kind": "Secret", "name": name }])),
            set("/spec/additionalTrust", json!([{ "kind": "Secret", "name": name }])),
            set("/spec/workloadLabels", json!({ "istio": of })),
            set("/spec/mode", json!("Copy")),
            set("/spec/paused", json!(true)),
            set("/spec/distrustedCAs", json!(["0".repeat(64)])),
        ])
    }

    fn workload(&mut self) -> Change {
        let pod = "/spec/template/spec";
        let name = self.of(&["managed", "trust", "root", "default-token"]);
        let mut annotations = Map::new();
        annotations
            .insert(self.of(&["trustspan.dev/loaded-hash", "sidecar.istio.io/inject"]).to_owned(), json!("evil"));
        self.of(&[
            set(&format!("{pod}/containers/0/image"), json!("evil")),
            set(&format!("{pod}/serviceAccountName"), json!("evil")),
            set(&format!("{pod}/hostNetwork"), json!(true)),
            set(&format!("{pod}/volumes/0/secret/secretName"), json!(name)),
            set(&format!("{pod}/containers/0/env"), json!([{ "name": "A", "value": "evil" }])),
            set(&format!("{pod}/initContainers"), json!([{ "name": "evil", "image": "evil" }])),
            set("/spec/template/metadata/annotations", Value::Object(annotations)),
            set("/spec/template/metadata/labels/evil", json!("true")),
            set("/spec/replicas", json!(1)),
        ])
    }

    fn webhook(&mut self, actor: Actor) -> Change {
        let ca = base64(&self.evil[&actor]);
        let first = "/webhooks/0";
        self.of(&[
            set(&format!("{first}/clientConfig/caBundle"), json!(ca)),
            set(&format!("{first}/clientConfig/url"), json!("https://127.0.0.1:1/evil")),
            Remove(first.to_owned()),
            Move("/webhooks/1".to_owned(), first.to_owned()),
            set("/webhooks", json!([])),
            set(&format!("{first}/failurePolicy"), json!("Ignore")),
            set(&format!("{first}/timeoutSeconds"), json!(1)),
            set(&format!("{first}/rules"), json!([])),
            set(&format!("{first}/matchConditions"), json!([{ "name": "none", "expression": "false" }])),
            set(&format!("{first}/namespaceSelector"), json!({ "matchLabels": { "evil": "true" } })),
            set(&format!("{first}/objectSelector"), json!({ "matchLabels": { "evil": "true" } })),
        ])
    }
}
