//! Reconciles all ClientIdentities in rounds: at each change of one or of a certificate signing request, and at each resync interval.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DeserializeGuard, GroupVersionKind, PartialObjectMeta};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::attempts::{Attempts, FIRST_DELAY};
use super::delivery::{Delivery, Progress};
use super::error::ApproveError;
use super::objects::{self, FIELD_MANAGER, check_owner};
use super::requests::{self, Issued};
use crate::agent::lease::Leadership;
use crate::api::names::{
    BOOTSTRAP_REQUESTED_AT, BOOTSTRAP_TOKEN, CLIENT_CERTIFICATE, IDENTITY_NAME, IDENTITY_NAMESPACE,
};
use crate::api::{BootstrapToken, ClientIdentity, ClientIdentityStatus, ConditionStatus, IssuedCertificate};
use crate::health::{CheckResult, Requirement};
use crate::identity::IdentityName;
use crate::identity::approval::{Recognition, RequestedIdentity, Verdict, decide};
use crate::identity::kubeconfig::{self, Server};
use crate::identity::plan::{self, Need, Observed, Plan, rolled_cas};
use crate::rotation::set_condition;
use crate::store::watch::with_backoff;
use crate::store::{CheckHandle, HealthState};
use crate::text::excerpt;
use crate::trust::{Certificate, bundle, fingerprint_of};

/// Events within this time cause one round.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Timeout of a reconcile of one identity, and of the other parts of a round.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Types of conditions.
const VALID: &str = "Valid";
const GRANTED: &str = "Granted";

/// Settings of the controller.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// Life of bootstrap tokens.
    pub(super) token_lifetime: SignedDuration,
    /// Whether bootstrap kubeconfigs are delivered to loopback and link-local addresses.
    pub(super) allow_local_delivery: bool,
}

/// The controller, while it leads.
pub(super) struct Approver<'a> {
    client: &'a Client,
    leadership: &'a Leadership,
    health: &'a Arc<HealthState>,
    api_server: &'a CheckHandle,
    settings: Settings,
    /// Causes a round.
    event: Arc<Notify>,
    known: BTreeMap<IdentityName, Known>,
    /// Requests by their names that could not be decided, with why.
    undecided: BTreeMap<String, (Attempts, CheckResult)>,
    requests: CheckHandle,
    client_cas: Vec<Certificate>,
}

/// Waits until ClientIdentities can be read, and records whether they can. A standby reads nothing else, and has to be ready: a rollout waits for it.
pub(super) async fn wait_readable(client: &Client, api_server: &CheckHandle) {
    loop {
        let result = match list::<ClientIdentity>(client).await {
            Ok(_) => CheckResult::Ok,
            Err(error) => error.check_result(),
        };
        let is_ok = result.is_ok();
        api_server.record(result);
        if is_ok {
            return;
        }
        sleep(FIRST_DELAY).await;
    }
}

/// What is remembered about an identity between two rounds.
struct Known {
    check: CheckHandle,
    /// A hash of the permissions that were applied last.
    applied: Option<String>,
    /// Attempts to give it a bootstrap kubeconfig.
    attempts: Attempts,
    /// A bootstrap kubeconfig that is not delivered yet.
    delivery: Option<Delivery>,
}

