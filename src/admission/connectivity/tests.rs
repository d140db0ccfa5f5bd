#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::admission::{Decision, Kind, Request, validate};
use crate::api::names::{MANAGED_LABEL, RETIRED};
use crate::api::{GatewaySecretStatus, Leaf as ActiveLeaf, LeafKind, ProbeTarget, TrustAnchor, TrustSourceUse};
use crate::json::{Json, json};
use crate::registry::tests::entry;
use crate::rotation::Inventory;
use crate::trust::fixtures::{Authority, Leaf, ca, ca_between};
use crate::trust::{Certificate, Secret, TlsConsumer, Verdict, bundle, credential};

/// Three long-lived CAs, one that expires in 2032, and a renewal of the first one with the same key.
static CAS: LazyLock<Vec<Authority>> = LazyLock::new(|| {
    let mut cas = vec![ca("a"), ca("b"), ca("c"), ca_between("short", 2026, 2032)];
    cas.push(cas[0].renewed(2028, 2050));
    cas
});
/// For each CA, a leaf that expires in 2031 and one that expires in 2036.
static LEAVES: LazyLock<Vec<[Leaf; 2]>> = LazyLock::new(|| {
    CAS.iter().map(|ca| [2031, 2036].map(|end| ca.leaf_between("leaf.example.com", 2029, end))).collect()
});

fn at(year: i16) -> Timestamp {
    format!("{year}-01-01T00:00:00Z").parse().unwrap()
}

/// The content of a Secret: CAs, in order, and a leaf.
#[derive(Clone, Debug, PartialEq)]
struct Content {
    cas: Vec<usize>,
    leaf: (usize, usize),
    keys: Keys,
}

/// The keys of the content.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keys {
    /// `ca.crt`, `tls.crt` and `tls.key`.
    Tls,
    /// `cacert`, `cert` and `key`.
    Generic,
    /// The keys of both styles. Gateways read `cacert`, `cert` and `key`; the other keys have other content.
    Both,
}

impl Content {
    fn new(cas: &[usize], ca: usize) -> Self {
        Self { cas: cas.to_vec(), leaf: (ca, 1), keys: Keys::Tls }
    }

    fn object(&self, name: &str) -> Json<'static> {
        let text = |cas: &[usize]| cas.iter().map(|ca| CAS[*ca].pem()).collect::<String>();
        let content = |cas: &[usize], leaf: &Leaf| [text(cas), leaf.pem(), leaf.key_pem()];
        let (own, other) = (content(&self.cas, &LEAVES[self.leaf.0][self.leaf.1]), content(&[2], &LEAVES[2][1]));
        let (tls, generic) = (["ca.crt", "tls.crt", "tls.key"], ["cacert", "cert", "key"]);
        let data: BTreeMap<_, _> = match self.keys {
            Keys::Tls => std::iter::zip(tls, own).collect(),
            Keys::Generic => std::iter::zip(generic, own).collect(),
            Keys::Both => std::iter::zip(tls, other).chain(std::iter::zip(generic, own)).collect(),
        };
        let labels: BTreeMap<_, _> = match name {
            "gw" => [(MANAGED_LABEL, "true")].into(),
            name if name.ends_with(CACERT_SUFFIX) => BTreeMap::new(),
            _ => [(CLIENT_LABEL, "gw")].into(),
        };
        let annotations: BTreeMap<_, _> = (name == "retired").then_some((RETIRED, "true")).into_iter().collect();
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"namespace": "mesh", "name": name, "labels": labels, "annotations": annotations},
            "stringData": data,
        })
    }

    fn anchors(&self) -> Vec<Certificate> {
        crate::trust::anchors(&Secret::from_json(&self.object("x")).unwrap())
    }

    fn chain(&self) -> Vec<Certificate> {
        let secret = Secret::from_json(&self.object("x")).unwrap();
        bundle::read_chain(credential::serving_pair(&secret).unwrap().chain).into_certificates()
    }
}

