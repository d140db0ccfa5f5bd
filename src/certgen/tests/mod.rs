mod profile;
mod readers;
mod stages;
mod upkeep;

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use rcgen::date_time_ymd;
use serde_json::{Value, json};

use super::*;
use crate::api::names::CERTGEN_HASH;
use crate::trust::fixtures::{ca_with, now};
use crate::trust::{Certificate, Secret, bundle, certificates_under};

const PROFILE: &str = r#"
name: test
duration: 43800h
ca: {commonName: control-plane}
certificates:
  - {secretName: server, commonName: server}
  - {secretName: client, commonName: client}
  - {secretName: limiter, commonName: limiter}
hmacs:
  - {secretName: hmac, key: key}
restart:
  loadsTrustOnce: [limiter]
  loadsCertificateOnce: [limiter, other]
mutatingWebhookConfigurations: [injector]
"#;

const SECRETS: [&str; 3] = ["server", "client", "limiter"];
const PENDING: &str = "test-certgen-pending";

fn profile() -> Profile {
    Profile::read(PROFILE, "system", "cluster.local").unwrap()
}

fn options(intent: Intent) -> Options {
    Options { intent, single_write: false }
}

/// A simulated cluster. Its Deployments complete their rollouts while a run waits.
#[derive(Clone)]
struct Cluster {
    profile: Profile,
    objects: Objects,
    now: Timestamp,
    /// The number of generated CAs, of writes and of rollouts.
    cas: usize,
    writes: usize,
    restarts: usize,
}

/// The kind of a step.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Write(String),
    WaitUntil(Timestamp),
    WaitForRollout,
    Done(String),
}

impl Cluster {
    fn new() -> Self {
        Self { profile: profile(), objects: Objects::default(), now: now(), cas: 0, writes: 0, restarts: 0 }
    }

    /// A cluster with the Secrets of a first CA, a Deployment and a webhook configuration.
    fn installed() -> Self {
        let mut cluster = Self::new();
        cluster.complete(options(Intent::Create));
        cluster.add_deployment("limiter");
        let webhooks = json!([{ "name": "a", "clientConfig": { "service": {} } }, { "name": "b", "clientConfig": {} }]);
        let injector = ObjectRef::new(ObjectKind::MutatingWebhookConfiguration, "injector");
        cluster.objects.0.insert(injector, json!({ "metadata": {}, "webhooks": webhooks }));
        cluster.complete(options(Intent::Create));
        cluster
    }

    fn add_deployment(&mut self, name: &str) {
        let deployment = json!({
            "kind": "Deployment", "metadata": { "name": name, "generation": 1 },
            "spec": { "replicas": 1, "template": { "metadata": {} } },
        });
        self.objects.0.insert(ObjectRef::new(ObjectKind::Deployment, name), deployment);
        self.roll_out();
    }

    fn roll_out(&mut self) {
        for (reference, object) in &mut self.objects.0 {
            if reference.kind == ObjectKind::Deployment {
                let generation = object["metadata"]["generation"].clone();
                let counts = json!({
                    "observedGeneration": generation, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1,
                });
                object["status"] = counts;
            }
        }
    }

    fn deployment(&mut self, name: &str) -> &mut Value {
        self.objects.0.get_mut(&ObjectRef::new(ObjectKind::Deployment, name)).unwrap()
    }

    fn secret(&mut self, name: &str) -> &mut Value {
        self.objects.0.get_mut(&ObjectRef::secret(name)).unwrap()
    }

    fn generate(&mut self) -> GeneratedCertificates {
        self.cas += 1;
        let ca = ca_with(&format!("ca {}", self.cas), |_| ());
        let end = self.now + self.profile.duration.duration();
        let end = date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(end.as_second().unsigned_abs());
        let leaf = |name: &str| {
            let leaf = ca.leaf_with(name, |params| params.not_after = end);
            KeyPairPem { certificate: leaf.pem(), key: leaf.key_pem().into() }
        };
        let leaves = self.profile.certificates.iter().map(|one| (one.secret_name.clone(), leaf(&one.secret_name)));
        let leaves = leaves.collect::<BTreeMap<_, _>>();
        GeneratedCertificates { ca: ca.pem(), leaves }
    }