impl<'a> Approver<'a> {
    pub(super) fn new(
        client: &'a Client,
        leadership: &'a Leadership,
        health: &'a Arc<HealthState>,
        api_server: &'a CheckHandle,
        settings: Settings,
    ) -> Self {
        Self {
            client,
            leadership,
            health,
            api_server,
            settings,
            event: Arc::default(),
            known: BTreeMap::new(),
            undecided: BTreeMap::new(),
            requests: health.add("certificate-signing-requests", Requirement::Never),
            client_cas: Vec::new(),
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self, resync_interval: Duration) {
        let event = self.event.clone();
        let mut watches = JoinSet::new();
        let (all, ours) = (watcher::Config::default(), watcher::Config::default().fields(requests::OURS));
        watches.spawn(notify_each::<ClientIdentity>(self.client.clone(), all, event.clone()));
        watches.spawn(notify_each::<CertificateSigningRequest>(self.client.clone(), ours, event.clone()));
        let mut resync_at = Instant::now();
        loop {
            let is_resync = resync_at <= Instant::now();
            if is_resync {
                resync_at = Instant::now() + resync_interval;
            }
            let result = match self.round(is_resync).await {
                Ok(()) => CheckResult::Ok,
                Err(error) => error.check_result(),
            };
            let has_failed = !result.is_ok();
            self.api_server.record(result);
            let mut wake = resync_at.saturating_duration_since(Instant::now());
            if has_failed {
                wake = wake.min(FIRST_DELAY);
            }
            for at in self.undecided.values().filter_map(|(attempts, _)| attempts.retry_at) {
                wake = wake.min(at.saturating_duration_since(Instant::now()));
            }
            tokio::select! {
                () = event.notified() => {}
                () = sleep(wake) => {}
            }
            sleep(DEBOUNCE).await;
        }
    }

    /// Reconciles all. An error of one object is reported for it, and the round goes on.
    async fn round(&mut self, is_resync: bool) -> Result<(), ApproveError> {
        let identities = list::<DeserializeGuard<ClientIdentity>>(self.client).await?;
        let now = Timestamp::now();
        let (mut issued, requests) = requests::read(self.client, TIMEOUT, now).await?;
        if is_resync {
            self.read_client_cas().await;
        }
        let mut present: BTreeMap<IdentityName, ClientIdentity> = BTreeMap::new();
        for object in identities.into_iter().filter(|object| object.meta().deletion_timestamp.is_none()) {
            let name = IdentityName::new(&object.namespace().unwrap_or_default(), &object.name_any());
            let object = match object.0 {
                Ok(object) => object,
                Err(error) => {
                    let text = format!("The object cannot be parsed: {}", excerpt(&error.to_string()));
                    self.known(&name).check.record(CheckResult::Misconfigured(text));
                    continue;
                }
            };
            let reconciled = self.reconcile(&name, object, issued.remove(&name), is_resync, now);
            let object = timeout(TIMEOUT, reconciled).await;
            let object = object.unwrap_or(Err(ApproveError::NoAnswer));
            match object {
                Ok(object) => drop(present.insert(name, object)),
                Err(ApproveError::NotLeading) => return Err(ApproveError::NotLeading),
                Err(error) => self.known(&name).check.record(error.check_result()),
            }
        }
        self.decide_each(&requests, &mut present, now).await?;
        let forgotten = self.forget_absent(&present).await;
        let removed = if is_resync { self.remove_orphans().await } else { Ok(()) };
        forgotten.and(removed)
    }

    /// Decides about requests. What cannot be decided is tried again after a delay that grows.
    async fn decide_each(
        &mut self,
        requests: &[CertificateSigningRequest],
        present: &mut BTreeMap<IdentityName, ClientIdentity>,
        now: Timestamp,
    ) -> Result<(), ApproveError> {
        let names: BTreeSet<_> = requests.iter().map(ResourceExt::name_any).collect();
        self.undecided.retain(|name, _| names.contains(name));
        for (request, name) in requests.iter().map(|request| (request, request.name_any())) {
            if self.undecided.get(&name).is_some_and(|(attempts, _)| !attempts.is_due()) {
                continue;
            }
            let decided = timeout(TIMEOUT, self.decide(request, present, now)).await;
            let decided = decided.unwrap_or_else(|_| Err(ApproveError::NoAnswer));
            match decided {
                Ok(()) => drop(self.undecided.remove(&name)),
                Err(ApproveError::NotLeading) => return Err(ApproveError::NotLeading),
                Err(error) => {
                    let (attempts, result) =
                        self.undecided.entry(name).or_insert_with(|| (Attempts::default(), CheckResult::Ok));
                    attempts.record_failure();
                    *result = error.check_result();
                }
            }
        }
        self.requests.record(self.undecided.values().next().map_or(CheckResult::Ok, |(_, result)| result.clone()));
        Ok(())
    }

    fn known(&mut self, identity: &IdentityName) -> &mut Known {
        let health = self.health;
        self.known.entry(identity.clone()).or_insert_with(|| Known {
            check: health.add(format!("client-identity/{identity}"), Requirement::Never),
            applied: None,
            attempts: Attempts::default(),
            delivery: None,
        })
    }

    fn check_leading(&self) -> Result<(), ApproveError> {
        if self.leadership.is_leader() { Ok(()) } else { Err(ApproveError::NotLeading) }
    }

    /// The CAs by which the API server verifies clients. It publishes them itself.
    async fn read_client_cas(&mut self) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        // Without the permission, or without a client CA, this part of the check is left out.
        if let Ok(Ok(Some(object))) = timeout(TIMEOUT, api.get_opt("extension-apiserver-authentication")).await {
            let pem = object.data.and_then(|mut data| data.remove("client-ca-file")).unwrap_or_default();
            self.client_cas = bundle::read(pem.as_bytes()).into_certificates();
        }
    }