/// All Secrets of a namespace. `gw` is the managed Secret, and the others belong to clients.
#[derive(Clone, Debug)]
struct Cluster {
    secrets: BTreeMap<String, Content>,
    mode: Mode,
    distrust: Vec<String>,
}

impl Cluster {
    fn new(managed: Content) -> Self {
        Self { secrets: [("gw".to_owned(), managed)].into(), mode: Mode::Bundle, distrust: Vec::new() }
    }

    fn with(mut self, name: &str, content: Content) -> Self {
        self.secrets.insert(name.to_owned(), content);
        self
    }

    fn registry(&self, now: Timestamp) -> Registry {
        let mut bare = entry("mesh", "root", "gw");
        bare.status = GatewaySecretStatus::default();
        bare.spec.mode = self.mode;
        bare.spec.distrusted_cas = self.distrust.clone();
        bare.policy.probe.target = Some(ProbeTarget {
            service_name: "gateway".to_owned(),
            port_name: "https".to_owned(),
            host: "shop.example.com".to_owned(),
            client_secret_name: Some("canary".to_owned()),
        });
        let mut inventory = Inventory::new([bare]);
        self.secrets.iter().for_each(|(name, content)| inventory.take(&(&content.object(name)).into(), "mesh", now));
        inventory.into_registry(crate::rotation::Outlook::Whole, now)
    }

    fn decide(&self, name: &str, content: &Content, now: Timestamp) -> Decision {
        let (object, old) = (content.object(name), self.secrets.get(name).map(|old| old.object(name)));
        let kind = Kind { group: "", version: "v1", kind: "Secret" };
        let request = Request { name, ..Request::fixture(kind, Some(&object), old.as_ref()) };
        validate(&request, &self.registry(now), &Severities::default(), now)
    }

    /// Messages of rule connectivity for an update.
    fn broken(&self, name: &str, content: &Content) -> Vec<(Severity, String)> {
        let findings = self.decide(name, content, at(2030)).findings;
        findings.into_iter().filter(|f| f.rule == CONNECTIVITY.id).map(|f| (f.severity, f.message)).collect()
    }

    /// The findings when the first of two CAs is removed.
    fn without_first_ca(status: &GatewaySecretStatus) -> Vec<connectivity::Broken> {
        let secrets = [&[0, 1][..], &[1]].map(|cas| Secret::from_json(&Content::new(cas, 1).object("gw")).unwrap());
        let [old, new] = [0, 1].map(|at: usize| ParsedSecret::new(&secrets[at], TlsConsumer::Envoy));
        connectivity::managed(&old, &new, status, &[], "mesh", at(2030))
    }

    /// For each client: whether gateways accept it, and whether it verifies them.
    fn works(&self, now: Timestamp) -> BTreeMap<String, (bool, bool)> {
        let managed = &self.secrets["gw"];
        let (bundle, served) = (managed.anchors(), managed.chain());
        let clients = self.secrets.iter().filter(|(name, _)| *name != "gw");
        let works = clients.map(|(name, client)| {
            let admitted = connectivity::admits(&bundle, &client.chain(), now);
            (name.clone(), (admitted, connectivity::verifies(&client.anchors(), &served, now)))
        });
        works.collect()
    }

    /// Whether the leaf of a Secret, or the CA of the leaf, has expired.
    fn has_ended(&self, name: &str, now: Timestamp) -> bool {
        let (ca, leaf) = self.secrets[name].leaf;
        now >= at(if leaf == 0 {
            2031
        } else if ca == 3 {
            2032
        } else {
            2036
        })
    }
}