    fn step(&mut self, options: Options) -> Result<Step, Blocked> {
        let profile = self.profile.clone();
        let (what, change) = match next(&profile, &self.objects, options, self.now)? {
            Next::Done(what) => return Ok(Step::Done(what)),
            Next::Wait { until: Some(until), .. } => return Ok(Step::WaitUntil(until)),
            Next::Wait { until: None, .. } => return Ok(Step::WaitForRollout),
            Next::Write { what, change } => (what, change),
            Next::GenerateHmac(hmac) => ("hmac".to_owned(), hmac_secret(&profile, hmac, b"0123456789abcdef")),
            Next::Begin(begin) => {
                let generated = self.generate();
                ("begin".to_owned(), pending_secret(&profile, begin.kind, &begin.previous, &generated))
            }
        };
        let target = change.target.clone();
        self.objects.apply(change);
        if target.kind == ObjectKind::Deployment {
            let deployment = self.objects.0.get_mut(&target).unwrap();
            deployment["metadata"]["generation"] = json!(deployment["metadata"]["generation"].as_i64().unwrap() + 1);
            self.restarts += 1;
        }
        self.writes += 1;
        Ok(Step::Write(what))
    }

    /// Runs the command until it ends, or has made this many writes. Returns why it ended.
    fn run(&mut self, mut options: Options, most_writes: usize) -> Result<Option<String>, Blocked> {
        let end = self.writes + most_writes;
        while self.writes < end {
            let is_pending = self.objects.get(ObjectKind::Secret, PENDING).is_some();
            if is_pending && options.intent == Intent::Rotate {
                options.intent = Intent::Resume;
            }
            match self.step(options)? {
                Step::Write(_) => {}
                Step::WaitUntil(until) => self.now = until,
                Step::WaitForRollout => self.roll_out(),
                Step::Done(why) => return Ok(Some(why)),
            }
        }
        Ok(None)
    }

    fn complete(&mut self, options: Options) -> String {
        self.run(options, 100).unwrap().expect("an end")
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn bundle(&self, name: &str) -> Vec<String> {
        self.read(name).0.into_iter().map(|ca| ca.subject).collect()
    }

    fn issuer(&self, name: &str) -> String {
        self.read(name).1[0].issuer.clone()
    }

    /// The bundle and the chain of a Secret.
    fn read(&self, name: &str) -> (Vec<Certificate>, Vec<Certificate>) {
        let secret = Secret::from_value(self.objects.get(ObjectKind::Secret, name).unwrap()).unwrap();
        let chain = bundle::read_chain(&secret.data["tls.crt"]).into_certificates();
        (certificates_under(&secret, "ca.crt"), chain)
    }

    fn loaded_hash(&self, name: &str) -> Value {
        let deployment = self.objects.get(ObjectKind::Deployment, name).unwrap();
        deployment["spec"]["template"]["metadata"]["annotations"][CERTGEN_HASH].clone()
    }

    /// The CAs of each `caBundle`.
    fn ca_bundles(&self) -> Vec<Vec<String>> {
        let injector = self.objects.get(ObjectKind::MutatingWebhookConfiguration, "injector").unwrap();
        let webhooks = injector["webhooks"].as_array().unwrap().iter();
        let bundles = webhooks.map(|webhook| STANDARD.decode(webhook["clientConfig"]["caBundle"].as_str().unwrap()));
        let subjects = |pem: Vec<u8>| bundle::read(&pem).into_certificates().into_iter().map(|ca| ca.subject);
        bundles.map(|pem| subjects(pem.unwrap()).collect()).collect()
    }

    /// Fails unless the rotation to a CA is complete.
    fn assert_rotated(&self, bundle: &[&str]) {
        for name in SECRETS {
            assert_eq!(self.bundle(name), bundle, "{name}");
            assert_eq!(self.issuer(name), bundle[0], "{name}");
        }
        assert!(self.ca_bundles().iter().all(|found| found == bundle), "{:?}", self.ca_bundles());
        assert!(self.objects.get(ObjectKind::Secret, PENDING).is_none(), "nothing is pending");
    }
}
