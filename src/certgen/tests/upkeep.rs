use super::*;

impl Cluster {
    fn keep(&mut self) -> Result<Step, Blocked> {
        let options = upkeep(&self.profile, &self.objects, self.now)?;
        self.step(options)
    }

    fn intent(&self) -> Intent {
        upkeep(&self.profile, &self.objects, self.now).unwrap().intent
    }

    /// Makes the writes that are due. Returns the time of the next one; `None` if nothing is left to do.
    fn write_all(&mut self) -> Option<Timestamp> {
        for _ in 0..30 {
            match self.keep().unwrap() {
                Step::Write(_) => {}
                Step::WaitForRollout => self.roll_out(),
                Step::WaitUntil(until) => return Some(until),
                Step::Done(_) => return None,
            }
        }
        panic!("no end of the writes");
    }

    /// Makes all writes of a rotation.
    fn finish(&mut self) {
        for _ in 0..10 {
            match self.write_all() {
                Some(until) => self.now = until,
                None => return,
            }
        }
        panic!("no end of the rotation");
    }

    fn make_due(&mut self) {
        let end = self.read("server").1[0].not_after;
        self.now = end - self.profile.duration.duration() / 3;
    }

    fn injector(&mut self) -> &mut Value {
        self.objects.0.get_mut(&ObjectRef::new(ObjectKind::MutatingWebhookConfiguration, "injector")).unwrap()
    }

    fn revert(&mut self, pem: &str) {
        for webhook in self.injector()["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"]["caBundle"] = STANDARD.encode(pem).into();
        }
    }
}

fn blocked(cluster: &Cluster) -> String {
    upkeep(&cluster.profile, &cluster.objects, cluster.now).expect_err("blocked").0
}

#[test]
fn the_profile_of_the_webhook_has_the_names_of_the_manifests() {
    let profile = Profile::read(TRUSTSPAN_WEBHOOK, "trustspan-system", "cluster.local").unwrap();
    let manifest = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").join(name);
        std::fs::read_to_string(path).unwrap()
    };
    assert_eq!(profile.certificates[0].dns_names, ["trustspan-webhook.trustspan-system.svc"]);
    assert!(
        manifest("base/deployment.yaml").contains(&format!("secretName: {}\n", profile.certificates[0].secret_name))
    );
    assert!(manifest("base/rbac.yaml").contains(&profile.pending_secret_name));
    let webhooks = manifest("base/webhooks.yaml") + "---\n" + &manifest("ca-bundles/webhooks.yaml");
    for document in serde_saphyr::from_multiple::<Value>(&webhooks).unwrap() {
        let name = document["metadata"]["name"].as_str().unwrap().to_owned();
        let names = match document["kind"].as_str().unwrap() {
            "MutatingWebhookConfiguration" => &profile.mutating_webhook_configurations,
            _ => &profile.validating_webhook_configurations,
        };
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn rotates_when_a_third_of_the_lifetime_is_left() {
    let mut cluster = Cluster::installed();
    cluster.make_due();
    cluster.pass(-1);
    assert_eq!(cluster.intent(), Intent::Create);
    assert_eq!(cluster.write_all(), None);
    assert_eq!(cluster.cas, 1);
    cluster.pass(1);
    assert_eq!(cluster.intent(), Intent::Rotate);
    assert!(cluster.write_all().is_some());
    assert_eq!(cluster.intent(), Intent::Resume);
    cluster.finish();
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
}

#[test]
fn expired_certificates_are_replaced_without_stages() {
    let mut cluster = Cluster::installed();
    cluster.now = cluster.read("server").1[0].not_after + SignedDuration::from_secs(1);
    assert!(cluster.write_all().is_some());
    assert_eq!((cluster.issuer("server").as_str(), cluster.ca_bundles()[0][0].as_str()), ("CN=ca 2", "CN=ca 2"));
    cluster.finish();
    assert_eq!((cluster.cas, cluster.intent()), (2, Intent::Create));
}

#[test]
fn creates_what_is_missing() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.intent(), Intent::Create);
    assert_eq!((cluster.write_all(), cluster.cas), (None, 1));
    // No certificate of the same CA can be made, and one that cannot be read is of none.
    let mut unreadable = cluster.clone();
    unreadable.secret("client")["data"]["tls.crt"] = "eA==".into();
    cluster.objects.0.remove(&ObjectRef::secret("client"));
    for mut broken in [cluster, unreadable] {
        assert_eq!(broken.intent(), Intent::Rotate);
        broken.finish();
        assert_eq!(broken.issuer("client"), "CN=ca 2");
    }
}

#[test]
fn objects_of_other_writers_are_left_alone() {
    let mut cluster = Cluster::installed();
    cluster.profile.labels = [("app.kubernetes.io/managed-by".to_owned(), "us".to_owned())].into();
    assert!(blocked(&cluster).contains("Secret client was not created for profile test"), "no label");
    for name in SECRETS.into_iter().chain(["hmac"]) {
        cluster.secret(name)["metadata"]["annotations"] = json!({ "trustspan.dev/adopt": "true" });
    }
    assert_eq!(cluster.intent(), Intent::Create);
    let mut issued = cluster.clone();
    issued.secret("server")["metadata"]["annotations"]["cert-manager.io/certificate-name"] = "server".into();
    assert!(blocked(&issued).contains("cert-manager writes Secret server"));
    cluster.injector()["metadata"]["annotations"] = json!({ "cert-manager.io/inject-ca-from": "a/b" });
    assert!(blocked(&cluster).contains("cert-manager writes the caBundle of MutatingWebhookConfiguration injector"));
}

/// Somebody else reverts the caBundle after each number of writes of a rotation. No leaf is written before the new CA was there again for the
/// propagation delay.
#[test]
fn a_reverted_ca_bundle_is_repaired_in_each_stage() {
    let mut start = Cluster::installed();
    start.make_due();
    let first: String = start.read("server").0.iter().map(Certificate::pem).collect();
    let foreign = ca_with("foreign", |_| ()).pem();
    let mut reverts = 0;
    for reverted in 1..=9 {
        for bundle in [&first, &foreign] {
            let mut cluster = start.clone();
            for _ in 0..reverted {
                if let Step::WaitUntil(until) = cluster.keep().unwrap() {
                    cluster.now = until;
                }
                cluster.roll_out();
            }
            cluster.revert(bundle);
            let repaired = cluster.now;
            let until = cluster.write_all();
            let expected = cluster.bundle("server");
            assert!(cluster.ca_bundles().iter().all(|found| *found == expected), "after {reverted} steps");
            if cluster.issuer("server") == "CN=ca 1" {
                assert!(until.unwrap() >= cluster.profile.propagation_delay.after(repaired), "after {reverted} steps");
                reverts += 1;
            }
            cluster.finish();
            cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
        }
    }
    assert!(reverts > 6, "{reverts} reverts before the leaf was written");
}