#[test]
fn rejects_the_removal_of_the_ca_of_active_clients() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1))
        .with("shop", Content::new(&[1], 0))
        .with("payments", Content::new(&[1], 1));
    let found = cluster.broken("gw", &Content::new(&[1], 1));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, Severity::Deny);
    for words in ["1 active client certificate (shop)", "2036-01-01T00:00:00Z", "renewed"] {
        assert!(found[0].1.contains(words), "{}", found[0].1);
    }
    let many =
        ["d", "e", "f"].into_iter().fold(cluster.clone(), |cluster, name| cluster.with(name, Content::new(&[1], 0)));
    assert!(
        many.broken("gw", &Content::new(&[1], 1))[0].1.contains("4 active client certificates (d, e, f and 1 more)")
    );
    assert_eq!(cluster.broken("gw", &Content::new(&[1, 2, 0], 1)), [], "no client is cut off");
    let copy = Cluster { mode: Mode::Copy, ..cluster };
    assert_eq!(copy.broken("gw", &Content::new(&[1], 1))[0].0, Severity::Warn);
}

#[test]
fn ignores_what_is_not_observed_and_hides_other_namespaces() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let registry = cluster.registry(at(2030));
    let mut entry = registry.entries()[0].as_ref().clone();
    let messages = |status: &GatewaySecretStatus| Cluster::without_first_ca(status);
    entry.status.leaves.as_mut().unwrap()[0].namespace = "elsewhere".to_owned();
    let told = messages(&entry.status);
    assert!(told[0].1.contains("(in other namespaces)") && !told[0].1.contains("shop"), "{told:?}");
    (entry.status.leaves, entry.status.client_trust) = (None, None);
    assert_eq!(messages(&entry.status), []);
}

/// Six chains of nearly a hundred certificates need more signature checks than one response may cost.
#[test]
fn rejects_what_takes_too_long_to_verify() {
    let chain = || {
        // Envoy rejects a chain of 32 to 64 KiB.
        let long = |params: &mut rcgen::CertificateParams| {
            params.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[1, 2, 3], vec![0; 400])];
        };
        let mut cas = vec![CAS[0].intermediate("0", long)];
        for number in 1..95 {
            cas.push(cas[number - 1].intermediate(&number.to_string(), long));
        }
        cas[94].leaf("leaf.example.com").pem() + &cas.iter().rev().map(Authority::pem).collect::<String>()
    };
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let mut status = cluster.registry(at(2030)).entries()[0].status.clone();
    let leaf = status.leaves.as_ref().unwrap().iter().find(|leaf| leaf.name == "shop").unwrap().clone();
    status.leaves = Some((0..6).map(|_| crate::api::Leaf { pem: chain(), ..leaf.clone() }).collect());
    let told = Cluster::without_first_ca(&status);
    for words in ["6 active client certificates", "for 1 of them", "more than 512 signatures", "one by one"] {
        assert!(told[0].1.contains(words), "{told:?}");
    }
    status.leaves.as_mut().unwrap().pop();
    let told = Cluster::without_first_ca(&status);
    assert!(
        told[0].1.contains("removes every CA of 5 active client certificates (shop, shop, shop and 2 more)"),
        "{told:?}"
    );
}

/// Istio takes CAs from a `-cacert` Secret as soon as it exists.
#[test]
fn rejects_a_sibling_without_the_ca_of_active_clients() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let found = cluster.broken("gw-cacert", &Content::new(&[1], 1));
    assert!(found[0].1.contains("removes every CA of 1 active client certificate (shop)"), "{found:?}");
    assert_eq!(found[0].0, Severity::Deny);
    assert_eq!(cluster.broken("gw-cacert", &Content::new(&[2, 0], 1)), [], "no client is cut off");
    assert_eq!(cluster.broken("root-cacert", &Content::new(&[1], 1)), [], "gateways do not use the source Secret");
    // From now on gateways use the CAs of the sibling.
    let shadowed = cluster.clone().with("gw-cacert", Content::new(&[2, 0], 1));
    assert_eq!(shadowed.broken("gw-cacert", &Content::new(&[2], 1)).len(), 1);
    assert_eq!(shadowed.broken("gw-cacert", &Content::new(&[0], 1)), []);
    let copy = Cluster { mode: Mode::Copy, ..cluster };
    assert_eq!(copy.broken("gw-cacert", &Content::new(&[1], 1))[0].0, Severity::Warn);
}