    /// Makes everything of one identity as it should be. Returns the object with its new status.
    async fn reconcile(
        &mut self,
        identity: &IdentityName,
        mut object: ClientIdentity,
        issued: Option<Issued>,
        is_resync: bool,
        now: Timestamp,
    ) -> Result<ClientIdentity, ApproveError> {
        let before = object.status.clone();
        let mut status = before.clone().unwrap_or_default();
        let granted = self.grant(identity, &object, is_resync).await;
        let server = self.server(identity, &object).await;
        status.user = Some(identity.user());
        // Without status, the record of the certificate is in an annotation: the identity is taken over as it is.
        let recorded = object.annotations().get(CLIENT_CERTIFICATE).and_then(|text| serde_json::from_str(text).ok());
        status.certificate = newest(status.certificate.take(), recorded);
        if let (Ok(server), Some(issued)) = (&server, issued) {
            status.certificate = record(&status, &issued, server, now).or(status.certificate);
        }
        let outcome = match &server {
            Ok(server) => self.bootstrap(identity, &mut object, &mut status, server, now).await,
            Err(error) => Ok(failed(error)),
        };
        let mut result = CheckResult::Ok;
        let granted = match granted {
            Ok(()) => {
                (ConditionStatus::True, "Granted".to_owned(), "The client has the declared permissions.".to_owned())
            }
            Err(error) => {
                result = error.check_result();
                failed(&error)
            }
        };
        if let Err(error) = server {
            result = error.check_result();
        }
        let valid = outcome.unwrap_or_else(|error| {
            result = error.check_result();
            failed(&error)
        });
        for (type_, (is, reason, message)) in [(GRANTED, granted), (VALID, valid)] {
            set_condition(&mut status.conditions, object.metadata.generation, type_, (is, &reason, message), now);
        }
        self.known(identity).check.record(result);
        let annotation = status.certificate.as_ref().and_then(|certificate| serde_json::to_string(certificate).ok());
        if annotation.as_ref() != object.annotations().get(CLIENT_CERTIFICATE) {
            self.check_leading()?;
            object = annotate(self.client, identity, annotation).await?;
        }
        if object.status.as_ref() != Some(&status) {
            object = self.store_status(identity, object, status).await?;
        }
        Ok(object)
    }

    /// Writes the status of an object as it was read, and returns what is stored.
    async fn store_status(
        &self,
        identity: &IdentityName,
        mut object: ClientIdentity,
        status: ClientIdentityStatus,
    ) -> Result<ClientIdentity, ApproveError> {
        self.check_leading()?;
        object.status = Some(status);
        let api: Api<ClientIdentity> = Api::namespaced(self.client.clone(), &identity.namespace);
        let written = api.replace_status(&identity.name, &PostParams::default(), &object).await;
        written.map_err(|error| ApproveError::api(format!("write the status of ClientIdentity {identity}"), error))
    }

