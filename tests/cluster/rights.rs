//! What the ServiceAccounts of the manifests may do: the API server's authorizer is asked about each verb on each Secret of a cluster, and about the
//! rights with which an account could get more.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::stage::{MANAGED, SOURCE, gateway_secret, trustspan};
use crate::testbed::Cluster;

cases![
    service_accounts_may_do_no_more_than_their_tasks,
    names_of_a_tenant_give_the_agent_rights_in_other_namespaces_only_with_consent,
];

/// The ServiceAccounts of the manifests, with their namespaces.
const ACCOUNTS: [(&str, &str); 5] = [
    ("trustspan-system", "trustspan-agent"),
    ("trustspan-system", "trustspan-webhook"),
    ("trustspan-system", "trustspan-approver"),
    ("envoy-gateway-system", "trustspan-certgen"),
    ("trustspan-node", "trustspan-mirror"),
];

const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "impersonate", "list", "patch", "update", "watch"];

/// Rights in a namespace with which an account could get others: verb, group, resource, subresource.
const ESCALATIONS: [(&str, &str, &str, &str); 7] = [
    ("create", "", "pods", ""),
    ("create", "", "pods", "exec"),
    ("create", "", "serviceaccounts", "token"),
    ("create", "apps", "deployments", ""),
    ("create", "batch", "jobs", ""),
    ("create", "rbac.authorization.k8s.io", "roles", ""),
    ("create", "rbac.authorization.k8s.io", "rolebindings", ""),
];

/// The same for objects without a namespace.
const CLUSTER_ESCALATIONS: [(&str, &str, &str, &str); 10] = [
    ("get", "", "nodes", "proxy"),
    ("impersonate", "", "users", ""),
    ("impersonate", "", "groups", ""),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", ""),
    ("patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", ""),
    ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
    ("update", "certificates.k8s.io", "certificatesigningrequests", "approval"),
];

/// Applies these files of the default installation of each component, in the namespaces of the components.
pub(crate) fn install_components(cluster: &Cluster, files: &[&str]) -> Result<()> {
    for ns in ["envoy-gateway-system", "istio-ingress", "trustspan-node"] {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": ns } });
        cluster.apply("default", &namespace.to_string())?;
    }
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
    for component in ["base", "approver", "certgen", "node"] {
        for file in files {
            let file = manifests.join(component).join(file);
            cluster.kubectl(["apply", "--server-side", "--force-conflicts", "-f"]).arg(file).ok()?;
        }
    }
    Ok(())
}

fn service_accounts_may_do_no_more_than_their_tasks(cluster: &Cluster) -> Result<()> {
    install_components(cluster, &["rbac.yaml"])?;
    cluster.with_temp_ns(|gateways| {
        cluster.with_temp_ns(|identities| {
            let mut declared = gateway_secret(gateways);
            declared["metadata"]["namespace"] = json!(gateways);
            let (code, roles) = trustspan(&["rbac"], &declared.to_string())?;
            ensure!(code == Some(0), "trustspan rbac failed: {roles}");
            cluster.apply(gateways, &roles)?;
            let bound = ["create", "rolebinding", "trustspan-approver", "--clusterrole=trustspan-approver-namespace"];
            let approver = "--serviceaccount=trustspan-system:trustspan-approver";
            cluster.kubectl(bound).arg(approver).ns(identities).ok()?;
            compare(
                "Secrets",
                &on_secrets(cluster, gateways, identities)?,
                &expected_on_secrets(gateways, identities),
            )?;
            compare("escalations", &escalations(cluster, gateways, identities)?, &expected_escalations(identities))
        })
    })
}

