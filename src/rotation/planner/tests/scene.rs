//! A GatewaySecret and its objects at one instant, for tests of single plans.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::api::{GatewaySecretStatus, StepName, TrustAnchor};
use crate::registry::Entry;
use crate::registry::tests::entry;
use crate::rotation::journal::Journal;
use crate::rotation::planner::{
    AdditionalSource, CaConfigMap, Canary, ClientState, FurtherCertificate, Issuance, NamespaceState, PairOf, Pending,
    Plan, ProbeResult, Snapshot, SourceState, Step, Trust, TrustCopy, TrustLoader, plan,
};
use crate::rotation::readers::{SourceName, TlsReader};
use crate::rotation::{ObservedState, RenewalPolicy, SecretSummary, observe, report};
use crate::trust::Certificate;
use crate::trust::fixtures::{Authority, now, parsed};

/// A GatewaySecret whose source Secret is signed by the CA in Secret `ca`, and one client.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) entry: Entry,
    pub(super) ca: SecretSummary,
    pub(super) client_ca: Option<SecretSummary>,
    pub(super) source: SecretSummary,
    pub(super) issuer: SecretSummary,
    /// Whether the Issuer's Secret exists.
    pub(super) has_issuer: bool,
    pub(super) managed: Option<SecretSummary>,
    pub(super) client: SecretSummary,
    pub(super) loads_once: bool,
    pub(super) is_retired: bool,
    pub(super) canary: Option<Canary>,
    pub(super) probe_result: Option<ProbeResult>,
    pub(super) readers: Vec<TlsReader>,
    pub(super) sources: BTreeMap<SourceName, SourceState>,
    pub(super) presented_also: Vec<FurtherCertificate>,
    pub(super) source_sibling: Option<SecretSummary>,
    pub(super) managed_sibling: Option<SecretSummary>,
    /// The objects of `spec.additionalTrust`.
    pub(super) additional_trust: Vec<Option<SecretSummary>>,
    pub(super) config_maps: Vec<ConfigMapScene>,
    pub(super) declared: bool,
    /// The client's new certificate, which admission rejects.
    pub(super) pending: Option<Pending>,
    /// When the source Secret's certificate was issued.
    pub(super) issued: Option<Timestamp>,
    /// Whether it is being reissued.
    pub(super) is_issuing: bool,
    /// Why its reissue was refused.
    pub(super) refused: Option<String>,
    pub(super) bundle_readers: Vec<ClientState>,
    pub(super) trust_loaders: Vec<TrustLoader>,
    pub(super) unlisted_namespaces: Vec<String>,
    /// Whether other namespaces of clients exist.
    pub(super) namespaces: BTreeMap<String, NamespaceState>,
    pub(super) other_gateway_secrets: Vec<Entry>,
    /// `spec.renewal` of the client's Certificate, and of the source Secret's.
    pub(super) renewal: [RenewalPolicy; 2],
    pub(super) journal: Journal,
    pub(super) now: Timestamp,
}

/// A ConfigMap of `spec.clients.caConfigMapNames`, and its copy.
#[derive(Clone)]
pub(super) struct ConfigMapScene {
    pub(super) name: String,
    pub(super) source: Option<SecretSummary>,
    pub(super) managed: Option<SecretSummary>,
}

impl ConfigMapScene {
    fn seen(&self) -> CaConfigMap<'_> {
        let managed = self.managed.as_ref().map_or(TrustCopy::Absent, TrustCopy::Managed);
        CaConfigMap { name: self.name.clone(), source: self.source.as_ref(), managed }
    }
}

pub(super) fn source(authority: &Authority) -> SecretSummary {
    let ca = parsed(authority.der());
    SecretSummary { anchors: vec![ca.clone()], chain: vec![ca], ..SecretSummary::default() }
}

pub(super) fn pair(authority: &Authority, name: &str) -> SecretSummary {
    let leaf = authority.leaf_with(name, |params| params.use_authority_key_identifier_extension = true);
    SecretSummary {
        anchors: vec![parsed(authority.der())],
        chain: vec![parsed(leaf.der())],
        ..SecretSummary::default()
    }
}

impl Scene {
    /// A GatewaySecret in phase Steady: one CA, and every write has propagated.
    pub(super) fn steady(authority: &Authority) -> Self {
        Self::steady_with(source(authority), pair(authority, "gateway"), pair(authority, "client"))
    }

