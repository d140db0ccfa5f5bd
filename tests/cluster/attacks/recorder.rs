//! The versions of what decides about a namespace's trust, for a failure: the writes alone do not say what webhooks knew when they allowed one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::objects::{Kind, Object};
use super::oracle::{squeezed, texts};

/// Versions that are kept.
const KEPT: usize = 2000;
/// The beginnings of the names of objects that decide about trust.
const DECIDES: [&str; 4] = ["managed", "client", "root", "trust"];

struct Version {
    at: Instant,
    object: Object,
    summary: String,
}

type Versions = Arc<Mutex<VecDeque<Version>>>;

/// Watches the Secrets, ConfigMaps and GatewaySecrets of a namespace.
pub(super) struct Recorder {
    versions: Versions,
    cas: Arc<Mutex<BTreeMap<String, String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    pub(super) fn start(runtime: &Runtime, admin: &Client, ns: &str) -> Self {
        let versions = Versions::default();
        let cas = Arc::<Mutex<BTreeMap<String, String>>>::default();
        let watch = |kind: Kind| {
            let (api, ns, versions, cas) = (kind.api(admin, ns), ns.to_owned(), versions.clone(), cas.clone());
            runtime.spawn(async move {
                let mut events = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
                while let Some(event) = events.next().await {
                    let (stored, is_gone) = match event {
                        Ok(watcher::Event::Apply(stored) | watcher::Event::InitApply(stored)) => (stored, false),
                        Ok(watcher::Event::Delete(stored)) => (stored, true),
                        _ => continue,
                    };
                    let object = Object::new(kind, &ns, &stored.name_any());
                    let stored = serde_json::to_value(stored).unwrap_or_default();
                    let found = summary(&object, &stored, &locked(&cas));
                    let summary = if is_gone { "gone".to_owned() } else { found };
                    let mut versions = locked(&versions);
                    versions.push_back(Version { at: Instant::now(), object, summary });
                    if versions.len() > KEPT {
                        versions.pop_front();
                    }
                }
            })
        };
        let tasks = [Kind::Secret, Kind::ConfigMap, Kind::GatewaySecret].map(watch).into();
        Self { versions, cas, tasks }
    }

    /// Gives CAs a name.
    pub(super) fn name_cas<'a>(&self, names: impl Iterator<Item = (&'a str, &'a str)>) {
        *locked(&self.cas) = names.map(|(name, pem)| (name.to_owned(), squeezed(pem))).collect();
    }

    /// The last versions of what decides about trust, each with the time since it was seen.
    pub(super) fn print(&self, most: usize) -> String {
        let now = Instant::now();
        let is_near = |version: &&Version| {
            let other = &version.object;
            other.kind == Kind::GatewaySecret || DECIDES.iter().any(|name| other.name.starts_with(name))
        };
        let versions = locked(&self.versions);
        let near: Vec<_> = versions.iter().filter(is_near).collect();
        let last = &near[near.len().saturating_sub(most)..];
        last.iter()
            .map(|Version { at, object, summary }| {
                format!("  {} ms before: {object}: {summary}\n", now.duration_since(*at).as_millis())
            })
            .collect()
    }
}

/// What a version says about trust.
fn summary(object: &Object, stored: &Value, cas: &BTreeMap<String, String>) -> String {
    let metadata = &stored["metadata"];
    if object.kind == Kind::GatewaySecret {
        let names = |field: &str, name: &str| {
            let all = stored["status"][field].as_array().into_iter().flatten();
            all.filter_map(|one| one[name].as_str()).collect::<Vec<_>>().join(", ")
        };
        return format!(
            "bundle {}; leaves {}; phase {}; mode {}; distrusted {}; deleted {}",
            names("bundle", "subject"),
            names("leaves", "name"),
            stored["status"]["phase"],
            stored["spec"]["mode"],
            stored["spec"]["distrustedCAs"],
            metadata["deletionTimestamp"]
        );
    }
    let texts = texts(object, stored);
    let found = cas.iter().filter(|(_, ca)| texts.contains(*ca)).map(|(name, _)| name.as_str());
    let found: Vec<_> = found.collect();
    let data = ["data", "binaryData"].map(|field| stored[field].as_object()).into_iter().flatten().flatten();
    let keys: Vec<_> = data.map(|(key, _)| key.as_str()).collect();
    let last = metadata["managedFields"].as_array().into_iter().flatten().max_by_key(|entry| entry["time"].as_str());
    let last = last.and_then(|entry| entry["manager"].as_str()).unwrap_or_default();
    format!(
        "{} has {}, with CAs of {}, by {last}{}",
        stored["type"].as_str().unwrap_or_default(),
        keys.join(", "),
        found.join(", "),
        if metadata["deletionTimestamp"].is_null() { "" } else { ", in deletion" }
    )
}
