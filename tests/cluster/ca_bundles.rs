//! CA bundles outside of gateway Secrets, with real kubectl and the opt-in configuration `manifests/ca-bundles`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::stage::{expect, trustspan};
use crate::testbed::{
    Authority, Cluster, Kubectl, Patience, Registration, Scope, Server, Source, User, base64, shipped,
};

cases![
    // This test runs alone: an APIService without a server delays discovery, and with it the deletion of every
    // namespace.
    alone refuses_what_go_or_envoy_would_not_read,
    alone what_is_stored_unsound_can_be_edited,
    break_glass_holds_for_them_too,
    only_secrets_with_a_kubeconfig_are_sent,
    the_configuration_applies_by_kustomize,
];

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/ca-bundles")
}

/// A namespace, a server, and the opt-in configuration. Cluster-scoped objects of the test are deleted at its end.
struct Bed<'c> {
    cluster: &'c Cluster,
    ns: String,
    server: Server<'c>,
}

#[track_caller]
fn on_bed(cluster: &Cluster, test: impl FnOnce(&Bed<'_>) -> Result<()>) -> Result<()> {
    cluster.with_temp_ns(|ns| {
        let server = Server::start_with(cluster, Source::Cluster(User::Webhook), &["--drain-delay=0s"])?;
        let bed = Bed { cluster, ns: ns.to_owned(), server };
        let result = test(&bed);
        let definition = ("customresourcedefinition", format!("things.{}", bed.group()));
        for (kind, name) in [definition, ("apiservice", format!("v1.{}", bed.api_group()))] {
            cluster.kubectl(["delete", kind, &name, "--ignore-not-found"]).ok()?;
        }
        result
    })
}

impl<'c> Bed<'c> {
    /// Registers the base's configurations, for ConfigMaps, and the opt-in ones.
    fn register(&self) -> Result<Registration<'c>> {
        let yaml =
            format!("{}\n---\n{}", shipped("webhooks.yaml")?, fs::read_to_string(folder().join("webhooks.yaml"))?);
        Registration::of(
            &yaml,
            self.cluster,
            &self.server,
            &Scope::Namespaces(vec![self.ns.clone()]),
            Patience::Longest,
        )
    }

    /// An API group for this test only.
    fn group(&self) -> String {
        format!("{}.example.com", self.ns)
    }

    /// A second API group: the API server itself writes the APIServices of a CustomResourceDefinition's group.
    fn api_group(&self) -> String {
        format!("api.{}", self.group())
    }

    fn put(&self, object: &Value, more: &[&str]) -> Kubectl {
        let args: Vec<_> = ["apply", "--server-side", "--force-conflicts", "-f", "-"].iter().chain(more).collect();
        self.cluster.kubectl(args).ns(&self.ns).stdin(object.to_string())
    }

    /// The parts of a stored object that the test compares.
    fn stored(&self, object: &Value) -> Result<Value> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).context("a name");
        let stored = self.cluster.get(text("/kind")?, &self.ns, text("/metadata/name")?)?;
        Ok(json!([stored["spec"], stored["data"]]))
    }

    fn definition(&self, bundle: &str) -> Value {
        let group = self.group();
        let version = |name: &str, storage: bool| {
            let schema = json!({ "openAPIV3Schema": { "type": "object" } });
            json!({ "name": name, "served": true, "storage": storage, "schema": schema })
        };
        let client = json!({ "url": "https://localhost:1/convert", "caBundle": base64(bundle) });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("things.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" },
                "versions": [version("v1", true), version("v2", false)],
                "conversion": {
                    "strategy": "Webhook",
                    "webhook": { "conversionReviewVersions": ["v1"], "clientConfig": client },
                },
            },
        })
    }

    fn api_service(&self, bundle: &str) -> Value {
        let group = self.api_group();
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": format!("v1.{group}") },
            "spec": {
                "group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "service": { "namespace": self.ns, "name": "api" }, "caBundle": base64(bundle),
            },
        })
    }
}