    /// The same with these contents of the CA's Secret, the source Secret and the client's Secret.
    pub(super) fn steady_with(ca: SecretSummary, source: SecretSummary, client: SecretSummary) -> Self {
        let mut entry = Entry { status: GatewaySecretStatus::default(), ..entry("mesh", "root", "gw") };
        entry.resolved.ca_secret_ref = Some("ca".into());
        entry.spec.issuer_secret_name = Some("issuer".to_owned());
        entry.spec.clients.all_declared = true;
        let mut scene = Self {
            entry,
            issuer: ca.clone(),
            has_issuer: true,
            ca,
            client_ca: None,
            managed: Some(source.clone()),
            source,
            client,
            loads_once: false,
            is_retired: false,
            canary: None,
            probe_result: None,
            readers: Vec::new(),
            sources: BTreeMap::new(),
            presented_also: Vec::new(),
            source_sibling: None,
            managed_sibling: None,
            additional_trust: Vec::new(),
            config_maps: Vec::new(),
            declared: true,
            pending: None,
            issued: None,
            is_issuing: false,
            refused: None,
            bundle_readers: Vec::new(),
            trust_loaders: Vec::new(),
            unlisted_namespaces: Vec::new(),
            namespaces: BTreeMap::new(),
            other_gateway_secrets: Vec::new(),
            renewal: [RenewalPolicy::Anytime, RenewalPolicy::Anytime],
            journal: Journal::default(),
            now: now(),
        };
        scene.reconcile();
        scene.pass(HOUR);
        scene
    }

    pub(super) fn plan(&self) -> Plan {
        let client_renewal = self.renewal[0];
        let client = self.declared.then(|| ClientState {
            name: "client".to_owned(),
            chain: self.client.chain.clone(),
            trust: Trust::Read(self.client.anchors.clone()),
            loads_once: self.loads_once,
            is_retired: self.is_retired,
            certificate: Some(Issuance { name: "client".to_owned(), renewal: client_renewal, ..Issuance::default() }),
            pending: self.pending.clone(),
        });
        self.plan_with(client.into_iter().collect())
    }

    /// A plan with other clients.
    pub(super) fn plan_with(&self, clients: Vec<ClientState>) -> Plan {
        let seen = Snapshot {
            entry: &self.entry,
            source: Some(&self.source),
            ca: Some(&self.ca),
            client_ca: self.client_ca.as_ref(),
            issuer: self.has_issuer.then_some(&self.issuer),
            managed: self.managed.as_ref(),
            bundle_readers: self.bundle_readers.clone(),
            clients,
            trust_loaders: self.trust_loaders.clone(),
            unlisted_namespaces: &self.unlisted_namespaces,
            namespaces: self.namespaces.clone(),
            other_gateway_secrets: self.other_gateway_secrets.iter().collect(),
            source_certificate: Some(Issuance {
                name: "gateway".to_owned(),
                issued: self.issued,
                issuing: self.is_issuing.then_some(self.now),
                refused: self.refused.clone(),
                renewal: self.renewal[1],
                ..Issuance::default()
            }),
            canary: self.canary.clone(),
            probe_result: self.probe_result.clone(),
            unprobed: None,
            readers: self.readers.clone(),
            sources: self.sources.clone(),
            presented_also: self.presented_also.clone(),
            source_sibling: self.source_sibling.as_ref(),
            managed_sibling: self.managed_sibling.as_ref().map_or(TrustCopy::Absent, TrustCopy::Managed),
            additional_trust: (self.entry.spec.additional_trust.iter().zip(&self.additional_trust))
                .map(|(named, content)| AdditionalSource { named, content: content.as_ref() })
                .collect(),
            config_maps: self.config_maps.iter().map(ConfigMapScene::seen).collect(),
        };
        let plan = plan(&seen, &self.journal, self.now);
        super::waits::compare(&plan.waits);
        plan
    }

    /// Plans, and stores the journal and the clients' bundle. The caller takes the steps.
    pub(super) fn reconcile(&mut self) -> Plan {
        let plan = self.plan();
        self.journal = plan.journal.clone();
        self.entry.status.client_bundle = plan.client_bundle.iter().map(TrustAnchor::from).collect();
        plan
    }