/// A Secret or ConfigMap of a partner from which gateways take CAs, with ours in it.
#[test]
fn rejects_a_source_of_trust_without_the_ca_of_active_clients() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let mut entry = cluster.registry(at(2030)).entries()[0].as_ref().clone();
    let source = |kind: &str| TrustSourceUse {
        kind: kind.to_owned(),
        namespace: "mesh".to_owned(),
        name: "partners".to_owned(),
        used_by: "Gateway apps/public spec.servers[0]".to_owned(),
        accepts_clients: true,
        granted: true,
    };
    entry.status.trust_sources = ["Secret", "ConfigMap"].map(source).to_vec();
    let registry = Registry::new([entry]);
    let text = |cas: &[usize]| cas.iter().map(|ca| CAS[*ca].pem()).collect::<String>();
    let both = text(&[2, 0]);
    let object = |kind: &str, text: &str, owners: &[&str]| {
        let values = json!({"ca.crt": text.to_owned()});
        let (data, string_data) = if kind == "Secret" { (json!({}), values) } else { (values, json!({})) };
        let owners: Vec<_> = owners.iter().map(|uid| json!({"uid": uid.to_string(), "name": "x"})).collect();
        let metadata = json!({"namespace": "mesh", "name": "partners", "ownerReferences": owners});
        json!({"kind": kind.to_owned(), "metadata": metadata, "data": data, "stringData": string_data})
    };
    let judged = |kind: &str, new: Option<&Json<'_>>, old: Option<&Json<'_>>| -> Vec<String> {
        let request = Request::fixture(Kind { group: "", version: "v1", kind }, new, old);
        let found = validate(&request, &registry, &Severities::default(), at(2030)).findings;
        found.into_iter().filter(|f| f.rule == CONNECTIVITY.id).map(|f| format!("{}: {}", f.field, f.message)).collect()
    };
    let broken = |kind: &str, cas: Option<&[usize]>| {
        let (old, new) = (object(kind, &both, &[]), cas.map(|cas| object(kind, &text(cas), &[])));
        judged(kind, new.as_ref(), Some(&old))
    };
    for (kind, cas) in [("Secret", Some(&[2][..])), ("ConfigMap", Some(&[2])), ("Secret", None), ("ConfigMap", None)] {
        let told = broken(kind, cas);
        let expected =
            ["1 active client certificate (shop)", "Gateway apps/public spec.servers[0] takes its clients' CAs"];
        assert!(told.len() == 1 && expected.iter().all(|words| told[0].contains(words)), "{kind} {cas:?}: {told:?}");
    }
    for kind in ["Secret", "ConfigMap"] {
        assert_eq!(broken(kind, Some(&[0])), Vec::<String>::new(), "{kind}: the CA of the partner may be removed");
        // The garbage collector deletes an object with its owner.
        let (stored, owned) = (object(kind, &both, &["1"]), object(kind, &both, &["1", "2"]));
        let taken = judged(kind, Some(&owned), Some(&stored));
        assert!(taken.len() == 1 && taken[0].starts_with("metadata.ownerReferences: the garbage"), "{kind}: {taken:?}");
        assert_eq!(judged(kind, Some(&stored), Some(&owned)), Vec::<String>::new(), "{kind}: an owner was removed");
        // In place of what was deleted.
        let created = |cas| judged(kind, Some(&object(kind, &text(cas), &[])), None);
        assert_eq!((created(&[2]).len(), created(&[2, 0]).len()), (1, 0), "{kind}");
    }
}