/// The output of `trustspan rbac`, as an administrator applies it for all namespaces.
fn names_of_a_tenant_give_the_agent_rights_in_other_namespaces_only_with_consent(cluster: &Cluster) -> Result<()> {
    let test = |tenant: &str, other: &str| {
        let mut declared = gateway_secret(tenant);
        declared["metadata"]["namespace"] = json!(tenant);
        let spec = &mut declared["spec"];
        spec["caSecretRef"] = json!({ "namespace": "kube-system", "name": "bootstrap-token-abcdef" });
        spec["issuerSecretName"] = json!("etcd-ca");
        spec["clients"] =
            json!({ "namespaces": [other], "caSecretRef": { "namespace": other, "name": "initial-admin" } });
        let bundle = format!("{tenant}-bundle");
        spec["trustBundleTargets"] = json!([
            { "kind": "ConfigMap", "namespace": "kube-system", "name": "coredns" },
            { "kind": "ClusterTrustBundle", "name": bundle },
        ]);
        let source =
            |namespace: &str| json!({ "kind": "Secret", "namespace": namespace, "name": "ca", "usedBy": "Gateway x" });
        declared["status"] = json!({ "trustSources": [source(other), source("kube-system")] });
        let ask = |(verb, resource, ns, name): (&str, [&str; 2], &str, &str)| {
            let [group, resource] = resource;
            (format!("{ns} {resource} {name}"), attributes(verb, [group, resource, "", ns, name]))
        };
        let secret = ["", "secrets"];
        let asked = [
            ("get", secret, "kube-system", "bootstrap-token-abcdef"),
            ("patch", ["", "configmaps"], "kube-system", "coredns"),
            ("get", secret, "kube-system", "ca"),
            ("get", secret, other, "initial-admin"),
            ("update", secret, other, "etcd-ca"),
            ("guard", secret, other, "ca"),
            ("list", ["cert-manager.io", "certificates"], other, ""),
            ("create", ["certificates.k8s.io", "clustertrustbundles"], "", &bundle),
        ]
        .map(ask);
        let rights_with = |flags: &[&str], objects: &[&Value]| -> Result<Rights> {
            let input = objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>();
            let (code, roles) = trustspan(&[&["rbac"], flags].concat(), &input)?;
            ensure!(code == Some(0), "trustspan rbac failed: {roles}");
            cluster.kubectl(["apply", "-f", "-"]).stdin(roles).ok()?;
            rights(cluster, &asked)
        };
        let expected = |on: &[&str]| -> Rights {
            let right = |on: &&str| {
                let (verb, on) = on.split_once(' ').unwrap_or_default();
                (format!("trustspan-agent {on}"), verb.to_owned())
            };
            on.iter().map(right).collect()
        };
        compare("without consent", &rights_with(&[], &[&declared])?, &Rights::new())?;
        let grant = json!({
            "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
            "metadata": { "namespace": other, "name": "tenant" },
            "spec": {
                "from": [{ "group": "trustspan.dev", "kind": "GatewaySecret", "namespace": tenant }],
                "to": [{ "group": "", "kind": "Secret", "name": "etcd-ca" }],
            },
        });
        // What is read from the API server is what its schema takes.
        cluster.apply(other, &grant.to_string())?;
        let stored = cluster.get("referencegrants.gateway.networking.k8s.io", other, "tenant")?;
        let of_issuer = format!("update {other} secrets etcd-ca");
        compare("by a ReferenceGrant", &rights_with(&[], &[&declared, &stored])?, &expected(&[&of_issuer]))?;
        let flags = ["--allow-namespace=kube-system".to_owned(), format!("--allow-cluster-trust-bundle={bundle}")];
        let seen = rights_with(&flags.each_ref().map(String::as_str), &[&declared, &stored])?;
        let allowed = [
            "get kube-system secrets bootstrap-token-abcdef",
            "patch kube-system configmaps coredns",
            "get kube-system secrets ca",
            &format!("create  clustertrustbundles {bundle}"),
            &of_issuer,
        ];
        compare("by flags", &seen, &expected(&allowed))
    };
    let result = cluster.with_temp_ns(|tenant| cluster.with_temp_ns(|other| test(tenant, other)));
    // kube-system outlives the test.
    let ours = "jsonpath={range .items[?(@.metadata.namespace=='kube-system')]}{.metadata.name} {end}";
    for kind in ["rolebindings", "roles"] {
        let names = cluster.kubectl(["get", kind, "-n", "kube-system", "-o", ours]).ok()?;
        for name in names.split_whitespace().filter(|name| name.starts_with("trustspan-agent:")) {
            cluster.kubectl(["delete", kind, name, "-n", "kube-system"]).ok()?;
        }
    }
    result
}

