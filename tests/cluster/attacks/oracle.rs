//! What has to be true whatever was written: whose CAs are trusted where, which tokens exist, and what is as it was.

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Result;
use base64::{Engine, engine::general_purpose::STANDARD};
use kube::Client;
use serde_json::{Value, json};

use super::Actor::{self, Agent, Approver, Certgen, EditorOfA, EditorOfB};
use super::objects::{DELETED, Kind, Kind::*, Object, Tenants, content, list};

const IDENTITY: &str = "trustspan.dev:client-identity:";
/// The start of the only group that a token of a ClientIdentity gives.
const GROUP: &str = "system:bootstrappers:trustspan:";
/// Types of Secrets with which anyone authenticates who can read them.
const TOKENS: [&str; 2] = ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];

/// An object from which a program takes CAs.
pub(super) struct Place {
    pub(super) object: Object,
    /// Whose CAs may be in it.
    givers: &'static [Actor],
    /// Gateways need this CA of it, while it exists.
    needs: bool,
}

/// What something has to be, and is not.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) object: Object,
    pub(super) found: String,
}

pub(super) struct Oracle {
    tenants: Tenants,
    places: Vec<Place>,
    /// Objects that no actor may replace by another one, or that none may change, with what is compared.
    protected: Vec<(Object, Value)>,
    evil: BTreeMap<Actor, String>,
    mirrored: PathBuf,
}

/// A PEM text as one line, so that it is found in every layout.
pub(super) fn squeezed(pem: &str) -> String {
    pem.split_whitespace().filter(|line| !line.starts_with('-') && !line.ends_with('-')).collect()
}

/// The paths by which a CA travels, with those who can put one in.
fn places(Tenants { a, b, c }: &Tenants) -> Vec<Place> {
    let mut places = Vec::new();
    let mut add = |ns: &str, objects: &[(Kind, &str)], givers: &'static [Actor], needs| {
        let place = |(kind, name): &(Kind, &str)| Place { object: Object::new(*kind, ns, name), givers, needs };
        places.extend(objects.iter().map(place));
    };
    let sources = [(Secret, "root"), (Secret, "root-cacert"), (Secret, "client")];
    let partners = [(Secret, "partners-cacert"), (ConfigMap, "partners")];
    let kept = [(Secret, "managed"), (Secret, "managed-cacert"), (Secret, "trust"), (ConfigMap, "trust")];
    // The issuer's Secrets: editors of the namespace, who may write every Secret.
    add(a, &sources, &[EditorOfA], false);
    add(b, &sources[..2], &[EditorOfB], false);
    // The webhook gives a client the bundle of the gateways.
    add(b, &sources[2..], &[EditorOfB, Agent], false);
    // Sources from which gateways take CAs: the same editors. No account of trustspan writes them.
    add(a, &partners, &[EditorOfA], false);
    add(b, &partners, &[EditorOfB], true);
    for kind in [Secret, ConfigMap] {
        add(c, &DELETED.map(|name| (kind, name)), &[EditorOfB], true);
    }
    add(c, &[(Secret, "gateway"), (Secret, "gateway-cacert")], &[EditorOfB], true);
    // What the agent writes: from the source Secret, or what a stolen token of the agent has in its place (docs/tenants.md).
    add(a, &kept, &[EditorOfA, Agent], false);
    add(b, &kept, &[EditorOfB, Agent], true);
    // Other components' Secrets: their own account.
    let control_plane = [(Secret, "envoy-gateway"), (Secret, "envoy"), (Secret, "envoy-rate-limit")];
    add("envoy-gateway-system", &control_plane, &[Certgen], false);
    add("trustspan-system", &[(Secret, "trustspan-webhook-tls")], &[Agent], false);
    places
}

