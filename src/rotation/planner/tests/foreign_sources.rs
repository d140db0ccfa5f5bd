//! Servers that take their clients' CAs from other objects than the managed Secret, and the owners of these objects.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::cluster::{Cluster, Content, HOUR, MANAGED, MINUTE};
use crate::api::SourceKind;
use crate::rotation::SecretSummary;
use crate::rotation::planner::{CaConfigMap, SourceState, TrustCopy};
use crate::rotation::readers::{ReaderTrust, SourceName, TlsReader};

/// The objects in which istiod looks up the CAs of a server, in this order, by the kind of field that names them.
/// Written from istiod's behavior (pilot/pkg/credentials/kube/secrets.go), not from the tested code.
const LOOKED_UP: [&[&str]; 3] =
    [&["Secret partners-cacert", "Secret partners"], &["Secret others-cacert", "Secret others"], &["ConfigMap roots"]];

/// A ConfigMap of `spec.clients.caConfigMapNames`. A server uses its copy.
const SOURCE: &str = "ConfigMap shared";
const KEPT: &str = "ConfigMap shared.trustspan";

/// The longest time until an owner adds a CA to an object.
const OWNER: SignedDuration = SignedDuration::from_secs((30 * MINUTE).cast_signed());

/// A server that every gateway replica has.
pub(super) struct Server {
    /// The objects from which it takes CAs, the preferred one first.
    objects: &'static [&'static str],
    /// The content that each replica has loaded.
    loaded: Vec<Option<Content>>,
}

/// An object in the cluster.
#[derive(Default)]
pub(super) struct Foreign {
    pub(super) servers: Vec<Server>,
    objects: BTreeMap<&'static str, Content>,
    /// Whether the agent may not read the objects.
    pub(super) hidden: bool,
    /// The foreign CA in the copied ConfigMap, whose clients the server accepts.
    stranger: Option<crate::trust::Certificate>,
}

/// What the agent reads about the servers.
pub(super) struct Read {
    pub(super) readers: Vec<TlsReader>,
    pub(super) sources: BTreeMap<SourceName, SourceState>,
    /// The ConfigMap of `spec.clients.caConfigMapNames`, and its copy.
    kept: Option<[Content; 2]>,
}

impl Foreign {
    pub(super) fn is_strangers(&self, ca: &crate::trust::Certificate) -> bool {
        self.stranger.as_ref() == Some(ca)
    }
}

impl Read {
    pub(super) fn config_maps(&self) -> Vec<CaConfigMap<'_>> {
        let map = self.kept.iter().map(|[source, kept]| CaConfigMap {
            name: name(SOURCE).name,
            source: Some(&source.facts),
            managed: TrustCopy::Managed(&kept.facts),
        });
        map.collect()
    }
}

fn name(object: &str) -> SourceName {
    let (kind, name) = object.split_once(' ').unwrap();
    let kind = if kind == "Secret" { SourceKind::Secret } else { SourceKind::ConfigMap };
    SourceName { kind, namespace: "mesh".to_owned(), name: name.to_owned() }
}

impl Cluster {
    /// Creates random servers. Their objects contain the CAs of all clients, and a foreign CA.
    pub(super) fn add_foreign(&mut self) {
        for objects in LOOKED_UP {
            if !self.chance(4) {
                continue;
            }
            let stranger = self.make_ca(10 * HOUR);
            let ours = self.facts(self.client_source()).unwrap().chain[0].clone();
            // The first of two possible objects exists, or the second, or both.
            let held = self.seed.below(3);
            for (at, object) in objects.iter().enumerate() {
                if objects.len() == 1 || held == 2 || held == at as u64 {
                    self.write_foreign(object, vec![ours.clone(), stranger.clone()]);
                }
            }
            let loaded = vec![None; self.gateways.len()];
            self.foreign.servers.push(Server { objects, loaded });
            (0..self.gateways.len()).for_each(|replica| self.load_foreign(replica));
        }
        if self.chance(3) {
            self.add_kept();
        }
    }

    /// Creates a server that uses the copy of a ConfigMap.
    fn add_kept(&mut self) {
        let stranger = self.make_ca(10 * HOUR);
        let ours = self.facts(self.client_source()).unwrap().chain[0].clone();
        self.entry.spec.clients.ca_config_map_names = vec![name(SOURCE).name];
        self.foreign.stranger = Some(stranger.clone());
        for object in [SOURCE, KEPT] {
            self.write_foreign(object, vec![stranger.clone(), ours.clone()]);
        }
        let loaded = vec![None; self.gateways.len()];
        self.foreign.servers.push(Server { objects: &[KEPT], loaded });
        (0..self.gateways.len()).for_each(|replica| self.load_foreign(replica));
    }

    /// Writes the copy, as the agent does.
    ///
    /// # Panics
    /// When the foreign CA is not exactly once in the copy, or is in the managed Secret.
    pub(super) fn write_kept(&mut self, trust: &[crate::trust::Certificate]) {
        let is_strangers = |ca: &&crate::trust::Certificate| self.foreign.is_strangers(ca);
        assert_eq!(trust.iter().filter(is_strangers).count(), 1, "{}", self.log_text("another's CA is lost"));
        let managed = self.facts(MANAGED).map(|facts| facts.anchors.as_slice()).unwrap_or_default();
        assert_eq!(
            managed.iter().filter(is_strangers).count(),
            0,
            "{}",
            self.log_text("another's CA in the managed Secret")
        );
        self.write_foreign(KEPT, trust.to_vec());
    }