    /// How the API server is reached, by the spec.
    async fn server(&self, identity: &IdentityName, object: &ClientIdentity) -> Result<Server, ApproveError> {
        let server = &object.spec.server;
        let invalid = |error| ApproveError::Invalid(format!("spec.server: {error}"));
        if let Some(pem) = &server.ca_bundle {
            return Server::new(&server.endpoint, pem.as_bytes()).map_err(invalid);
        }
        let name = server.ca_config_map_name.as_deref().unwrap_or("kube-root-ca.crt");
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &identity.namespace);
        let read = api.get_opt(name).await;
        let read = read.map_err(|error| ApproveError::api(format!("read ConfigMap {name}"), error))?;
        let pem = read.and_then(|object| object.data?.remove("ca.crt"));
        let missing = || {
            ApproveError::Invalid(format!(
                "ConfigMap {name} with the key ca.crt does not exist. Create it, or set spec.server"
            ))
        };
        Server::new(&server.endpoint, pem.ok_or_else(missing)?.as_bytes()).map_err(invalid)
    }

    /// Applies the permissions, if they have changed or at a resync.
    async fn grant(
        &mut self,
        identity: &IdentityName,
        object: &ClientIdentity,
        is_resync: bool,
    ) -> Result<(), ApproveError> {
        let uid = object.uid().unwrap_or_default();
        let permissions = objects::permissions(identity, &uid, &object.spec.rules);
        let hash = fingerprint_of(json!([uid, object.spec.rules]).to_string().as_bytes());
        if !is_resync && self.known(identity).applied.as_ref() == Some(&hash) {
            return Ok(());
        }
        self.known(identity).applied = None;
        self.check_leading()?;
        let mut failure = None;
        // A Role that is refused does not keep the client from having a certificate.
        for (kind, desired) in permissions {
            let group = "rbac.authorization.k8s.io";
            if let Err(error) = apply(self.client, (group, kind), &desired).await {
                failure = failure.or(Some(error));
            }
        }
        match failure {
            Some(error) => Err(error),
            None => {
                self.known(identity).applied = Some(hash);
                Ok(())
            }
        }
    }

    /// Makes or removes the bootstrap token and kubeconfig. Returns the condition `Valid`.
    async fn bootstrap(
        &mut self,
        identity: &IdentityName,
        object: &mut ClientIdentity,
        status: &mut ClientIdentityStatus,
        server: &Server,
        now: Timestamp,
    ) -> Result<Said, ApproveError> {
        let requested_at = object.annotations().get(BOOTSTRAP_REQUESTED_AT).and_then(|text| text.parse().ok());
        let observed = Observed {
            identity,
            server,
            certificate: status.certificate.as_ref(),
            bootstrap: status.bootstrap.as_ref(),
            requested_at,
            client_cas: &self.client_cas,
        };
        let plan = plan::plan(&observed, now);
        let secret = object.spec.bootstrap_secret_name(&identity.name);
        let waiting = |need: Need, rest: String| {
            (ConditionStatus::False, need.reason().to_owned(), format!("{} {rest}", need.message()))
        };
        if !matches!(plan, Plan::Deliver(_)) {
            self.known(identity).delivery = None;
        }
        match plan {
            Plan::Valid { remove_token_at } => {
                if object.status.is_none() {
                    self.remove_recorded_token(identity).await?;
                }
                if let Some(token) = status.bootstrap.as_ref().filter(|_| remove_token_at.is_some_and(|at| at <= now)) {
                    self.remove_token(&token.token_id).await?;
                    status.bootstrap = None;
                }
                let expires = status.certificate.as_ref().map(|certificate| certificate.not_after.to_string());
                let message =
                    format!("The client has a certificate, which expires at {}.", expires.unwrap_or_default());
                Ok((ConditionStatus::True, "Issued".to_owned(), message))
            }
            Plan::Wait(need) => Ok(waiting(need, format!("Its bootstrap kubeconfig is in Secret {secret}."))),
            Plan::Delay(need, until) => {
                if let Some(token) = &status.bootstrap {
                    self.remove_token(&token.token_id).await?;
                }
                Ok(waiting(need, format!("Its bootstrap token expired unused; the next one is made at {until}.")))
            }
            Plan::Deliver(need) if self.is_deliverable(identity, status) => {
                let progress = self.deliver(identity, object, status)?;
                let rest = match progress {
                    Progress::Delivered => "Its bootstrap kubeconfig is in Secret",
                    Progress::Pending => {
                        "It is being delivered to the other cluster; its bootstrap kubeconfig is in Secret"
                    }
                };
                Ok(waiting(need, format!("{rest} {secret}.")))
            }
            // The process that has made it was ended.
            Plan::Deliver(need) | Plan::Bootstrap(need) => {
                if !self.known(identity).attempts.is_due() {
                    // The condition says why the last attempt failed.
                    let last = status.condition(VALID).cloned();
                    let last = last.map(|last| (last.status, last.reason, last.message));
                    return Ok(last.unwrap_or_else(|| (ConditionStatus::False, "Unknown".to_owned(), String::new())));
                }
                let made = self.make_bootstrap(identity, object, status, server, now).await;
                let known = self.known(identity);
                match made {
                    Ok(()) => {
                        known.attempts = Attempts::default();
                        tracing::info!(%identity, reason = need.reason(), "bootstrap kubeconfig made");
                        Ok(waiting(need, format!("Its bootstrap kubeconfig is in Secret {secret}.")))
                    }
                    Err(error) => {
                        known.attempts.record_failure();
                        Err(error)
                    }
                }
            }
        }
    }

    /// Whether the bootstrap kubeconfig with the current token is in memory: its Secret in the namespace is written by others, too.
    fn is_deliverable(&mut self, identity: &IdentityName, status: &ClientIdentityStatus) -> bool {
        let delivery = self.known(identity).delivery.as_ref();
        delivery.is_some_and(|one| status.bootstrap.as_ref().is_some_and(|token| token.token_id == one.token_id))
    }

    /// Continues a delivery to another cluster. Attempts run next to the rounds, one at a time for the identities of a namespace.
    fn deliver(
        &mut self,
        identity: &IdentityName,
        object: &ClientIdentity,
        status: &mut ClientIdentityStatus,
    ) -> Result<Progress, ApproveError> {
        let is_in_progress = |(other, known): (&IdentityName, &Known)| {
            other.namespace == identity.namespace && known.delivery.as_ref().is_some_and(Delivery::is_in_progress)
        };
        let progress = match (&object.spec.delivery, &mut self.known(identity).delivery) {
            (Some(to), Some(delivery)) => {
                delivery.redirect(to);
                delivery.progress()
            }
            _ => Ok(Progress::Delivered),
        };
        if matches!(progress, Ok(Progress::Delivered)) {
            self.known(identity).delivery = None;
            if let Some(token) = &mut status.bootstrap {
                token.delivered = true;
            }
            return progress;
        }
        if !self.known.iter().any(is_in_progress) {
            self.check_leading()?;
            let (client, event, allow_local) = (self.client, self.event.clone(), self.settings.allow_local_delivery);
            if let Some(delivery) = &mut self.known(identity).delivery {
                delivery.start(client, identity, allow_local, move || event.notify_one());
            }
        }
        progress
    }

    /// Makes a token, and puts a bootstrap kubeconfig where the client reads it.
    async fn make_bootstrap(
        &mut self,
        identity: &IdentityName,
        object: &mut ClientIdentity,
        status: &mut ClientIdentityStatus,
        server: &Server,
        now: Timestamp,
    ) -> Result<(), ApproveError> {
        let no_random = || ApproveError::Invalid("The system has no random bytes".to_owned());
        let (id, token_secret) =
            (objects::random_text(6).ok_or_else(no_random)?, objects::random_text(16).ok_or_else(no_random)?);
        let namespace = &identity.namespace;
        let name = object.spec.bootstrap_secret_name(&identity.name);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let stored =
            api.get_opt(&name).await.map_err(|error| ApproveError::api(format!("read Secret {name}"), error))?;
        let last = last_server(stored.as_ref(), &name, identity)?;
        let before = status.bootstrap.take();
        match &before {
            Some(token) => self.remove_token(&token.token_id).await?,
            None => self.remove_recorded_token(identity).await?,
        }
        let unused = before.as_ref().filter(|token| token.delivered && token.key_hash.is_none());
        let expiration = now.saturating_add(self.settings.token_lifetime).unwrap_or(Timestamp::MAX);
        let token = BootstrapToken {
            token_id: id.to_string(),
            created_at: now,
            expiration,
            endpoint: server.endpoint.clone(),
            ca_hash: server.ca_hash(),
            bundle_hash: server.ca_hash(),
            cas: server.cas.iter().map(|ca| ca.fingerprint.clone()).collect(),
            delivered: false,
            attempts: unused.map_or(1, |token| token.attempts.saturating_add(1)),
            key_hash: None,
        };
        status.bootstrap = Some(token);
        // Stored first: a process that is started after a crash knows which token to remove.
        *object = self.store_status(identity, object.clone(), status.clone()).await?;
        self.record_token(identity, &id).await?;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "kube-system");
        let token = decoded::<Secret>(objects::token_secret(identity, &id, &token_secret, expiration))?;
        let created = secrets.create(&PostParams::default(), &token).await;
        created.map_err(|error| ApproveError::api("create a bootstrap token in kube-system", error))?;

        let server = Server { cas: rolled_cas(server, before.as_ref(), last.as_ref(), now), ..server.clone() };
        if let Some(token) = &mut status.bootstrap {
            token.bundle_hash = server.ca_hash();
        }
        let kubeconfig = kubeconfig::bootstrap(identity, &server, &format!("{}.{}", *id, *token_secret));
        let uid = object.uid().unwrap_or_default();
        let secret = objects::bootstrap_secret(identity, Some(&uid), (namespace, &name), &kubeconfig.text);
        apply(self.client, ("", "Secret"), &secret).await?;

        let delivery = object.spec.delivery.clone();
        self.known(identity).delivery = delivery.map(|to| Delivery::new(&id, kubeconfig.text, to));
        self.deliver(identity, object, status).map(drop)
    }

    /// Records the id of a token in the ClusterRole of its identity. Unlike the ClientIdentity and its Secrets, editors of the namespace
    /// cannot write that object, and it stays when the ClientIdentity is deleted or loses its status.
    async fn record_token(&self, identity: &IdentityName, token_id: &str) -> Result<(), ApproveError> {
        let change = json!({ "metadata": { "annotations": { BOOTSTRAP_TOKEN: token_id } } });
        let written = self
            .cluster_roles()
            .patch_metadata(&identity.cluster_role_name(), &PatchParams::default(), &Patch::Merge(&change))
            .await;
        written.map(drop).map_err(|error| ApproveError::api("record a bootstrap token in a ClusterRole", error))
    }

    /// Removes the token that the approver recorded for an identity, when no status names it.
    async fn remove_recorded_token(&self, identity: &IdentityName) -> Result<(), ApproveError> {
        let read = self.cluster_roles().get_metadata_opt(&identity.cluster_role_name()).await;
        let read = read.map_err(|error| ApproveError::api("read a ClusterRole", error))?;
        match read.as_ref().and_then(|object| object.annotations().get(BOOTSTRAP_TOKEN)) {
            Some(token_id) => self.remove_token(token_id).await,
            None => Ok(()),
        }
    }

    fn cluster_roles(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource("rbac.authorization.k8s.io", "ClusterRole"))
    }

    async fn remove_token(&self, token_id: &str) -> Result<(), ApproveError> {
        self.check_leading()?;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), "kube-system");
        delete(&api, &objects::token_secret_name(token_id), "a bootstrap token in kube-system").await
    }

    /// Approves or denies a request, or leaves it alone.
    async fn decide(
        &mut self,
        request: &CertificateSigningRequest,
        present: &mut BTreeMap<IdentityName, ClientIdentity>,
        now: Timestamp,
    ) -> Result<(), ApproveError> {
        let (identity, key_hash) = match requests::recognized(request) {
            Recognition::Other => return Ok(()),
            Recognition::Refused(denial) => {
                self.check_leading()?;
                return requests::deny(self.client, request, &denial).await;
            }
            Recognition::Identity { identity, key_hash } => (identity, key_hash),
        };
        let is_allowed = requests::is_allowed(self.client, request, &identity).await?;
        let object = present.get(&identity);
        // It could not be reconciled in this round.
        if object.is_none() && self.known.contains_key(&identity) {
            return Ok(());
        }
        let bootstrap = object.and_then(|object| object.status.as_ref()?.bootstrap.as_ref());
        let requested = object.map(|object| RequestedIdentity {
            max_expiration_seconds: object.spec.max_expiration_seconds(),
            bootstrap,
            is_allowed,
        });
        let fields = requests::fields(request);
        match decide(&fields, &key_hash, requested.as_ref(), now) {
            Verdict::Wait => Ok(()),
            Verdict::Deny(denial) => {
                self.check_leading()?;
                requests::deny(self.client, request, &denial).await
            }
            Verdict::Approve => {
                let by_token = bootstrap.filter(|token| fields.username.ends_with(&token.token_id));
                if by_token.is_some_and(|token| token.key_hash.as_ref() != Some(&key_hash))
                    && let Some(object) = present.remove(&identity)
                {
                    // Stored before the approval: a token is for one key, whatever happens to this process.
                    let mut status = object.status.clone().unwrap_or_default();
                    if let Some(token) = &mut status.bootstrap {
                        token.key_hash = Some(key_hash);
                    }
                    let object = self.store_status(&identity, object, status).await?;
                    present.insert(identity, object);
                }
                self.check_leading()?;
                requests::approve(self.client, request).await
            }
        }
    }

    /// Removes the tokens and cluster-scoped objects of identities that were deleted.
    async fn forget_absent(&mut self, present: &BTreeMap<IdentityName, ClientIdentity>) -> Result<(), ApproveError> {
        let absent: Vec<_> = self.known.keys().filter(|identity| !present.contains_key(*identity)).cloned().collect();
        let mut result = Ok(());
        for identity in absent {
            let forgotten = timeout(TIMEOUT, self.forget(&identity)).await;
            result = result.and(forgotten.unwrap_or(Err(ApproveError::NoAnswer)));
        }
        result
    }

    /// Removes the token and the cluster-scoped objects of an identity, unless it exists.
    async fn forget(&mut self, identity: &IdentityName) -> Result<(), ApproveError> {
        let api: Api<ClientIdentity> = Api::namespaced(self.client.clone(), &identity.namespace);
        let read = api.get_metadata_opt(&identity.name).await;
        let read = read.map_err(|error| ApproveError::api(format!("read ClientIdentity {identity}"), error))?;
        if read.is_none_or(|object| object.metadata.deletion_timestamp.is_some()) {
            self.remove_cluster_objects(identity).await?;
            self.known.remove(identity);
        }
        Ok(())
    }

    /// Removes the tokens and cluster-scoped objects of identities that do not exist.
    async fn remove_orphans(&self) -> Result<(), ApproveError> {
        let listed = self.cluster_roles().list_metadata(&ListParams::default().labels(IDENTITY_NAMESPACE)).await;
        let listed = listed.map_err(|error| ApproveError::api("list ClusterRoles", error))?;
        let identities: BTreeSet<_> = listed
            .iter()
            .filter_map(|object| {
                let label = |key| object.labels().get(key);
                Some(IdentityName::new(label(IDENTITY_NAMESPACE)?, label(IDENTITY_NAME)?))
            })
            .collect();
        let mut result = Ok(());
        for identity in identities.iter().filter(|identity| !self.known.contains_key(*identity)) {
            let removed = timeout(TIMEOUT, self.remove_cluster_objects(identity)).await;
            result = result.and(removed.unwrap_or(Err(ApproveError::NoAnswer)));
        }
        result
    }

    async fn remove_cluster_objects(&self, identity: &IdentityName) -> Result<(), ApproveError> {
        self.check_leading()?;
        // Before the record is removed.
        self.remove_recorded_token(identity).await?;
        for kind in ["ClusterRoleBinding", "ClusterRole"] {
            let resource = resource("rbac.authorization.k8s.io", kind);
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            delete(&api, &identity.cluster_role_name(), &format!("a {kind}")).await?;
        }
        Ok(())
    }
}