/// The texts of a Secret or ConfigMap, as one line.
pub(super) fn texts(object: &Object, stored: &Value) -> String {
    let decoded = |value: &Value| {
        let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let is_secret = object.kind == Secret;
    let plain = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |field: &str, decode: &dyn Fn(&Value) -> String| {
        let entries = stored[field].as_object().into_iter().flatten();
        // No program takes CAs of its clients or servers from a kubeconfig in these Secrets.
        entries.filter(|(key, _)| *key != "kubeconfig").map(|(_, value)| decode(value)).collect::<String>()
    };
    let all = of("data", if is_secret { &decoded } else { &plain }) + &of("binaryData", &decoded);
    all.split_whitespace().collect()
}

/// The actors that wrote one of these fields, from `metadata.managedFields`.
fn writers(stored: &Value, fields: &[&str]) -> Vec<Actor> {
    let entries = stored["metadata"]["managedFields"].as_array().into_iter().flatten();
    let wrote = |entry: &&Value| {
        fields.iter().any(|field| match field.strip_prefix("metadata.") {
            Some(field) => !entry["fieldsV1"]["f:metadata"][format!("f:{field}")].is_null(),
            None => !entry["fieldsV1"][format!("f:{field}")].is_null(),
        })
    };
    let actor = |entry: &Value| Actor::ALL.into_iter().find(|actor| entry["manager"] == actor.name());
    entries.filter(wrote).filter_map(actor).collect()
}

impl Oracle {
    pub(super) fn new(tenants: Tenants, evil: &BTreeMap<Actor, String>, mirrored: PathBuf) -> Self {
        let evil = evil.iter().map(|(actor, pem)| (*actor, squeezed(pem))).collect();
        Self { places: places(&tenants), tenants, protected: Vec::new(), evil, mirrored }
    }

    /// Keeps how the protected objects are now.
    pub(super) async fn protect(&mut self, admin: &Client) -> Result<()> {
        let Tenants { b, c, .. } = &self.tenants;
        let mut objects = Vec::new();
        let mut add =
            |kind, ns: &str, names: &[&str]| objects.extend(names.iter().map(|name| Object::new(kind, ns, name)));
        add(Secret, b, &["managed", "trust", "partners-cacert"]);
        add(ConfigMap, b, &["trust", "partners", "gateway.trustspan-journal"]);
        add(Secret, c, &["gateway"]);
        add(Deployment, b, &["app"]);
        add(Gateway, b, &["shop", "partners", "partners-map"]);
        add(GatewaySecret, b, &["gateway"]);
        add(GatewaySecret, c, &["static"]);
        add(RotationPolicy, b, &["default"]);
        add(TrustConsumer, b, &["limits"]);
        add(ClientIdentity, b, &["payments"]);
        add(MutatingWebhookConfiguration, "", &["trustspan"]);
        add(ValidatingWebhookConfiguration, "", &["trustspan"]);
        add(ClusterRole, "", &["cluster-admin", "edit", "trustspan-agent", "trustspan-approver"]);
        add(ClusterRoleBinding, "", &["cluster-admin", "trustspan-agent", "trustspan-approver"]);
        add(Secret, "kube-system", &["bootstrap-token-kubead"]);
        add(Secret, "trustspan-system", &["trustspan-webhook-tls"]);
        add(Secret, "envoy-gateway-system", &["envoy-gateway", "envoy", "envoy-rate-limit", "envoy-oidc-hmac"]);
        add(Deployment, "envoy-gateway-system", &["envoy-ratelimit"]);
        self.protected.clear();
        for object in objects {
            let stored = object.get(admin).await?.unwrap_or_default();
            let compared = compared(&object, &stored);
            self.protected.push((object, compared));
        }
        Ok(())
    }

    /// What has changed of a protected object.
    pub(super) async fn changed(&self, admin: &Client, object: &Object) -> Result<Option<Violation>> {
        let Some((_, before)) = self.protected.iter().find(|(other, _)| other == object) else { return Ok(None) };
        let after = object.get(admin).await?.map(|stored| compared(object, &stored));
        let found = match after {
            None => "is gone".to_owned(),
            Some(after) if after == *before => return Ok(None),
            Some(after) => format!("was {before}, is {after}"),
        };
        Ok(Some(Violation { object: object.clone(), found }))
    }

    /// Whether all protected objects are as they were.
    pub(super) async fn unchanged(&self, admin: &Client) -> Result<Vec<Violation>> {
        let mut violations = Vec::new();
        for (object, _) in &self.protected {
            violations.extend(self.changed(admin, object).await?);
        }
        for kind in [Role, RoleBinding, ClusterRole, ClusterRoleBinding] {
            for stored in list(admin, kind, "").await? {
                if let Some(found) = grants(kind, &stored) {
                    let (ns, name) = (&stored["metadata"]["namespace"], &stored["metadata"]["name"]);
                    let (ns, name) = (ns.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
                    violations.push(Violation { object: Object::new(kind, ns, name), found });
                }
            }
        }
        Ok(violations)
    }

    /// Whether gateways, clients, targets and the mirrored file trust only CAs of those who may give them, and no account made a token.
    /// `good` has the CAs that clients of a namespace need.
    pub(super) async fn trust(&self, admin: &Client, good: &BTreeMap<String, String>) -> Result<Vec<Violation>> {
        let Tenants { a, b, c } = &self.tenants;
        let mut violations = Vec::new();
        let namespaces = [a, b, c, "kube-system", "trustspan-system", "envoy-gateway-system"];
        let mut found = BTreeMap::new();
        for ns in namespaces {
            for kind in [Secret, ConfigMap] {
                for stored in list(admin, kind, ns).await? {
                    let name = stored["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    found.insert(Object::new(kind, ns, &name), stored);
                }
            }
        }
        for (object, stored) in &found {
            violations.extend(token(object, stored).map(|found| Violation { object: object.clone(), found }));
        }
        for Place { object, givers, needs } in &self.places {
            let Some(stored) = found.get(object) else { continue };
            let texts = texts(object, stored);
            let mut violation = |found: String| violations.push(Violation { object: object.clone(), found });
            for (actor, ca) in &self.evil {
                if texts.contains(ca) && !givers.contains(actor) {
                    violation(format!("has the CA of {}", actor.name()));
                }
            }
            if *needs && !good.get(&object.ns).is_some_and(|good| texts.contains(&squeezed(good))) {
                violation("lacks the CA that clients need".to_owned());
            }
        }
        let file = fs::read_to_string(&self.mirrored)?.split_whitespace().collect::<String>();
        let object = Object::new(MirroredFile, b, "the file");
        for (actor, _) in self.evil.iter().filter(|(_, ca)| file.contains(*ca)) {
            violations.push(Violation { object: object.clone(), found: format!("has the CA of {}", actor.name()) });
        }
        Ok(violations)
    }
}

/// Whether an account of trustspan made a Secret with which anyone authenticates. An editor may: `edit` includes the tokens of its namespace.
fn token(object: &Object, stored: &Value) -> Option<String> {
    if object.kind != Secret || !TOKENS.contains(&stored["type"].as_str()?) {
        return None;
    }
    let writers = writers(stored, &["type", "data"]);
    let account = writers.into_iter().find(|actor| ![EditorOfA, EditorOfB].contains(actor))?;
    let groups = STANDARD.decode(stored["data"]["auth-extra-groups"].as_str().unwrap_or_default()).unwrap_or_default();
    let groups = String::from_utf8_lossy(&groups);
    let is_of_identity = object.ns == "kube-system"
        && stored["type"] == TOKENS[1]
        && groups.split(',').all(|group| group.starts_with(GROUP))
        && !stored["metadata"]["labels"]["trustspan.dev/client-identity-name"].is_null();
    (account != Approver || !is_of_identity).then(|| format!("is a {} of {}", stored["type"], account.name()))
}

/// What a Role or binding of the approver grants to others than the client of a ClientIdentity.
fn grants(kind: Kind, stored: &Value) -> Option<String> {
    let account = *writers(stored, &["rules", "subjects", "roleRef", "metadata.labels"]).first()?;
    let name = stored["metadata"]["name"].as_str().unwrap_or_default();
    let is_own = account == Approver && name.starts_with(IDENTITY);
    let subjects = stored["subjects"].as_array().into_iter().flatten();
    let is_client = |subject: &Value| subject["name"].as_str().is_some_and(|name| name.starts_with("trustspan.dev:"));
    let mut others = subjects.filter(|subject| !is_client(subject));
    let rules = stored["rules"].as_array().into_iter().flatten();
    let mut wide = rules.filter(|rule| kind == ClusterRole && rule["apiGroups"] != json!(["certificates.k8s.io"]));
    if let Some(rule) = wide.next() {
        return Some(format!("of {} allows {rule}", account.name()));
    }
    let is_bound = stored["roleRef"].is_null() || stored["roleRef"]["name"] == name;
    let is_harmless = is_own && is_bound && others.next().is_none();
    (!is_harmless).then(|| format!("of {}: {}, {}", account.name(), stored["roleRef"], stored["subjects"]))
}

/// What of a protected object has to stay.
fn compared(object: &Object, stored: &Value) -> Value {
    let metadata = &stored["metadata"];
    let whole = |change: &dyn Fn(&mut Value)| {
        let mut whole = content(stored);
        change(&mut whole);
        json!({ "uid": metadata["uid"], "content": whole })
    };
    match object.kind {
        MutatingWebhookConfiguration | ValidatingWebhookConfiguration => whole(&|whole| {
            for webhook in whole["webhooks"].as_array_mut().into_iter().flatten() {
                webhook["clientConfig"]["caBundle"] = Value::Null;
            }
        }),
        Deployment => whole(&|whole| {
            let is_own = |key: &String| key.starts_with("trustspan.dev/");
            for path in ["/metadata/annotations", "/spec/template/metadata/annotations"] {
                let annotations = whole.pointer(path).and_then(Value::as_object);
                let others = annotations.into_iter().flatten().filter(|(key, _)| !is_own(key));
                let others: serde_json::Map<_, _> = others.map(|(key, value)| (key.clone(), value.clone())).collect();
                let (parent, key) = path.rsplit_once('/').unwrap_or_default();
                if let Some(parent) = whole.pointer_mut(parent).and_then(Value::as_object_mut) {
                    parent.insert(key.to_owned(), Value::Object(others));
                }
            }
            // The agent lets it use the Secrets that it writes.
            for volume in whole["spec"]["template"]["spec"]["volumes"].as_array_mut().into_iter().flatten() {
                if volume["secret"]["secretName"] == "trust" {
                    volume["secret"]["secretName"] = json!("managed");
                }
            }
        }),
        ClientIdentity => whole(&|whole| {
            if let Some(annotations) = whole["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.remove("trustspan.dev/client-certificate");
            }
        }),
        GatewaySecret | RotationPolicy | TrustConsumer | ClusterRole | ClusterRoleBinding => whole(&|_| {}),
        Secret if object.ns == "kube-system" => whole(&|_| {}),
        Gateway => json!([metadata["uid"], metadata["ownerReferences"], metadata["finalizers"]]),
        _ => json!([metadata["uid"], metadata["ownerReferences"], stored["type"]]),
    }
}