fn config_map(bundle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "roots", "labels": {} },
        "data": { "ca.crt": bundle },
    })
}

fn kubeconfig(bundle: &str) -> Value {
    let cluster = json!({ "server": "https://localhost", "certificate-authority-data": base64(bundle) });
    let config = json!({ "kind": "Config", "clusters": [{ "name": "prod", "cluster": cluster }] });
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "prod-kubeconfig" },
        "stringData": { "value": config.to_string() },
    })
}

fn kubeconfig_of(chain: &str, key: &str) -> Value {
    let user = json!({ "client-certificate-data": base64(chain), "client-key-data": base64(key) });
    let config = json!({ "kind": "Config", "users": [{ "name": "admin", "user": user }] });
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "admin" }, "stringData": { "kubeconfig": config.to_string() },
    })
}

/// An object with this bundle.
type Make<'a> = &'a dyn Fn(&str) -> Value;

fn refuses_what_go_or_envoy_would_not_read(cluster: &Cluster) -> Result<()> {
    on_bed(cluster, |bed| {
        let _registration = bed.register()?;
        let (one, two) = (Authority::new("one")?, Authority::new("two")?);
        let (leaf, key) = one.issue(&["admin"])?;
        let good = one.pem();
        let places: [(Make<'_>, &str); 4] = [
            (&|bundle| bed.definition(bundle), "spec.conversion.webhook.clientConfig.caBundle"),
            (&|bundle| bed.api_service(bundle), "spec.caBundle"),
            (&config_map, "data[ca.crt]"),
            (&kubeconfig, "data[value].clusters[prod].certificate-authority-data"),
        ];
        for (object, field) in places {
            let refused = bed.put(&object("no PEM at all"), &[]).fails()?;
            ensure!(refused.contains("empty: ") && refused.contains(field), "{field}, created: saw {refused}");
            bed.put(&object(&good), &[]).ok()?;
            let before = bed.stored(&object(&good))?;
            for (bundle, rule) in [
                (format!("\u{feff}{}{good}", two.pem()), "dropped-by-proxy"),
                (format!("{good}{key}"), "private-key-in-bundle"),
            ] {
                let refused = bed.put(&object(&bundle), &[]).fails()?;
                ensure!(refused.contains(rule) && refused.contains(field), "{field}, {rule}: saw {refused}");
                ensure!(!refused.contains("PRIVATE KEY-----"), "{field}: {rule} shows a key");
                let asked = bed.put(&object(&bundle), &["--dry-run=server"]).fails()?;
                ensure!(asked == refused, "{field}: dry run: {asked}\napply: {refused}");
                expect(field, &bed.stored(&object(&good))?, before.clone())?;
            }
            // A rotation is allowed: first both CAs, then the new one.
            for bundle in [format!("{good}{}", two.pem()), two.pem()] {
                bed.put(&object(&bundle), &[]).ok()?;
            }
            ensure!(bed.stored(&object(&good))? != before, "{field}: nothing was stored");
        }
        let pair = kubeconfig_of(&leaf, &key);
        bed.put(&pair, &[]).ok()?;
        let before = bed.stored(&pair)?;
        let refused = bed.put(&kubeconfig_of(&leaf, &two.issue(&["other"])?.1), &[]).fails()?;
        ensure!(refused.contains("key-mismatch: data[kubeconfig].users[admin].client-key-data"), "saw {refused}");
        expect("the pair", &bed.stored(&pair)?, before)
    })
}

fn what_is_stored_unsound_can_be_edited(cluster: &Cluster) -> Result<()> {
    on_bed(cluster, |bed| {
        let bad = format!("\u{feff}{}{}", Authority::new("one")?.pem(), Authority::new("two")?.pem());
        let objects = [bed.definition(&bad), bed.api_service(&bad), config_map(&bad), kubeconfig(&bad)];
        for object in &objects {
            bed.put(object, &[]).ok()?;
        }
        let _registration = bed.register()?;
        for mut object in objects {
            object["metadata"]["labels"]["team"] = json!("checkout");
            let output = bed.put(&object, &[]).run()?;
            let warned = output.success() && output.stderr.contains("dropped-by-proxy");
            ensure!(warned, "{}: saw {output:?}", object["kind"]);
        }
        // `trustspan check` gives the same verdict on the stored objects.
        let stored = cluster.kubectl(["get", "configmaps,secrets", "-o", "yaml"]).ns(&bed.ns).ok()?;
        let (code, printed) = trustspan(&["check", "-f", "-"], &stored)?;
        ensure!(code == Some(1) && printed.matches("dropped-by-proxy").count() == 2, "{code:?}: {printed}");
        Ok(())
    })
}

fn break_glass_holds_for_them_too(cluster: &Cluster) -> Result<()> {
    on_bed(cluster, |bed| {
        let _registration = bed.register()?;
        for (mut object, user) in [(bed.definition("prose"), User::Admin), (config_map("prose"), User::Admin)] {
            let annotations = json!({ "breakglass.trustspan.dev/empty": "ticket 4711" });
            object["metadata"]["annotations"] = annotations;
            let output = bed.put(&object, &["--dry-run=server"]).user(user).run()?;
            let allowed = output.success() && output.stderr.contains("break-glass (ticket 4711)");
            ensure!(allowed, "{}: saw {output:?}", object["kind"]);
        }
        let mut planted = config_map(&Authority::new("one")?.pem());
        planted["metadata"]["annotations"] = json!({ "breakglass.trustspan.dev/empty": "later" });
        let refused = bed.put(&planted, &[]).user(User::Dev).fails()?;
        ensure!(refused.contains("break-glass:"), "saw {refused}");
        Ok(())
    })
}

fn only_secrets_with_a_kubeconfig_are_sent(cluster: &Cluster) -> Result<()> {
    on_bed(cluster, |bed| {
        let _registration = bed.register()?;
        let reviews = || -> Result<usize> {
            let metrics = bed.server.metrics()?;
            // Lines on cluster-scoped objects of other tests are left out.
            let of_kind = |line: &&str| line.contains(r#"kind="Secret""#) || line.contains(r#"kind="ConfigMap""#);
            let counted = metrics.lines().filter(|line| line.starts_with("trustspan_admission_requests_total{"));
            let counted = counted.filter(of_kind);
            let counts =
                counted.map(|line| line.rsplit(' ').next().context("a value")?.parse::<usize>().context("a count"));
            counts.sum()
        };
        let before = reviews()?;
        for (kind, literal) in [("secret", "--from-literal=value=x"), ("configmap", "--from-literal=value=x")] {
            let generic: &[&str] = if kind == "secret" { &["generic"] } else { &[] };
            let args: Vec<_> = ["create", kind].iter().chain(generic).chain(&["plain", literal]).copied().collect();
            cluster.kubectl(args).ns(&bed.ns).ok()?;
        }
        expect("reviews", &json!(reviews()?), before)?;
        // Base64 encodes a word in three ways, depending on its offset.
        for shift in 0..3 {
            let mut object = kubeconfig(&Authority::new("one")?.pem());
            object["metadata"]["name"] = json!(format!("shifted-{shift}"));
            let text = object["stringData"]["value"].as_str().context("a text")?;
            object["stringData"]["value"] = json!(" ".repeat(shift) + text);
            bed.put(&object, &[]).ok()?;
            expect("reviews", &json!(reviews()?), before + 1 + shift)?;
        }
        Ok(())
    })
}

fn the_configuration_applies_by_kustomize(cluster: &Cluster) -> Result<()> {
    let folder = folder().display().to_string();
    cluster.kubectl(["apply", "--server-side", "--dry-run=server", "-k", &folder]).ok().map(drop)
}