#[test]
fn a_source_in_another_namespace_is_protected_only_if_its_owner_consents() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let severities = |granted: bool, cas: Option<&[usize]>| {
        let mut entry = cluster.registry(at(2030)).entries()[0].as_ref().clone();
        entry.status.trust_sources = vec![TrustSourceUse {
            kind: "ConfigMap".to_owned(),
            namespace: "apps".to_owned(),
            name: "partners".to_owned(),
            used_by: "Gateway mesh/public spec.servers[0]".to_owned(),
            accepts_clients: true,
            granted,
        }];
        let object = |cas: &[usize]| {
            let text = cas.iter().map(|ca| CAS[*ca].pem()).collect::<String>();
            json!({"kind": "ConfigMap", "metadata": {"namespace": "apps", "name": "partners"}, "data": {"ca.crt": text}})
        };
        let (old, new) = (object(&[2, 0]), cas.map(object));
        let kind = Kind { group: "", version: "v1", kind: "ConfigMap" };
        let request = Request { namespace: "apps", ..Request::fixture(kind, new.as_ref(), Some(&old)) };
        let found = validate(&request, &Registry::new([entry]), &Severities::default(), at(2030)).findings;
        let found = found.into_iter().filter(|finding| finding.rule == CONNECTIVITY.id);
        found.map(|f| (f.severity, f.message.contains("not rejected without a ReferenceGrant"))).collect::<Vec<_>>()
    };
    for cas in [Some(&[2][..]), None] {
        assert_eq!(severities(true, cas), [(Severity::Deny, false)], "{cas:?}");
        assert_eq!(severities(false, cas), [(Severity::Warn, true)], "{cas:?}");
    }
}

/// istiod takes CAs from `partners-cacert` as soon as it exists.
#[test]
fn a_new_sibling_of_a_source_of_trust_accepts_the_clients_in_use() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let created = |accepts_clients: bool, ca: usize| {
        let mut entry = cluster.registry(at(2030)).entries()[0].as_ref().clone();
        let source = |name: &str| TrustSourceUse {
            kind: "Secret".to_owned(),
            namespace: "mesh".to_owned(),
            name: name.to_owned(),
            used_by: "Gateway apps/public spec.servers[0]".to_owned(),
            accepts_clients: accepts_clients && name == "partners",
            granted: true,
        };
        entry.status.trust_sources = ["partners-cacert", "partners"].map(source).to_vec();
        let object = json!({"metadata": {"namespace": "mesh", "name": "partners-cacert"}, "stringData": {"cacert": CAS[ca].pem()}});
        let request = Request::fixture(Kind { group: "", version: "v1", kind: "Secret" }, Some(&object), None);
        let found = validate(&request, &Registry::new([entry]), &Severities::default(), at(2030)).findings;
        found.into_iter().filter(|f| f.rule == CONNECTIVITY.id).map(|f| f.message).collect::<Vec<_>>()
    };
    let broken = created(true, 2);
    assert!(broken.len() == 1 && broken[0].contains("instead of Secret partners"), "{broken:?}");
    assert_eq!(created(true, 0), Vec::<String>::new());
    assert_eq!(created(false, 2), Vec::<String>::new(), "only partners connect there");
}

/// A rotation may ask for it: istiod takes CAs from the managed Secret then.
#[test]
fn a_cacert_sibling_is_deleted_only_if_the_managed_secret_accepts_the_clients_in_use() {
    let deleted = |cas: &[usize], managed: &[usize]| {
        let cluster = Cluster::new(Content::new(&[1], 1)).with("shop", Content::new(&[1], 0));
        let mut entry = cluster.registry(at(2030)).entries()[0].as_ref().clone();
        let text: String = cas.iter().map(|ca| CAS[*ca].pem()).collect();
        entry.status.bundle = Content::new(managed, 0).anchors().iter().map(crate::api::TrustAnchor::from).collect();
        let old = json!({"metadata": {"namespace": "mesh", "name": "gw-cacert"}, "stringData": {"cacert": text}});
        let request = Request::fixture(Kind { group: "", version: "v1", kind: "Secret" }, None, Some(&old));
        let found = validate(&request, &Registry::new([entry]), &Severities::default(), at(2030)).findings;
        found.into_iter().map(|finding| (finding.severity, finding.message)).collect::<Vec<_>>()
    };
    let broken = deleted(&[0, 1], &[1, 2]);
    let expected = ["1 active client certificate (shop)", "gateways would take CAs from Secret gw instead"];
    assert!(broken.len() == 1 && broken[0].0 == Severity::Deny, "{broken:?}");
    assert!(expected.iter().all(|words| broken[0].1.contains(words)), "{broken:?}");
    assert_eq!(deleted(&[0, 1], &[1, 0]), []);
    assert_eq!(deleted(&[2], &[1]), [], "it refuses the client already");
}

