//! What the workloads of a TrustConsumer have loaded.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::availability;
use super::content::{Content, ContentFault, ReadFailure};
use crate::api::names::LOADED_HASH;
use crate::api::{ContentRollout, LoadedContent, Period, TrustConsumerSpec, TrustConsumerStatus, WorkloadRef};
use crate::json::Json;
use crate::rotation::rollouts::progress;

/// Why there is no workload to restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It does not exist.
    Missing,
    /// It could not be read.
    Unread(ReadFailure),
    /// An older TrustConsumer of this name restarts it.
    Owned(String),
}

/// One TrustConsumer, with the content and its workloads.
#[derive(Clone, Debug)]
pub struct ConsumerState {
    /// The content, if it is valid.
    pub content: Result<Content, ContentFault>,
    /// The hash of the last valid content.
    pub hash: Option<String>,
    /// Since when a workload has not loaded it.
    pub pending_since: Option<Timestamp>,
    /// The workloads, in the order of the spec.
    pub workloads: Vec<WorkloadState>,
    /// The minimum time between two restarts of a workload.
    pub(super) min_interval: Period,
}

/// A workload that a TrustConsumer names.
#[derive(Clone, Debug)]
pub struct WorkloadState {
    /// The workload.
    pub workload: WorkloadRef,
    /// Its state, if it exists.
    pub found: Result<Reader, Absence>,
}

/// A workload that exists.
#[derive(Clone, Debug)]
pub struct Reader {
    /// `metadata.resourceVersion`, as it was read.
    pub resource_version: Option<String>,
    /// What it has loaded. `None` until the content was valid once.
    pub loaded: Option<LoadedContent>,
    /// Whether it has to be restarted.
    pub is_pending: bool,
    /// Why a person has to act, if the update strategy does not restart all pods.
    pub by_hand: Option<&'static str>,
    /// Whether its rollouts are paused.
    pub is_paused: bool,
    /// What is missing until its rollout is complete.
    pub unfinished: Option<String>,
    /// Why a restart leaves no ready pod for a time.
    pub gap: Option<String>,
    /// Why the API server refused its restart.
    pub refused: Option<ReadFailure>,
}

impl ConsumerState {
    /// Compares the content with what the workloads have loaded, by their annotations and by the previous status.
    pub fn observe(
        spec: &TrustConsumerSpec,
        before: &TrustConsumerStatus,
        content: Result<Content, ContentFault>,
        workloads: Vec<Result<Value, Absence>>,
        now: Timestamp,
    ) -> Self {
        let hash = content.as_ref().ok().map(Content::hash);
        let extends =
            content.as_ref().is_ok_and(|content| !before.content.is_empty() && content.extends(&before.content));
        let observation = Observation {
            before,
            hash: hash.as_deref(),
            first_expiry: content.as_ref().ok().and_then(|content| content.first_expiry),
            replaced: before.hash.as_deref().filter(|_| extends),
            now,
        };
        let target = hash.clone().or_else(|| before.hash.clone());
        let is_there = |object: &Value| object["metadata"]["deletionTimestamp"].is_null();
        let workloads = spec.workloads.iter().zip(workloads).map(|(workload, found)| WorkloadState {
            workload: workload.clone(),
            found: found
                .and_then(|object| if is_there(&object) { Ok(object) } else { Err(Absence::Missing) })
                .map(|object| observation.reader(workload, &object, target.as_deref())),
        });
        let workloads: Vec<_> = workloads.collect();
        let has_earlier = |reader: &Reader| {
            reader.is_pending || reader.loaded.as_ref().is_some_and(|loaded| loaded.rollout.is_some())
        };
        let is_pending = readers(&workloads).any(has_earlier);
        Self {
            content,
            hash: target,
            pending_since: is_pending.then(|| before.pending_since.unwrap_or(now)),
            workloads,
            min_interval: spec.min_restart_interval,
        }
    }
}

/// The workloads that exist.
pub(super) fn readers(workloads: &[WorkloadState]) -> impl Iterator<Item = &Reader> {
    workloads.iter().filter_map(|workload| workload.found.as_ref().ok())
}