/// The later of two records.
fn newest(one: Option<IssuedCertificate>, other: Option<IssuedCertificate>) -> Option<IssuedCertificate> {
    [one, other].into_iter().flatten().max_by_key(|record| (record.not_after, record.issued_at))
}

/// The record of a certificate, unless it is recorded.
fn record(
    status: &ClientIdentityStatus,
    issued: &Issued,
    server: &Server,
    now: Timestamp,
) -> Option<IssuedCertificate> {
    let before = status.certificate.as_ref();
    let encoded = issued.encoded();
    if before.is_some_and(|before| before.certificate == encoded || before.not_after > issued.certificate.not_after) {
        return None;
    }
    // The kubeconfig has the server of the bootstrap kubeconfig, or the server that it had before.
    let token = status.bootstrap.as_ref().filter(|token| issued.requester.ends_with(&token.token_id));
    let (endpoint, ca_hash, bundle_hash) = match (token, before) {
        (Some(token), _) => (token.endpoint.clone(), token.ca_hash.clone(), token.bundle_hash.clone()),
        (None, Some(before)) => (before.endpoint.clone(), before.ca_hash.clone(), before.bundle_hash.clone()),
        (None, None) => (server.endpoint.clone(), server.ca_hash(), server.ca_hash()),
    };
    Some(IssuedCertificate {
        request: issued.request.clone(),
        certificate: encoded,
        not_after: issued.certificate.not_after,
        issued_at: now,
        endpoint,
        ca_hash,
        bundle_hash,
    })
}