    fn write_foreign(&mut self, object: &'static str, anchors: Vec<crate::trust::Certificate>) {
        self.note(format!("{object}: {}", self.named(&anchors)));
        let content = self.content(SecretSummary { anchors, ..SecretSummary::default() });
        self.foreign.objects.insert(object, content);
        self.push_foreign();
    }

    fn push_foreign(&mut self) {
        for replica in 0..self.gateways.len() {
            self.within(self.delays.gateways.duration(), move |cluster| cluster.load_foreign(replica));
        }
        self.poke();
    }

    /// A replica loads the objects. If an object was deleted, a running proxy keeps its content.
    pub(super) fn load_foreign(&mut self, replica: usize) {
        for server in &mut self.foreign.servers {
            let found = server.objects.iter().find_map(|object| self.foreign.objects.get(object));
            if let Some(found) = found {
                server.loaded[replica] = Some(found.clone());
            }
        }
    }

    /// A replica starts.
    pub(super) fn start_foreign(&mut self, replica: usize) {
        self.foreign.servers.iter_mut().for_each(|server| server.loaded.push(None));
        self.load_foreign(replica);
    }

    /// A replica restarts: it has no content of deleted objects.
    pub(super) fn restart_foreign(&mut self, replica: usize) {
        self.foreign.servers.iter_mut().for_each(|server| server.loaded[replica] = None);
        self.load_foreign(replica);
    }

    /// Tells the owners of a new CA, which they add later.
    pub(super) fn tell_owners(&mut self) {
        let objects: Vec<_> = self.foreign.objects.keys().copied().filter(|object| *object != KEPT).collect();
        for object in objects {
            // The owner of a copied ConfigMap does not always hear of it.
            if object == SOURCE && self.chance(2) {
                continue;
            }
            self.within(OWNER, move |cluster| cluster.extend(object));
        }
    }

    /// Adds the newest CA to an object, as `trustspan extend-trust` does.
    fn extend(&mut self, object: &'static str) {
        let source = self.facts(self.client_source()).filter(|facts| facts.denials.is_empty());
        let newest = source.and_then(|facts| facts.chain.first()).cloned();
        let Some((newest, held)) = newest.zip(self.foreign.objects.get(object)) else { return };
        if !held.facts.anchors.contains(&newest) {
            let anchors = [vec![newest], held.facts.anchors.clone()].concat();
            self.write_foreign(object, anchors);
        }
    }

    /// Deletes the only object of a server, and writes it again later with the newest CA.
    pub(super) fn delete_foreign(&mut self, length: SignedDuration) {
        let single =
            |server: &&Server| server.objects.iter().filter(|o| self.foreign.objects.contains_key(*o)).count() == 1;
        let server = self.foreign.servers.iter().filter(|server| server.objects != [KEPT]).find(single);
        let object = server.and_then(|server| server.objects.iter().find(|o| self.foreign.objects.contains_key(*o)));
        let Some(object) = object.copied() else { return };
        let Some(held) = self.foreign.objects.remove(object) else { return };
        self.note(format!("{object} is deleted"));
        self.poke();
        self.within(length, move |cluster| {
            cluster.foreign.objects.insert(object, held);
            cluster.extend(object);
            cluster.push_foreign();
        });
    }

    pub(super) fn read_foreign(&self) -> Read {
        let reader = |server: &Server| {
            let trust = ReaderTrust::FirstOf(server.objects.iter().map(|object| name(object)).collect());
            TlsReader::of(format!("Gateway {}", server.objects[0]), "caCertCredentialName", trust)
        };
        let state = |object: &&'static str| match self.foreign.objects.get(object) {
            // The agent may always read the objects that the spec names.
            _ if self.foreign.hidden && *object != KEPT => SourceState::Unreadable("forbidden".to_owned()),
            None => SourceState::Absent,
            Some(content) => SourceState::Holds(content.facts.anchors.clone()),
        };
        let objects = self.foreign.servers.iter().flat_map(|server| server.objects);
        let pinning = TlsReader {
            pins: self.pins.clone(),
            ..TlsReader::of("Gateway mesh/pinned".to_owned(), "verifyCertificateHash", ReaderTrust::NotVerified)
        };
        Read {
            readers: self.foreign.servers.iter().map(reader).chain([pinning]).collect(),
            sources: objects.map(|object| (name(object), state(object))).collect(),
            kept: self
                .foreign
                .objects
                .get(SOURCE)
                .cloned()
                .zip(self.foreign.objects.get(KEPT).cloned())
                .map(Into::into),
        }
    }

    /// The CAs by which each server of a replica verifies clients.
    pub(super) fn foreign_trust(&self, replica: usize) -> Vec<(&'static str, Content)> {
        let loaded = |server: &Server| Some((server.objects[0], server.loaded[replica].clone()?));
        self.foreign.servers.iter().filter_map(loaded).collect()
    }
}