/// The verbs that each account has on each Secret: `account namespace/name`. `other` is the name of no Secret that trustspan knows.
type Rights = BTreeMap<String, String>;

fn on_secrets(cluster: &Cluster, gateways: &str, identities: &str) -> Result<Rights> {
    let cacert = |name: &str| format!("{name}-cacert");
    let secrets: [(&str, &[&str]); 8] = [
        (gateways, &[MANAGED, &cacert(MANAGED), SOURCE, &cacert(SOURCE), "other"]),
        (identities, &[MANAGED, "other"]),
        ("default", &[MANAGED, SOURCE, "other"]),
        ("kube-system", &["bootstrap-token-abcdef", "other"]),
        ("trustspan-system", &["trustspan-webhook-tls", "trustspan-webhook-certgen-pending", "other"]),
        (
            "envoy-gateway-system",
            &[
                "envoy-gateway",
                "envoy",
                "envoy-rate-limit",
                "envoy-oidc-hmac",
                "envoy-gateway-certgen-pending",
                "other",
            ],
        ),
        ("istio-ingress", &["ingress-gateway", "other"]),
        ("trustspan-node", &["other"]),
    ];
    let mut asked = Vec::new();
    for (ns, names) in secrets {
        // Without a name: all Secrets of the namespace.
        for name in names.iter().chain([&""]) {
            asked.extend(VERBS.map(|verb| (format!("{ns}/{name}"), attributes(verb, ["", "secrets", "", ns, name]))));
        }
    }
    rights(cluster, &asked)
}

fn expected_on_secrets(gateways: &str, identities: &str) -> Rights {
    let (in_gateways, in_identities) =
        (|name: &str| format!("{gateways}/{name}"), |name| format!("{identities}/{name}"));
    let mut expected = Rights::new();
    let mut expect = |account: &str, secret: &str, verbs: &str| {
        expected.insert(format!("{account} {secret}"), verbs.to_owned());
    };
    for name in [MANAGED, &format!("{MANAGED}-cacert")] {
        expect("trustspan-agent", &in_gateways(name), "create get list patch update watch");
    }
    for name in [SOURCE, &format!("{SOURCE}-cacert")] {
        expect("trustspan-agent", &in_gateways(name), "get list watch");
    }
    // A policy refuses the creation of another one.
    for secret in ["trustspan-system/other", "trustspan-system/"] {
        expect("trustspan-agent", secret, "create");
    }
    expect("trustspan-agent", "trustspan-system/trustspan-webhook-tls", "create get list patch watch");
    let pending = "trustspan-system/trustspan-webhook-certgen-pending";
    expect("trustspan-agent", pending, "create delete get list patch watch");

    for name in [MANAGED, "other", ""] {
        expect("trustspan-approver", &in_identities(name), "create get patch");
    }
    // Bootstrap tokens, which it cannot read.
    for name in ["bootstrap-token-abcdef", "other", ""] {
        expect("trustspan-approver", &format!("kube-system/{name}"), "create delete");
    }

    let certgen = |name: &str| format!("envoy-gateway-system/{name}");
    for name in ["envoy-gateway", "envoy", "envoy-rate-limit"] {
        expect("trustspan-certgen", &certgen(name), "create get patch");
    }
    expect("trustspan-certgen", &certgen("envoy-oidc-hmac"), "create get");
    expect("trustspan-certgen", &certgen("envoy-gateway-certgen-pending"), "create delete get patch");
    for name in ["other", ""] {
        expect("trustspan-certgen", &certgen(name), "create");
    }
    expect("trustspan-mirror", "istio-ingress/ingress-gateway", "get list watch");
    expected
}

