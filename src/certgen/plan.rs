//! The next step of a run.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::pending::{BUNDLE, CERTIFICATE, CERTIFICATES_WRITTEN_AT, KEY, Pending, TRUST_WRITTEN_AT};
use super::{CertificateProfile, Change, HmacProfile, ObjectKind, ObjectRef, Objects, PendingKind, Profile};
use crate::api::names::CERTGEN_HASH;
use crate::connectivity::{admits, verifies};
use crate::rotation::counted;
use crate::rotation::rollouts::progress;
use crate::trust::{Certificate, Secret, bundle, carry_over, certificates_under, content_hash, decoded};

const TLS_TYPE: &str = "kubernetes.io/tls";

/// The purpose of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Create the Secrets that are missing.
    Create,
    /// Rotate the certificates: resume a rotation, or begin one.
    Rotate,
    /// Complete a rotation that was begun.
    Resume,
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The purpose.
    pub intent: Intent,
    /// Write leaf and bundle at once, without stages.
    pub single_write: bool,
}

/// The next step. Has no `Debug`, since it may hold private keys.
pub enum Next<'p> {
    /// Generate an HMAC key, and create its Secret ([`hmac_secret`]).
    GenerateHmac(&'p HmacProfile),
    /// Generate a CA and leaves, and create the pending Secret ([`super::pending_secret`]).
    Begin(Begin),
    /// Make a change.
    Write {
        /// What the change does, for the log.
        what: String,
        /// The change.
        change: Change,
    },
    /// Compute the next step again at a time, or, without one, when a rollout may have progressed.
    Wait {
        /// The time.
        until: Option<Timestamp>,
        /// What is waited for.
        why: String,
    },
    /// There is nothing to do.
    Done(String),
}

/// The purpose of a new CA and its leaves.
#[derive(Debug)]
pub struct Begin {
    /// An installation or a rotation.
    pub kind: PendingKind,
    /// The old CAs that stay trusted.
    pub previous: Vec<Certificate>,
}

/// Why a run cannot continue, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Blocked(pub String);

/// The next step of a run.
///
/// # Errors
/// When a person has to act first.
pub fn next<'p>(
    profile: &'p Profile,
    objects: &Objects,
    options: Options,
    now: Timestamp,
) -> Result<Next<'p>, Blocked> {
    let mut run = Run { profile, objects, options, now, secrets: Vec::new() };
    for certificate in &profile.certificates {
        let stored = run.read(&certificate.secret_name)?;
        if let Some(stored) = &stored {
            stored.check_type()?;
        }
        run.secrets.push((certificate, stored));
    }
    for hmac in &profile.hmacs {
        match run.read(&hmac.secret_name)? {
            None => return Ok(Next::GenerateHmac(hmac)),
            Some(stored) if !stored.secret.data.contains_key(&hmac.key) => {
                let HmacProfile { secret_name, key, .. } = hmac;
                return blocked(format!(
                    "Secret {secret_name} has no {key}, and HMAC Secrets are never changed: add it, or delete the Secret to have it created again"
                ));
            }
            Some(_) => {}
        }
    }
    match Pending::read(profile, objects).map_err(Blocked)? {
        Some(pending) => run.proceed(&pending),
        None => run.begin(),
    }
}

/// The change that creates an HMAC Secret.
pub fn hmac_secret(profile: &Profile, hmac: &HmacProfile, bytes: &[u8]) -> Change {
    let data = json!({ hmac.key.clone(): STANDARD.encode(bytes) });
    Change::create(ObjectRef::secret(&hmac.secret_name), secret(profile, &hmac.secret_name, "Opaque", &data))
}

fn secret(profile: &Profile, name: &str, type_: &str, data: &Value) -> Value {
    let metadata = json!({ "name": name, "namespace": profile.namespace, "labels": profile.labels });
    json!({ "apiVersion": "v1", "kind": "Secret", "type": type_, "metadata": metadata, "data": data })
}