/// The content with which a workload is compared.
struct Observation<'o> {
    before: &'o TrustConsumerStatus,
    /// The hash of the content, if that is valid.
    hash: Option<&'o str>,
    first_expiry: Option<Timestamp>,
    /// The hash that the same content had before `spec.loads` changed.
    replaced: Option<&'o str>,
    now: Timestamp,
}

impl Observation<'_> {
    fn reader(&self, workload: &WorkloadRef, object: &Value, target: Option<&str>) -> Reader {
        let unfinished = progress::unfinished(object);
        let is_rolling = unfinished.is_some() || progress::outdated_pods(object) > 0;
        let loaded = self.loaded(workload, object, is_rolling);
        Reader {
            resource_version: object["metadata"]["resourceVersion"].as_str().map(str::to_owned),
            is_pending: loaded.as_ref().zip(target).is_some_and(|(loaded, target)| loaded.target() != target),
            loaded,
            by_hand: progress::restarts_by_hand(object),
            is_paused: object["spec"]["paused"] == true,
            unfinished,
            gap: availability::gap(&Json::from(object)),
            refused: None,
        }
    }

    /// What a workload has loaded: the content of its annotation after its rollout has completed. Without an
    /// annotation, the content when this workload was first seen.
    fn loaded(&self, workload: &WorkloadRef, object: &Value, is_rolling: bool) -> Option<LoadedContent> {
        let annotation = object["spec"]["template"]["metadata"]["annotations"][LOADED_HASH].as_str().map(str::to_owned);
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let known = self.before.workloads.iter().find(|known| known.workload == *workload && known.uid == uid);
        let mut loaded = match known {
            Some(known) => known.clone(),
            None => LoadedContent {
                workload: workload.clone(),
                uid: uid.to_owned(),
                hash: annotation.clone().or_else(|| self.hash.map(str::to_owned))?,
                // The rollout of an earlier restart may be in progress.
                annotation: annotation.clone().filter(|_| !is_rolling),
                first_expiry: None,
                restarted_at: None,
                rollout: None,
            },
        };
        if loaded.annotation != annotation {
            if let Some(hash) = &annotation {
                // An agent restarted the workload and did not store the status afterwards. It may have been this
                // process.
                loaded.rollout = Some(ContentRollout { hash: hash.clone(), first_expiry: None });
                loaded.restarted_at = Some(self.now);
            }
            loaded.annotation = annotation;
        }
        if let (Some(replaced), Some(hash)) = (self.replaced, self.hash) {
            let hashes = [&mut loaded.hash].into_iter().chain(loaded.rollout.as_mut().map(|rollout| &mut rollout.hash));
            hashes.filter(|known| *known == replaced).for_each(|known| hash.clone_into(known));
        }
        if let Some(rollout) = loaded.rollout.as_mut().filter(|rollout| Some(rollout.hash.as_str()) == self.hash) {
            rollout.first_expiry = self.first_expiry;
        }
        if let Some(rollout) = loaded.rollout.take_if(|_| !is_rolling) {
            loaded.hash = rollout.hash;
            loaded.first_expiry = rollout.first_expiry;
        }
        if Some(loaded.hash.as_str()) == self.hash {
            loaded.first_expiry = self.first_expiry;
        }
        Some(loaded)
    }
}

/// The oldest TrustConsumer for each workload that several TrustConsumers of a namespace name. Each TrustConsumer is
/// passed with its creation time and name.
pub fn owners<'c>(
    consumers: impl IntoIterator<Item = (Option<Timestamp>, &'c str, &'c TrustConsumerSpec)>,
) -> BTreeMap<&'c WorkloadRef, &'c str> {
    let mut consumers: Vec<_> = consumers.into_iter().collect();
    consumers.sort_unstable_by_key(|(created, name, _)| (*created, *name));
    let mut owners = BTreeMap::new();
    for (_, name, spec) in consumers {
        for workload in &spec.workloads {
            owners.entry(workload).or_insert(name);
        }
    }
    owners
}