/// The cost of a verdict does not grow with the number of clients.
#[test]
fn accepts_a_bundle_that_accepts_clients_rejected_before() {
    let cluster = Cluster::new(Content::new(&[0, 1], 1)).with("shop", Content::new(&[1], 0));
    let mut status = cluster.registry(at(2030)).entries()[0].status.clone();
    let leaf = status.leaves.as_ref().unwrap().iter().find(|leaf| leaf.name == "shop").unwrap().clone();
    let issued = |_| crate::api::Leaf { pem: CAS[0].leaf("leaf.example.com").pem(), ..leaf.clone() };
    status.leaves = Some((0..800).map(issued).collect());
    let cas = CAS[0].pem() + &CAS[1].pem();
    let broken = format!("{cas}-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n");
    let expired = CAS[0].renewed(2020, 2025).pem();
    let secret = |text: String| Secret::from_json(&json!({"stringData": {"ca.crt": text}})).unwrap();
    let new = secret(cas);
    for old in [broken, CAS[1].pem(), expired].map(secret) {
        let [old, new] = [&old, &new].map(|secret| ParsedSecret::new(secret, TlsConsumer::Envoy));
        assert_eq!(connectivity::managed(&old, &new, &status, &[], "mesh", at(2030)), []);
    }
}

/// The webhook removes a distrusted CA from the bundles of clients.
#[test]
fn accepts_the_removal_of_a_distrusted_ca() {
    let cluster = Cluster::new(Content::new(&[0, 1], 0))
        .with("shop", Content::new(&[0, 1], 0))
        .with("payments", Content::new(&[0, 1], 1));
    let (managed, client) = (Content::new(&[1], 0), Content::new(&[1], 1));
    assert_eq!((cluster.broken("gw", &managed).len(), cluster.broken("shop", &client).len()), (1, 1));
    let distrust = vec![crate::trust::fixtures::parsed(CAS[0].der()).fingerprint];
    let distrusting = Cluster { distrust, ..cluster };
    assert_eq!((distrusting.broken("gw", &managed), distrusting.broken("shop", &client)), (vec![], vec![]));
    // The other CA cannot be removed, because clients use it.
    assert_eq!(distrusting.broken("gw", &Content::new(&[2], 0)).len(), 1);
}

#[test]
fn rejects_a_serving_certificate_that_clients_do_not_verify() {
    // A client that rejects the gateway already does not block an update.
    let cluster = Cluster::new(Content::new(&[0], 0))
        .with("shop", Content::new(&[0, 1], 0))
        .with("payments", Content::new(&[0], 0))
        .with("reports", Content::new(&[2], 0));
    let found = cluster.broken("gw", &Content::new(&[0, 1], 1));
    assert!(found[0].1.contains("clients trust 1 CA, which cannot verify the new serving certificate"), "{found:?}");
    // One client has the renewed CA and another the old one. They count as one CA.
    let renewing = cluster.clone().with("shop", Content::new(&[4], 0)).with("payments", Content::new(&[0], 0));
    assert_eq!(renewing.broken("gw", &Content::new(&[0, 1], 1)).len(), 1);
    assert_eq!(renewing.broken("gw", &Content::new(&[0, 1], 4)), []);
    let distributed = cluster.with("payments", Content::new(&[1, 0], 0));
    assert_eq!(distributed.broken("gw", &Content::new(&[0, 1], 1)), []);
    // A client's Secret must not lose the CA of the serving certificate either.
    let found = distributed.broken("payments", &Content::new(&[1], 0));
    assert!(found[0].1.contains("would no longer verify"), "{found:?}");
}