/// Status, reason and message of a condition.
type Said = (ConditionStatus, String, String);

fn failed(error: &ApproveError) -> Said {
    (ConditionStatus::False, error.reason().to_owned(), error.to_string())
}

/// The server in the bootstrap kubeconfig of a Secret that trustspan wrote.
fn last_server(stored: Option<&Secret>, name: &str, identity: &IdentityName) -> Result<Option<Server>, ApproveError> {
    let Some(stored) = stored else { return Ok(None) };
    check_owner(&stored.metadata, name, identity)?;
    let text =
        stored.data.as_ref().and_then(|data| data.get("kubeconfig")).map(|bytes| String::from_utf8_lossy(&bytes.0));
    Ok(text.and_then(|text| kubeconfig::parse(&text).ok()).map(|(kubeconfig, _)| kubeconfig.server))
}

fn decoded<T: DeserializeOwned>(object: Value) -> Result<T, ApproveError> {
    serde_json::from_value(object).map_err(|_| ApproveError::Invalid("An object cannot be encoded".to_owned()))
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// Deletes an object, if it exists.
async fn delete<K>(api: &Api<K>, name: &str, what: &str) -> Result<(), ApproveError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop).map_err(|error| ApproveError::api(format!("delete {what}"), error)),
    }
}

/// Server-side apply.
async fn apply(client: &Client, (group, kind): (&str, &str), desired: &Value) -> Result<(), ApproveError> {
    let (metadata, resource) = (&desired["metadata"], resource(group, kind));
    let name = metadata["name"].as_str().unwrap_or_default();
    let api: Api<DynamicObject> = match metadata["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let applied = api.patch(name, &params, &Patch::Apply(desired)).await;
    applied.map(drop).map_err(|error| ApproveError::api(format!("apply {kind} {name}"), error))
}

/// Writes the annotation with the certificate. Returns the object with its new resourceVersion.
async fn annotate(
    client: &Client,
    identity: &IdentityName,
    annotation: Option<String>,
) -> Result<ClientIdentity, ApproveError> {
    let api: Api<ClientIdentity> = Api::namespaced(client.clone(), &identity.namespace);
    let change = json!({ "metadata": { "annotations": { CLIENT_CERTIFICATE: annotation } } });
    let written = api.patch(&identity.name, &PatchParams::default(), &Patch::Merge(&change)).await;
    written.map_err(|error| ApproveError::api(format!("annotate ClientIdentity {identity}"), error))
}

async fn list<K>(client: &Client) -> Result<Vec<K>, ApproveError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let listed = timeout(TIMEOUT, Api::<K>::all(client.clone()).list(&ListParams::default())).await;
    let listed = listed.unwrap_or_else(|_| Err(kube::Error::Service("no answer".into())));
    Ok(listed.map_err(|error| ApproveError::api(format!("list {}", K::plural(&())), error))?.items)
}

/// Notifies of each event of a kind.
async fn notify_each<K>(client: Client, config: watcher::Config, event: Arc<Notify>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client);
    let mut events = std::pin::pin!(with_backoff(watcher(api, config)));
    while let Some(next) = events.next().await {
        if let Err(error) = &next {
            tracing::debug!("watch of {} failed, retrying: {error}", K::plural(&()));
        }
        event.notify_one();
    }
}