    /// The status after a plan.
    pub(super) fn status(&self, plan: &Plan) -> GatewaySecretStatus {
        report(&self.entry, plan, self.entry.status.clone(), self.now)
    }

    /// Stores the status of the objects and of a plan.
    pub(super) fn keep_status(&mut self, plan: &Plan) {
        let (entry, source, managed) = (&self.entry, Some(&self.source), self.managed.as_ref());
        let seen = observe(&observation(entry, source, managed), self.now);
        self.entry.status = report(&self.entry, plan, seen, self.now);
    }

    pub(super) fn pass(&mut self, time: SignedDuration) {
        self.reconcile();
        self.now += time;
    }

    /// Takes the steps that write Secrets.
    pub(super) fn take(&mut self, plan: &Plan) {
        for step in &plan.steps {
            match step {
                Step::WriteManaged { trust, pair } => {
                    let from = if *pair == PairOf::Source { Some(&self.source) } else { self.managed.as_ref() };
                    let chain = from.map(|facts| facts.chain.clone()).unwrap_or_default();
                    let written = SecretSummary { anchors: trust.clone(), chain, ..SecretSummary::default() };
                    let has_lists = self.source.revocation.is_some() || self.source.has_no_lists;
                    let lists = if has_lists { Some(&self.source) } else { self.managed.as_ref() };
                    self.managed = Some(written.with_lists_of(lists));
                }
                Step::WriteSibling { trust } => {
                    self.managed_sibling = Some(SecretSummary { anchors: trust.clone(), ..SecretSummary::default() });
                }
                Step::WriteConfigMap { source, trust } => {
                    let map = self.config_maps.iter_mut().find(|map| map.name == *source).expect("one of the spec's");
                    let revocation = map.source.as_ref().and_then(|source| source.revocation.clone());
                    map.managed =
                        Some(SecretSummary { anchors: trust.clone(), revocation, ..SecretSummary::default() });
                }
                Step::PromoteIssuer => self.issuer = self.ca.clone(),
                Step::CopySource => self.managed = Some(self.source.clone()),
                Step::Reissue { .. } => {}
            }
        }
    }
}

/// An observation of the source Secret and the managed Secret only.
pub(super) fn observation<'a>(
    entry: &'a Entry,
    source: Option<&'a SecretSummary>,
    managed: Option<&'a SecretSummary>,
) -> ObservedState<'a> {
    ObservedState {
        entry,
        holder: None,
        source,
        managed,
        source_sibling: None,
        managed_sibling: None,
        managed_config_maps: Vec::new(),
        workload_namespaces: None,
        gateways: None,
        ungranted_namespaces: None,
    }
}

pub(super) const HOUR: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn subjects(bundle: &[Certificate]) -> Vec<&str> {
    bundle.iter().map(|ca| ca.subject.as_str()).collect()
}

pub(super) fn bundle(plan: &Plan) -> Option<Vec<&str>> {
    plan.steps.iter().find_map(|step| match step {
        Step::WriteManaged { trust, .. } => Some(subjects(trust)),
        _ => None,
    })
}

pub(super) fn reissues(plan: &Plan) -> Vec<&str> {
    let name = |step: &'_ Step| matches!(step, Step::Reissue { .. });
    let steps = plan.steps.iter().filter(|step| name(step));
    steps.map(|step| if let Step::Reissue { certificate } = step { certificate.as_str() } else { "" }).collect()
}

pub(super) fn waits(plan: &Plan) -> Vec<StepName> {
    plan.waits.iter().map(|wait| wait.step).collect()
}

/// A scene before the switch of the serving certificate. Gateways and the client's Secret have the new CA, but the
/// client may still use what it loaded earlier. The source Secret has the new serving certificate.
pub(super) fn before_the_switch(old: &Authority, new: &Authority, loads_once: bool) -> Scene {
    let mut scene = Scene::steady(old);
    scene.loads_once = loads_once;
    scene.ca = source(new);
    for _ in 0..3 {
        let plan = scene.reconcile();
        scene.take(&plan);
        scene.now += SignedDuration::from_mins(1);
    }
    scene.client = pair(new, "client");
    scene.client.anchors.push(parsed(old.der()));
    scene.pass(HOUR);
    scene.source = pair(new, "gateway");
    scene
}