fn blocked<T>(why: String) -> Result<T, Blocked> {
    Err(Blocked(why))
}

/// A Secret in the cluster.
struct Stored<'a> {
    object: &'a Value,
    secret: Secret,
}

impl Stored<'_> {
    /// The certificates of its bundle, up to the first malformed one.
    fn bundle(&self) -> Vec<Certificate> {
        certificates_under(&self.secret, BUNDLE)
    }

    fn chain(&self) -> Vec<Certificate> {
        self.secret.data.get(CERTIFICATE).map(|pem| bundle::read_chain(pem).into_certificates()).unwrap_or_default()
    }

    fn has(&self, key: &str, bytes: &[u8]) -> bool {
        self.secret.data.get(key).is_some_and(|stored| stored.as_slice() == bytes)
    }

    fn check_type(&self) -> Result<(), Blocked> {
        let Secret { name, type_, .. } = &self.secret;
        // The API server replaces an empty type by Opaque.
        let type_ = if type_.is_empty() { "Opaque" } else { type_ };
        if type_ == TLS_TYPE {
            return Ok(());
        }
        blocked(format!(
            "Secret {name} has type {type_}, expected {TLS_TYPE}, and the type of a Secret cannot be changed: delete it if nothing else uses it, \
             or set another secretName in the profile"
        ))
    }

    fn patch(&self, data: &Value) -> Change {
        Change::patch(ObjectRef::secret(&self.secret.name), self.object, json!({ "data": data }))
    }
}

struct Run<'p, 'o> {
    profile: &'p Profile,
    objects: &'o Objects,
    options: Options,
    now: Timestamp,
    /// The certificates of the profile, each with its Secret if that exists.
    secrets: Vec<(&'p CertificateProfile, Option<Stored<'o>>)>,
}