#[test]
fn rejects_a_client_certificate_before_gateways_trust_its_ca() {
    let cluster = Cluster::new(Content::new(&[0], 0)).with("shop", Content::new(&[0], 0));
    let renewed = Content::new(&[0], 1);
    for name in ["shop", "new"] {
        let found = cluster.broken(name, &renewed);
        assert!(found[0].1.contains("retry then") && found[0].0 == Severity::Deny, "{name}: {found:?}");
    }
    let expanded = Cluster { secrets: BTreeMap::new(), ..cluster.clone() }
        .with("gw", Content::new(&[0, 1], 0))
        .with("shop", Content::new(&[0], 0));
    assert_eq!(expanded.broken("shop", &renewed), []);
    // The canary may get a certificate of the new CA first: it shows whether gateways trust that CA.
    assert_eq!(cluster.broken("canary", &renewed), []);
    // A certificate that gateways already reject may stay.
    let rejected = cluster.with("reports", renewed.clone());
    assert_eq!(rejected.broken("reports", &renewed), []);
}

#[test]
fn a_client_that_no_workload_uses_is_not_judged_and_needs_no_ca() {
    let cluster = Cluster::new(Content::new(&[0, 1], 0)).with("retired", Content::new(&[0], 1));
    assert_eq!(cluster.broken("retired", &Content::new(&[0], 2)), []);
    assert_eq!(cluster.broken("gw", &Content::new(&[0], 0)), []);
    let in_use = cluster.with("shop", Content::new(&[0], 1));
    assert_eq!(in_use.broken("shop", &Content::new(&[0], 2)).len(), 1);
    assert_eq!(in_use.broken("gw", &Content::new(&[0], 0)).len(), 1);
}

