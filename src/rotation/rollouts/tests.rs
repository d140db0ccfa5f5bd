#![allow(clippy::unwrap_used)]

use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::api::KeyHash;
use crate::api::names::ROTATION_HASH;
use crate::registry::tests::entry;
use crate::rotation::notices;

/// When the content last changed.
const CHANGED: i64 = 1_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn later() -> Timestamp {
    at(CHANGED) + SignedDuration::from_mins(1)
}

/// GatewaySecret `gw` with source Secret `root`, in namespace `mesh`. Workloads are restarted.
fn paced() -> Entry {
    let mut entry = entry("mesh", "root", "gw");
    entry.policy.workload_restarts.mode = RestartMode::Enabled;
    let hash = |revision: i64| KeyHash { sha256: revision.to_string(), revision: u64::try_from(revision).unwrap() };
    entry.status.hashes = [("ca.crt".to_owned(), hash(CHANGED)), ("tls.crt".to_owned(), hash(1))].into();
    entry
}

/// A Deployment of one pod that mounts a Secret, with a complete rollout.
fn deployment(name: &str, secret: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "mesh", "generation": 2, "resourceVersion": "7"},
        "spec": {"replicas": 1, "template": {"metadata": {}, "spec": {
            "containers": [{"name": "app", "volumeMounts": [{"name": "certs"}]}],
            "volumes": [{"name": "certs", "secret": {"secretName": secret}}],
        }}},
        "status": {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1},
    })
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

/// The object after the mutating webhook has processed it.
fn rewritten(object: &Value, entry: &Entry) -> Value {
    let json = Json::from(object);
    let write = Write { kind: Kind::of(&json), namespace: "mesh", object: &json, old: None, by_agent: false };
    let mut rewritten = object.clone();
    json_patch::patch(&mut rewritten, &rewrite::rewrite(&write, &Registry::new([entry.clone()])).patch.parse())
        .unwrap();
    rewritten
}

fn read(object: &Value) -> Option<Workload> {
    Workload::read(object, "mesh", &Registry::new([paced()]))
}

fn is_behind(object: &Value) -> bool {
    read(object).is_some_and(|workload| workload.is_behind)
}

fn unfinished(object: &Value) -> Option<String> {
    read(object)?.unfinished
}

/// The result for `entry` and these workloads: the label of the one that is restarted, or why none is.
fn done(entry: &Entry, objects: &[Value], now: Timestamp) -> Result<String, Doing> {
    let registry = Registry::new([entry.clone()]);
    let workloads: Vec<_> = objects.iter().filter_map(|object| Workload::read(object, "mesh", &registry)).collect();
    next(entry, &workloads, &registry, now).map(Workload::label)
}

fn reported(entry: &Entry, objects: &[Value], doing: Doing) -> GatewaySecretStatus {
    let registry = Registry::new([entry.clone()]);
    let workloads: Vec<_> = objects.iter().filter_map(|object| Workload::read(object, "mesh", &registry)).collect();
    let mut status = entry.status.clone();
    tell(entry, &WorkloadSurvey::of(entry, &workloads, doing), &mut status, later());
    status
}

#[test]
fn workloads_missed_by_the_webhook_or_with_earlier_content_are_behind() {
    let current = rewritten(&deployment("app", "root"), &paced());
    assert!(is_behind(&deployment("app", "root")), "it names the root");
    assert!(is_behind(&deployment("app", "gw")), "it has no hash");
    let mut older = paced();
    older.status.hashes.get_mut("ca.crt").unwrap().revision -= 10;
    older.status.hashes.get_mut("ca.crt").unwrap().sha256 = "older".to_owned();
    assert!(is_behind(&rewritten(&deployment("app", "root"), &older)));
    // A hash over other keys cannot be compared.
    let of_others = format!("9999-aaaaaaaa-{}", "a".repeat(64));
    assert!(is_behind(&with(current, "/spec/template/metadata/annotations", json!({ROTATION_HASH: of_others}))));
}