fn escalations(cluster: &Cluster, gateways: &str, identities: &str) -> Result<Rights> {
    let namespaces =
        [gateways, identities, "default", "kube-system", "trustspan-system", "envoy-gateway-system", "istio-ingress"];
    let in_namespaces = namespaces.into_iter().flat_map(|ns| ESCALATIONS.map(|right| (ns, right)));
    let asked = in_namespaces.chain(CLUSTER_ESCALATIONS.map(|right| ("", right)));
    let asked = asked.map(|(ns, (verb, group, resource, subresource))| {
        (format!("{ns} {resource}/{subresource}"), attributes(verb, [group, resource, subresource, ns, ""]))
    });
    rights(cluster, &asked.collect::<Vec<_>>())
}

/// Only the approver has some: it approves certificates, and grants rights to clients, of which it can grant none that it lacks (Kubernetes: privilege
/// escalation prevention).
fn expected_escalations(identities: &str) -> Rights {
    let expected = [
        (identities, "roles/", "create"),
        (identities, "rolebindings/", "create"),
        ("", "clusterrolebindings/", "create"),
        ("", "certificatesigningrequests/approval", "update"),
    ];
    expected.map(|(ns, on, verb)| (format!("trustspan-approver {ns} {on}"), verb.to_owned())).into()
}

fn attributes(verb: &str, [group, resource, subresource, namespace, name]: [&str; 5]) -> Value {
    json!({
        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace, "name": name,
    })
}

/// Asks about each request for each account. Requests of all verbs on the same thing are one entry.
fn rights(cluster: &Cluster, asked: &[(String, Value)]) -> Result<Rights> {
    let mut rights = Rights::new();
    for (namespace, account) in ACCOUNTS {
        let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"];
        let reviews = asked.iter().map(|(_, attributes)| {
            json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {
                    "user": format!("system:serviceaccount:{namespace}:{account}"), "groups": groups,
                    "resourceAttributes": attributes,
                },
            })
        });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": reviews.collect::<Vec<_>>() });
        let answered = cluster.kubectl(["create", "-f", "-", "-o", "json"]).stdin(list.to_string()).ok()?;
        let answered = serde_json::Deserializer::from_str(&answered).into_iter().collect::<Result<Vec<Value>, _>>()?;
        ensure!(answered.len() == asked.len(), "{} answers to {} questions", answered.len(), asked.len());
        for ((on, attributes), review) in asked.iter().zip(&answered) {
            ensure!(review["spec"]["resourceAttributes"]["verb"] == attributes["verb"], "another order: {review}");
            if review["status"]["allowed"] == true {
                let verbs = rights.entry(format!("{account} {on}")).or_default();
                let space = if verbs.is_empty() { "" } else { " " };
                *verbs += &format!("{space}{}", attributes["verb"].as_str().unwrap_or_default());
            }
        }
    }
    println!("{} questions for each of {} accounts, {} rights", asked.len(), ACCOUNTS.len(), rights.len());
    Ok(rights)
}

fn compare(what: &str, seen: &Rights, expected: &Rights) -> Result<()> {
    let lines = |one: &Rights, other: &Rights| {
        let only = one.iter().filter(|(on, verbs)| other.get(*on) != Some(*verbs));
        only.map(|(on, verbs)| format!("\n  {on}: {verbs}")).collect::<String>()
    };
    let (more, less) = (lines(seen, expected), lines(expected, seen));
    ensure!(more.is_empty() && less.is_empty(), "{what}: seen, and not expected:{more}\nexpected, and not seen:{less}");
    Ok(())
}