#[derive(Clone, Debug)]
enum Step {
    Write { name: &'static str, content: Content },
    Remove(&'static str),
    Wait,
}

fn content() -> impl Strategy<Value = Content> {
    let cas = proptest::sample::subsequence(vec![0_usize, 1, 2, 3, 4], 1..5).prop_shuffle();
    let keys = proptest::sample::select(vec![Keys::Tls, Keys::Tls, Keys::Generic, Keys::Both]);
    (cas, 0..5_usize, 0..2_usize, keys).prop_map(|(cas, ca, leaf, keys)| Content { cas, leaf: (ca, leaf), keys })
}

/// A GatewaySecret whose gateways have these CAs, and whether all have them.
fn gateways(name: &str, bundle: &[(usize, bool)]) -> Entry {
    let mut entry = entry("mesh", &format!("{name}-root"), name);
    let anchor = |(ca, converged): &(usize, bool)| TrustAnchor {
        converged: Some(*converged),
        ..TrustAnchor::from(&Content::new(&[*ca], *ca).anchors()[0])
    };
    entry.status.bundle = bundle.iter().map(anchor).collect();
    entry
}

#[test]
fn a_client_waits_for_the_gateways_of_every_gateway_secret_that_accept_it() {
    let [old, new] = [0, 1].map(|ca| Content::new(&[0, 1], ca).object("payments"));
    let messages = |other: Entry, old: Option<&Json<'_>>| {
        let registry = Registry::new([gateways("gw", &[(0, true), (1, true)]), other]);
        let kind = Kind { group: "", version: "v1", kind: "Secret" };
        let request = Request { name: "payments", ..Request::fixture(kind, Some(&new), old) };
        let findings = validate(&request, &registry, &Severities::default(), at(2030)).findings;
        let findings = findings.into_iter().filter(|finding| finding.rule == CONNECTIVITY.id);
        findings.map(|finding| (finding.severity, finding.message)).collect::<Vec<_>>()
    };
    for lacking in [&[(0, true)][..], &[(1, false), (0, true)]] {
        let messages = messages(gateways("second", lacking), Some(&old));
        let [(Severity::Deny, message)] = messages.as_slice() else { panic!("{messages:?}") };
        assert!(message.starts_with("tls.crt: gateways do not accept CN=leaf.example.com yet"), "{message}");
        assert!(message.ends_with(". these are gateways of GatewaySecret second"), "{message}");
    }
    assert_eq!(messages(gateways("second", &[(1, true), (0, true)]), Some(&old)), []);
    assert_eq!(
        messages(gateways("second", &[(2, true)]), Some(&old)),
        [],
        "they do not accept the present certificate"
    );
    assert_eq!(messages(gateways("second", &[(0, true)]), None), [], "a new client has no connection yet");
    let elsewhere = Entry { namespace: "edge".to_owned(), ..gateways("second", &[(0, true)]) };
    assert_eq!(messages(elsewhere, Some(&old)), [], "it is in another namespace");
    let deleted = Entry { being_deleted: true, ..gateways("second", &[(0, true)]) };
    assert_eq!(messages(deleted, Some(&old)), []);
}

#[test]
fn a_client_keeps_the_ca_of_what_other_gateways_serve() {
    let [old, new] = [&[0, 1][..], &[1]].map(|cas| Content::new(cas, 1).object("payments"));
    let mut second = gateways("second", &[(1, true)]);
    let served = Content::new(&[0], 0).chain();
    second.status.leaves = Some(vec![ActiveLeaf {
        kind: LeafKind::Server,
        namespace: "mesh".to_owned(),
        name: "second".to_owned(),
        subject: served[0].subject.clone(),
        not_after: served[0].not_after,
        pem: served[0].pem(),
        others: Vec::new(),
        same_names: false,
    }]);
    let registry = Registry::new([gateways("gw", &[(1, true)]), second]);
    let kind = Kind { group: "", version: "v1", kind: "Secret" };
    let request = Request { name: "payments", ..Request::fixture(kind, Some(&new), Some(&old)) };
    let findings = validate(&request, &registry, &Severities::default(), at(2030)).findings;
    let message =
        findings.iter().find(|finding| finding.rule == CONNECTIVITY.id).map(|finding| finding.message.as_str());
    assert!(message.is_some_and(|message| message.contains("gateways serve a certificate until")), "{findings:?}");
    assert!(message.is_some_and(|message| message.ends_with("gateways of GatewaySecret second")), "{findings:?}");
}

fn step() -> impl Strategy<Value = Step> {
    let name = proptest::sample::select(vec!["gw", "gw", "gw", "shop", "payments"]);
    prop_oneof![
        12 => (name, content()).prop_map(|(name, content)| Step::Write { name, content }),
        1 => proptest::sample::select(vec!["shop", "payments"]).prop_map(Step::Remove),
        1 => Just(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A random order of issuances, rotations, renewals, removals and expiries. Writes that are allowed break no
    /// connection; only expiry does.
    #[test]
    fn allowed_writes_break_no_connection(steps in proptest::collection::vec(step(), 1..24)) {
        let mut year = 2030;
        let mut cluster = Cluster::new(Content::new(&[0, 1], 0))
            .with("shop", Content::new(&[0, 1], 0))
            .with("payments", Content::new(&[0], 1));
        for step in steps {
            let before = cluster.works(at(year));
            let mut next = cluster.clone();
            let mut written = None;
            let waited = matches!(step, Step::Wait);
            match step {
                Step::Write { name, content } => {
                    if cluster.decide(name, &content, at(year)).verdict() == Verdict::Deny {
                        continue;
                    }
                    written = (name != "gw" && cluster.secrets.get(name).map(|old| old.leaf) != Some(content.leaf))
                        .then_some(name);
                    next = next.with(name, content);
                }
                Step::Remove(name) => drop(next.secrets.remove(name)),
                Step::Wait => year += 1,
            }
            let after = next.works(at(year));
            for (name, (admitted, verifies)) in &after {
                let (was_admitted, verified) = before.get(name).copied().unwrap_or((false, false));
                let ended = |name: &str| waited && next.has_ended(name, at(year));
                prop_assert!(*admitted || !was_admitted || ended(name), "{name} is rejected: {cluster:?}\n{next:?}");
                prop_assert!(*verifies || !verified || ended("gw"), "{name} rejects gateways: {cluster:?}\n{next:?}");
                prop_assert!(*admitted || written != Some(name.as_str()), "{name} came too early: {next:?}");
            }
            cluster = next;
        }
    }
}