#[test]
fn workloads_that_the_webhook_would_not_change_are_not_behind() {
    let current = rewritten(&deployment("app", "root"), &paced());
    assert_eq!(read(&current), None);
    assert_eq!(read(&deployment("app", "stranger")), None);
    let missed = deployment("app", "root");
    assert_eq!(read(&with(missed.clone(), "/metadata/annotations", json!({REWRITE: REWRITE_DISABLED}))), None);
    assert_eq!(read(&with(missed.clone(), "/metadata/deletionTimestamp", json!("1970-01-01T00:00:00Z"))), None);
    // A renewed leaf does not matter to a workload that loads only the CA.
    let mounts = "/spec/template/spec/containers/0/volumeMounts";
    let ca_only = with(missed.clone(), mounts, json!([{"name": "certs", "subPath": "ca.crt"}]));
    let mut before = paced();
    before.status.hashes.get_mut("tls.crt").unwrap().sha256 = "older".to_owned();
    assert!(!is_behind(&rewritten(&ca_only, &before)));
    // The registry of this process is outdated, not the workload.
    let mut newer = paced();
    newer.status.hashes.get_mut("ca.crt").unwrap().revision += 10;
    assert!(!is_behind(&rewritten(&missed, &newer)));
    let mut unready = paced();
    unready.status.conditions.clear();
    assert_eq!(Workload::read(&missed, "mesh", &Registry::new([unready])), None);
    assert_eq!(Workload::read(&missed, "elsewhere", &Registry::new([paced()])), None);
}