impl<'p, 'o> Run<'p, 'o> {
    fn read(&self, name: &str) -> Result<Option<Stored<'o>>, Blocked> {
        let Some(object) = self.objects.get(ObjectKind::Secret, name) else { return Ok(None) };
        let secret = Secret::from_value(object).map_err(|error| Blocked(format!("Secret {name}: {error}")))?;
        Ok(Some(Stored { object, secret }))
    }

    /// The next step if there is no pending Secret.
    fn begin(&self) -> Result<Next<'p>, Blocked> {
        let missing: Vec<_> = self.secrets.iter().filter(|(_, stored)| stored.is_none()).collect();
        if self.options.intent != Intent::Resume && missing.len() == self.secrets.len() {
            return Ok(Next::Begin(Begin { kind: PendingKind::Install, previous: Vec::new() }));
        }
        if self.options.intent == Intent::Rotate {
            return self.begin_rotation();
        }
        if let Some((certificate, _)) = missing.first() {
            return blocked(format!(
                "Secret {} is missing, and the others exist: the key of their CA is not kept, so that no certificate of it can be made. Run \
                 with --overwrite to rotate, which creates it",
                certificate.secret_name
            ));
        }
        let bundle = self.secrets.iter().find_map(|(_, stored)| stored.as_ref());
        if let Some(write) = bundle.and_then(|stored| {
            let pem = stored.secret.data.get(BUNDLE)?;
            self.webhook(&stored.bundle(), pem)
        }) {
            return Ok(write);
        }
        let all = self.secrets.len() + self.profile.hmacs.len();
        Ok(Next::Done(match self.options.intent {
            Intent::Create => format!("nothing to do: {} exist", counted(all, "Secret")),
            _ => "the rotation is complete".to_owned(),
        }))
    }

    fn begin_rotation(&self) -> Result<Next<'p>, Blocked> {
        let existing: Vec<_> = self.secrets.iter().filter_map(|(_, stored)| stored.as_ref()).collect();
        for stored in &existing {
            let name = &stored.secret.name;
            if stored.secret.immutable {
                return blocked(format!(
                    "Secret {name} is immutable: create it again without immutable: true, then run again"
                ));
            }
            if stored.bundle().is_empty() && !self.options.single_write {
                return blocked(format!(
                    "Secret {name} has no readable CA under {BUNDLE}, so that no stage can keep it: put the CA of the certificates in use there, \
                     or run with --single-write"
                ));
            }
        }
        for name in self.profile.restart.loads_trust_once.iter().chain(&self.profile.restart.loads_certificate_once) {
            if let Some(deployment) = self.deployment(name) {
                check_progress(name, deployment)?;
            }
        }
        // All bundles usually have the same order. After an abandoned rotation the newest CA has signed nothing.
        let all: Vec<_> = existing.iter().flat_map(|stored| stored.bundle()).collect();
        let chains: Vec<_> = existing.iter().map(|stored| (&stored.secret.name, stored.chain())).collect();
        let has_signed =
            |ca: &Certificate| chains.iter().any(|(_, chain)| self.is_accepted(std::slice::from_ref(ca), chain));
        let (in_use, others): (Vec<_>, Vec<_>) = all.iter().cloned().partition(has_signed);
        let previous = carry_over(&[], in_use.into_iter().chain(others), self.profile.max_previous_cas, self.now);
        let lost = |chain: &[Certificate]| self.is_accepted(&all, chain) && !self.is_accepted(&previous, chain);
        if let Some((name, _)) = chains.iter().find(|(_, chain)| lost(chain)).filter(|_| !self.options.single_write) {
            return blocked(format!(
                "the certificate of Secret {name} is of another CA than those of other Secrets, and maxPreviousCAs keeps {}: set \
                 --max-previous-cas to a number that keeps the CAs of all certificates in use, or run with --single-write",
                counted(self.profile.max_previous_cas, "old CA")
            ));
        }
        Ok(Next::Begin(Begin { kind: PendingKind::Rotation, previous }))
    }

    /// Whether a reader with this bundle accepts a chain, for any usage.
    fn is_accepted(&self, bundle: &[Certificate], chain: &[Certificate]) -> bool {
        !chain.is_empty() && (verifies(bundle, chain, self.now) || admits(bundle, chain, self.now))
    }

    fn proceed(&self, pending: &Pending<'_>) -> Result<Next<'p>, Blocked> {
        match (pending.kind, self.options.intent) {
            (PendingKind::Rotation, Intent::Create) => Ok(Next::Done(format!(
                "nothing to do: Secret {} holds a rotation that is not complete: run with --overwrite to resume it",
                self.profile.pending_secret_name
            ))),
            (PendingKind::Install, _) => self.install(pending),
            (PendingKind::Rotation, _) => self.rotate(pending),
        }
    }

    /// The next step if a Secret does not have the content that the pending Secret expects: another writer has changed
    /// it since.
    fn give_up(&self, pending: &Pending<'_>, name: &str) -> Result<Next<'p>, Blocked> {
        let is_used = self
            .secrets
            .iter()
            .filter_map(|(_, stored)| stored.as_ref())
            .any(|stored| pending.bundle.first().is_some_and(|new| stored.bundle().contains(new)));
        let secret = &self.profile.pending_secret_name;
        if !is_used {
            let what = format!("delete Secret {secret}, since somebody else wrote Secret {name} before it was used");
            return Ok(Next::Write { what, change: pending.delete() });
        }
        blocked(format!(
            "somebody else wrote Secret {name}, and its certificate is of a CA that Secret {secret} does not keep: delete Secret {secret}, then \
             run with --overwrite"
        ))
    }

    fn rotate(&self, pending: &Pending<'_>) -> Result<Next<'p>, Blocked> {
        let existing = || self.secrets.iter().filter_map(|(_, stored)| stored.as_ref());
        let is_used = |stored: &Stored<'_>| self.is_accepted(&stored.bundle(), &stored.chain());
        let mut lost =
            existing().filter(|stored| is_used(stored) && !self.is_accepted(&pending.bundle, &stored.chain()));
        match lost.next() {
            _ if self.options.single_write => self.rotate_at_once(pending),
            None => self.rotate_in_stages(pending),
            Some(stored) => self.give_up(pending, &stored.secret.name),
        }
    }

    fn install(&self, pending: &Pending<'_>) -> Result<Next<'p>, Blocked> {
        for (certificate, stored) in &self.secrets {
            let name = &certificate.secret_name;
            match (stored, pending.leaf(name)) {
                (None, Some(_)) => return Ok(self.create(name, pending)),
                (Some(stored), Some((leaf, _))) if !stored.has(CERTIFICATE, leaf) => {
                    return self.give_up(pending, name);
                }
                _ => {}
            }
        }
        Ok(self.webhook(&pending.bundle, pending.bundle_pem()).unwrap_or_else(|| self.finish(pending)))
    }

    fn rotate_at_once(&self, pending: &Pending<'_>) -> Result<Next<'p>, Blocked> {
        for (certificate, stored) in &self.secrets {
            let name = &certificate.secret_name;
            let Some((leaf, key)) = pending.leaf(name) else { continue };
            match stored {
                None => return Ok(self.create(name, pending)),
                Some(stored)
                    if stored.bundle() != pending.bundle || !stored.has(CERTIFICATE, leaf) || !stored.has(KEY, key) =>
                {
                    let what = format!("write the bundle and the certificate of Secret {name}");
                    return Ok(Next::Write { what, change: stored.patch(&data(pending, leaf, key)) });
                }
                Some(_) => {}
            }
        }
        if let Some(write) = self.webhook(&pending.bundle, pending.bundle_pem()) {
            return Ok(write);
        }
        match self.restart_for_trust(pending)?.or(self.restart_for_certificates(pending)?) {
            Some(next) => Ok(next),
            None => Ok(self.finish(pending)),
        }
    }

    fn rotate_in_stages(&self, pending: &Pending<'_>) -> Result<Next<'p>, Blocked> {
        let trust_written_at = pending.time(TRUST_WRITTEN_AT, self.now);
        if let Some(write) = self.next_trust(pending) {
            return Ok(reset(pending, TRUST_WRITTEN_AT, trust_written_at, write));
        }
        let Some(trust_written_at) = trust_written_at else {
            return Ok(self.record(pending, TRUST_WRITTEN_AT, "the new CA is trusted everywhere"));
        };
        if let Some(wait) = self.wait(trust_written_at, "for all readers to load the new bundle") {
            return Ok(wait);
        }
        if let Some(next) = self.restart_for_trust(pending)? {
            return Ok(next);
        }
        let certificates_written_at = pending.time(CERTIFICATES_WRITTEN_AT, self.now);
        if let Some(write) = self.next_certificate(pending) {
            return Ok(reset(pending, CERTIFICATES_WRITTEN_AT, certificates_written_at, write));
        }
        let Some(certificates_written_at) = certificates_written_at else {
            return Ok(self.record(pending, CERTIFICATES_WRITTEN_AT, "all certificates are of the new CA"));
        };
        if let Some(next) = self.restart_for_certificates(pending)? {
            return Ok(next);
        }
        let wait = self.wait(certificates_written_at, "for all readers to load their new certificates");
        Ok(wait.unwrap_or_else(|| self.finish(pending)))
    }

    fn next_trust(&self, pending: &Pending<'_>) -> Option<Next<'p>> {
        let existing = self.secrets.iter().filter_map(|(_, stored)| stored.as_ref());
        let mut behind = existing.filter(|stored| stored.bundle() != pending.bundle);
        let secret = behind.next().map(|stored| Next::Write {
            what: format!("write the bundle of Secret {}", stored.secret.name),
            change: stored.patch(&json!({ BUNDLE: STANDARD.encode(pending.bundle_pem()) })),
        });
        secret.or_else(|| self.webhook(&pending.bundle, pending.bundle_pem()))
    }

    fn next_certificate(&self, pending: &Pending<'_>) -> Option<Next<'p>> {
        self.secrets.iter().find_map(|(certificate, stored)| {
            let name = &certificate.secret_name;
            let (leaf, key) = pending.leaf(name)?;
            match stored {
                None => Some(self.create(name, pending)),
                Some(stored) if stored.has(CERTIFICATE, leaf) && stored.has(KEY, key) => None,
                Some(stored) => Some(Next::Write {
                    what: format!("write the certificate of Secret {name}"),
                    change: stored.patch(&data(pending, leaf, key)),
                }),
            }
        })
    }

    fn create(&self, name: &str, pending: &Pending<'_>) -> Next<'p> {
        let (leaf, key) = pending.leaf(name).unwrap_or_default();
        let object = secret(self.profile, name, TLS_TYPE, &data(pending, leaf, key));
        Next::Write { what: format!("create Secret {name}"), change: Change::create(ObjectRef::secret(name), object) }
    }

    /// The next webhook configuration that has another bundle, with the new one.
    fn webhook(&self, bundle: &[Certificate], pem: &[u8]) -> Option<Next<'p>> {
        use ObjectKind::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
        let of = |kind, names: &'p [String]| names.iter().map(move |name| (kind, name));
        let mut all = of(MutatingWebhookConfiguration, &self.profile.mutating_webhook_configurations)
            .chain(of(ValidatingWebhookConfiguration, &self.profile.validating_webhook_configurations));
        all.find_map(|(kind, name)| {
            let configuration = self.objects.get(kind, name)?;
            let mut webhooks = configuration["webhooks"].as_array()?.clone();
            let mut is_changed = false;
            for config in webhooks.iter_mut().map(|webhook| &mut webhook["clientConfig"]) {
                let stored = config["caBundle"].as_str().and_then(decoded).unwrap_or_default();
                if bundle::read(&stored).into_certificates() != bundle {
                    config["caBundle"] = json!(STANDARD.encode(pem));
                    is_changed = true;
                }
            }
            let target = ObjectRef::new(kind, name);
            let what = format!("write the caBundle of {target}");
            let patch = || Change::patch(target, configuration, json!({ "webhooks": webhooks }));
            is_changed.then(|| Next::Write { what, change: patch() })
        })
    }

    fn deployment(&self, name: &str) -> Option<&'o Value> {
        let deployment = self.objects.get(ObjectKind::Deployment, name)?;
        deployment["metadata"]["deletionTimestamp"].is_null().then_some(deployment)
    }

    fn restart_for_trust(&self, pending: &Pending<'_>) -> Result<Option<Next<'p>>, Blocked> {
        let hashes = [content_hash(&pending.bundle), certificate_hash(pending)];
        self.restart(&self.profile.restart.loads_trust_once, &hashes)
    }

    fn restart_for_certificates(&self, pending: &Pending<'_>) -> Result<Option<Next<'p>>, Blocked> {
        self.restart(&self.profile.restart.loads_certificate_once, &[certificate_hash(pending)])
    }

    /// Restarts the Deployments that have loaded none of the contents in `hashes`, to load the first of these, and
    /// waits for their rollouts.
    fn restart(&self, names: &[String], hashes: &[String]) -> Result<Option<Next<'p>>, Blocked> {
        let existing = || names.iter().filter_map(|name| Some((name, self.deployment(name)?)));
        for (name, deployment) in existing() {
            check_progress(name, deployment)?;
            let loaded = &deployment["spec"]["template"]["metadata"]["annotations"][CERTGEN_HASH];
            if !hashes.iter().any(|hash| loaded == hash) {
                let template = json!({ "metadata": { "annotations": { CERTGEN_HASH: hashes.first() } } });
                let change = Change::patch(
                    ObjectRef::new(ObjectKind::Deployment, name),
                    deployment,
                    json!({ "spec": { "template": template } }),
                );
                let gap = gap(deployment).map(|why| format!(" (its service has a gap: {why})")).unwrap_or_default();
                return Ok(Some(Next::Write { what: format!("restart deployment/{name}{gap}"), change }));
            }
        }
        let unfinished = existing().find_map(|(name, deployment)| Some((name, progress::unfinished(deployment)?)));
        Ok(unfinished.map(|(name, why)| Next::Wait {
            until: None,
            why: format!("for the rollout of deployment/{name} ({why})"),
        }))
    }

    fn record(&self, pending: &Pending<'_>, name: &str, what: &str) -> Next<'p> {
        Next::Write { what: format!("record that {what}"), change: pending.record(name, Some(self.now)) }
    }

    fn wait(&self, start: Timestamp, why: &str) -> Option<Next<'p>> {
        let delay = self.profile.propagation_delay;
        let until = delay.after(start);
        (self.now < until).then(|| Next::Wait { until: Some(until), why: format!("{delay} {why}") })
    }

    fn finish(&self, pending: &Pending<'_>) -> Next<'p> {
        let what = format!("delete Secret {}", self.profile.pending_secret_name);
        Next::Write { what, change: pending.delete() }
    }
}

/// If a stage is no longer complete, its time is removed first, so that its delay starts again.
fn reset<'p>(pending: &Pending<'_>, name: &str, recorded: Option<Timestamp>, write: Next<'p>) -> Next<'p> {
    match recorded {
        None => write,
        Some(_) => Next::Write {
            what: "somebody else has changed the Secrets: repeat the stage".to_owned(),
            change: pending.record(name, None),
        },
    }
}

fn data(pending: &Pending<'_>, leaf: &[u8], key: &[u8]) -> Value {
    let encode = |bytes| STANDARD.encode(bytes);
    json!({ CERTIFICATE: encode(leaf), KEY: encode(key), BUNDLE: encode(pending.bundle_pem()) })
}

/// The hash of the content that a workload has loaded when it has loaded everything.
fn certificate_hash(pending: &Pending<'_>) -> String {
    content_hash(&pending.bundle.iter().cloned().chain(pending.leaves()).collect::<Vec<_>>())
}

/// Fails if a rollout cannot progress.
fn check_progress(name: &str, deployment: &Value) -> Result<(), Blocked> {
    if let Some(why) = progress::restarts_by_hand(deployment) {
        return blocked(format!("deployment/{name} is not restarted by a change of its pod template: {why}"));
    }
    let (metadata, status) = (&deployment["metadata"], &deployment["status"]);
    let is_observed = status["observedGeneration"].as_i64() >= metadata["generation"].as_i64();
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    if is_observed && conditions.any(|condition| condition["reason"] == "ProgressDeadlineExceeded") {
        return blocked(format!(
            "the rollout of deployment/{name} does not progress: find out why with kubectl describe, fix it or roll it back, then run again"
        ));
    }
    Ok(())
}

/// Why a Deployment may have no ready pod during a rollout.
fn gap(deployment: &Value) -> Option<&'static str> {
    let spec = &deployment["spec"];
    let replicas = spec["replicas"].as_u64().unwrap_or(1);
    let containers = spec["template"]["spec"]["containers"].as_array();
    let unavailable = match &spec["strategy"]["rollingUpdate"]["maxUnavailable"] {
        // The Deployment controller rounds down, too.
        Value::String(percent) => percent.trim_end_matches('%').parse::<u64>().unwrap_or_default() * replicas / 100,
        number => number.as_u64().unwrap_or_default(),
    };
    if spec["strategy"]["type"] == "Recreate" {
        Some("strategy Recreate stops all pods first")
    } else if unavailable >= replicas.max(1) {
        Some("maxUnavailable lets all pods go at once")
    } else if containers.into_iter().flatten().any(|container| container["readinessProbe"].is_null()) {
        Some("without a readiness probe new pods count as ready at once")
    } else {
        None
    }
}