#[test]
fn a_rollout_is_complete_when_all_pods_are_new_and_available() {
    let current = |kind: &str, spec: Value, status: Value| {
        let object = with(deployment("app", "root"), "/kind", json!(kind));
        let mut object = rewritten(&object, &paced());
        object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        with(object, "/status", status)
    };
    let seen = 2;
    for (kind, spec, status) in [
        ("Deployment", json!({}), json!({"replicas": 1, "updatedReplicas": 1, "availableReplicas": 1})),
        ("Deployment", json!({"replicas": 0}), json!({})),
        ("StatefulSet", json!({"replicas": 2}), json!({"updatedReplicas": 2, "availableReplicas": 2})),
        (
            "StatefulSet",
            json!({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}}),
            json!({"updatedReplicas": 1, "availableReplicas": 2}),
        ),
        ("StatefulSet", json!({"updateStrategy": {"type": "OnDelete"}}), json!({"availableReplicas": 1})),
        (
            "DaemonSet",
            json!({}),
            json!({"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}),
        ),
        ("DaemonSet", json!({}), json!({})),
    ] {
        let complete = current(kind, spec.clone(), with(status.clone(), "/observedGeneration", json!(seen)));
        assert_eq!(read(&complete), None, "{kind} {spec} {status}");
        let unseen = current(kind, spec, with(status, "/observedGeneration", json!(seen - 1)));
        assert!(unfinished(&unseen).is_some_and(|why| why.contains("not observed the last change yet")));
    }
    for (kind, status) in [
        ("Deployment", json!({"replicas": 1, "availableReplicas": 1})),
        ("Deployment", json!({"replicas": 1, "updatedReplicas": 1})),
        ("Deployment", json!({"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1})),
        ("StatefulSet", json!({"updatedReplicas": 1})),
        ("StatefulSet", json!({"availableReplicas": 1})),
        ("DaemonSet", json!({"desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2})),
        ("DaemonSet", json!({"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 1})),
    ] {
        let status = with(status, "/observedGeneration", json!(seen));
        assert!(unfinished(&current(kind, json!({}), status.clone())).is_some(), "{kind} {status}");
    }
}

#[test]
fn restarts_one_workload_at_a_time() {
    let missed = [deployment("a", "root"), deployment("b", "root")];
    assert_eq!(done(&paced(), &missed, later()), Ok("deployment/a".to_owned()));
    // The first workload is restarted, and its pods become ready.
    let rolling = with(rewritten(&missed[0], &paced()), "/status/availableReplicas", json!(0));
    let Err(Doing::Rolling(why)) = done(&paced(), &[rolling, missed[1].clone()], later()) else { panic!("held") };
    assert!(why.contains("deployment/a is complete (1 of 1 pod updated, 0 available)"), "{why}");
    let complete = rewritten(&missed[0], &paced());
    assert_eq!(done(&paced(), &[complete, missed[1].clone()], later()), Ok("deployment/b".to_owned()));
    // Rollouts of unrelated workloads do not block a restart.
    let elsewhere = with(deployment("c", "stranger"), "/status", json!({}));
    assert_eq!(done(&paced(), &[elsewhere, missed[0].clone()], later()), Ok("deployment/a".to_owned()));
}

#[test]
fn restarts_nothing_while_disabled_paused_outside_windows_or_too_early() {
    let missed = [deployment("a", "root")];
    let with = |change: &dyn Fn(&mut Entry)| {
        let mut entry = paced();
        change(&mut entry);
        entry
    };
    let unasked = with(&|entry| entry.policy.workload_restarts.mode = RestartMode::Disabled);
    assert_eq!(done(&unasked, &missed, later()), Err(Doing::Reporting));
    let paused = with(&|entry| entry.spec.paused = true);
    assert_eq!(
        done(&paused, &missed, later()),
        Err(Doing::Held("spec.paused is true. To continue, set it to false".to_owned()))
    );
    let window = json!([{"from": "22:00", "to": "23:00"}]);
    let closed = with(&|entry| entry.policy.change_windows = serde_json::from_value(window.clone()).unwrap());
    assert!(
        matches!(done(&closed, &missed, later()), Err(Doing::Held(why)) if why.contains("No change window of the RotationPolicy"))
    );
    assert!(done(&closed, &missed, at(22 * 60 * 60)).is_ok());
    // A webhook replica that does not know the content yet would cause a second rollout.
    assert!(matches!(done(&paced(), &missed, at(CHANGED + 9)), Err(Doing::Rolling(_))));
    assert!(done(&paced(), &missed, at(CHANGED + 11)).is_ok());
}

#[test]
fn restarts_no_workload_with_manual_restarts_or_of_another_gateway_secret() {
    let missed = deployment("a", "root");
    let on_delete =
        with(with(missed.clone(), "/kind", json!("StatefulSet")), "/spec/updateStrategy", json!({"type": "OnDelete"}));
    let partition = with(missed.clone(), "/spec/updateStrategy", json!({"rollingUpdate": {"partition": 1}}));
    let paused = with(missed.clone(), "/spec/paused", json!(true));
    for by_hand in [on_delete, partition, paused] {
        assert!(matches!(done(&paced(), std::slice::from_ref(&by_hand), later()), Err(Doing::Held(_))), "{by_hand}");
        // A workload that only a person can restart blocks no other one.
        assert_eq!(done(&paced(), &[by_hand, deployment("z", "root")], later()), Ok("deployment/z".to_owned()));
    }
    let env = json!([{"secretRef": {"name": "root2"}}]);
    let both = with(missed, "/spec/template/spec/containers/0/envFrom", env);
    let rolls = |rollouts| {
        let mut other = entry("mesh", "root2", "gw2");
        other.policy.workload_restarts.mode = rollouts;
        let registry = Registry::new([paced(), other]);
        let workloads: Vec<_> = Workload::read(&both, "mesh", &registry).into_iter().collect();
        next(&paced(), &workloads, &registry, later()).is_ok()
    };
    assert!(rolls(RestartMode::Enabled) && !rolls(RestartMode::Disabled));
}

#[test]
fn the_condition_names_workloads_with_the_fix_and_makes_one_event() {
    let missed: Vec<_> = ["a", "b", "c", "d"].map(|name| deployment(name, "root")).into();
    let behind = reported(&paced(), &missed, Doing::Reporting);
    let condition = behind.condition(WORKLOADS).unwrap();
    assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::False, "Behind"));
    for words in [
        "4 workloads name Secret root",
        "deployment/a, deployment/b, deployment/c, …",
        "kubectl rollout restart -n mesh deployment/a deployment/b deployment/c …; ",
        "workloadRestarts.mode: Enabled",
    ] {
        assert!(condition.message.contains(words), "{words}: {}", condition.message);
    }
    assert_eq!(behind.workloads_behind, Some(4));
    let reasons = |previous: &GatewaySecretStatus, status: &GatewaySecretStatus| -> Vec<_> {
        let previous = Entry { status: previous.clone(), ..paced() };
        notices(&previous, status, &[]).iter().map(|notice| (notice.reason, notice.is_warning)).collect()
    };
    assert_eq!(reasons(&paced().status, &behind), [("WorkloadsBehind", true)]);
    let fewer = reported(&paced(), &missed[1..], Doing::Reporting);
    assert_eq!(reasons(&behind, &fewer), []);
    let none = reported(&paced(), &[], Doing::Reporting);
    assert_eq!(reasons(&fewer, &none), [("WorkloadsCurrent", false)]);
    assert_eq!((none.workloads_behind, none.condition(WORKLOADS).unwrap().status), (Some(0), ConditionStatus::True));
}

#[test]
fn unknown_workloads_are_not_reported_as_current() {
    let unread = WorkloadSurvey::Unread("cannot list".to_owned());
    let mut unready = paced();
    unready.status.conditions.clear();
    let nothing = WorkloadSurvey::of(&unready, &[], Doing::Reporting);
    for (entry, found, reason) in [(paced(), unread, "Unread"), (unready, nothing, "NotReady")] {
        let mut status = GatewaySecretStatus { workloads_behind: Some(3), ..entry.status.clone() };
        tell(&entry, &found, &mut status, later());
        let condition = status.condition(WORKLOADS).unwrap();
        assert_eq!((condition.status, condition.reason.as_str()), (ConditionStatus::Unknown, reason));
        assert_eq!(status.workloads_behind, None);
    }
}
