//! One workload, step by step. Random histories are in [`histories`].

mod histories;
mod scene;

use serde_json::json;

use super::*;
use crate::api::{ConditionStatus, TrustConsumerStatus};
use crate::trust::fixtures::{block, ca, ca_between};
use scene::{Scene, hours, minutes};

/// Status and reason of a condition.
fn said(scene: &Scene, type_: &str) -> (ConditionStatus, String) {
    let condition = scene.status().condition(type_).expect("a condition");
    (condition.status, condition.reason.clone())
}

fn message(scene: &Scene, type_: &str) -> String {
    scene.status().condition(type_).expect("a condition").message.clone()
}

#[test]
fn restarts_once_for_each_change_of_content() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.settle();
    assert_eq!(scene.restarts(), 0, "on creation");
    for (count, name) in [(1, "two"), (2, "three"), (3, "four")] {
        scene.set_cas(&[&ca(name).pem()]);
        scene.reconcile();
        assert_eq!(said(&scene, LOADED), (ConditionStatus::False, "Rolling".to_owned()));
        scene.settle();
        assert_eq!(scene.restarts(), count);
        assert_eq!(said(&scene, LOADED), (ConditionStatus::True, "Loaded".to_owned()));
        assert_eq!(scene.status().hash, scene.status().loaded_hash);
        assert!(scene.status().pending_since.is_none());
    }
}

#[test]
fn order_layout_and_unrelated_edits_restart_nothing() {
    let (one, two) = (ca("one").pem(), ca("two").pem());
    let mut scene = Scene::new(&[&one, &two]);
    scene.settle();
    for cas in [[two.as_str(), &one], [&format!("# a comment\n{two}{two}"), &one.replace('\n', "\r\n")]] {
        scene.set_cas(&cas);
        scene.settle();
    }
    scene.secret["data"]["tls.crt"] = json!("dGxz");
    scene.secret["metadata"]["labels"] = json!({"a": "b"});
    scene.deployment["metadata"]["labels"] = json!({"a": "b"});
    scene.settle();
    assert_eq!(scene.restarts(), 0);
}

#[test]
fn other_keys_are_compared_by_their_bytes() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.spec.loads[0].keys.push("config".to_owned());
    scene.secret["data"]["config"] = json!("YQ==");
    scene.settle();
    scene.secret["data"]["config"] = json!("Yg==");
    scene.settle();
    assert_eq!(scene.restarts(), 1);
}

#[test]
fn config_maps_are_loaded_from_data_and_binary_data() {
    let text = ca("one").pem();
    let spec = serde_json::from_value(json!({
        "workloads": [{"kind": "Deployment", "name": "app"}],
        "loads": [{"kind": "ConfigMap", "name": "ca", "caKeys": ["roots.pem"]}],
    }));
    let read =
        |object| Content::read(spec.as_ref().expect("a spec"), &[Ok(Some(object))], scene::start()).map(|one| one.keys);
    let plain = read(json!({"data": {"roots.pem": text}}));
    use base64::{Engine, engine::general_purpose::STANDARD};
    let binary = read(json!({"binaryData": {"roots.pem": STANDARD.encode(&text)}}));
    assert!(plain.is_ok() && plain == binary, "{plain:?} {binary:?}");
}

#[test]
fn content_that_cannot_be_loaded_restarts_nothing_until_it_is_corrected() {
    let one = ca("one");
    let two = ca("two").pem();
    let garbage = block("CERTIFICATE", b"garbage");
    let expired = ca_between("old", 2026, 2029).pem();
    for (text, words) in [
        (String::new(), "no certificate found"),
        (format!("{two}{garbage}"), "not a DER sequence"),
        (format!("\u{feff}{two}"), "byte order mark"),
        (two.replace("CERTIFICATE", "TRUSTED CERTIFICATE"), "TRUSTED CERTIFICATE"),
        (one.leaf("a").pem(), "is a CA that is valid now"),
        (expired, "is a CA that is valid now"),
    ] {
        let mut scene = Scene::new(&[&one.pem()]);
        scene.settle();
        scene.set_cas(&[&text]);
        scene.settle();
        assert_eq!(
            (scene.restarts(), said(&scene, VALID)),
            (0, (ConditionStatus::False, "Invalid".to_owned())),
            "{text}"
        );
        let said = message(&scene, VALID);
        assert!(said.contains("Secret ca, key ca.crt: ") && said.contains(words), "{said}");
        scene.set_cas(&[&two]);
        scene.settle();
        assert_eq!(scene.restarts(), 1);
    }
}

#[test]
fn a_missing_object_or_key_restarts_nothing() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.settle();
    let stored = scene.secret.clone();
    for change in [json!(null), json!({"metadata": {}, "data": {}})] {
        scene.secret = change;
        scene.settle();
        assert_eq!(said(&scene, VALID), (ConditionStatus::False, "Missing".to_owned()));
    }
    scene.secret = stored;
    scene.settle();
    assert_eq!((scene.restarts(), said(&scene, VALID).0), (0, ConditionStatus::True));
}

#[test]
fn a_paused_deployment_is_restarted_once_with_the_newest_content_when_it_is_resumed() {
    let ends = ca_between("one", 2026, 2031);
    let mut scene = Scene::new(&[&ends.pem(), &ca("other").pem()]);
    scene.settle();
    scene.deployment["spec"]["paused"] = json!(true);
    for name in ["two", "three"] {
        scene.set_cas(&[&ca(name).pem()]);
        scene.settle();
    }
    assert_eq!((scene.restarts(), said(&scene, RESTARTABLE)), (0, (ConditionStatus::False, "Paused".to_owned())));
    assert_eq!(said(&scene, LOADED).1, "Paused");
    let said_ = message(&scene, RESTARTABLE);
    for words in ["deployment/app", "expires at 2031-01-01T00:00:00Z", "kubectl rollout resume -n edge deployment/app"]
    {
        assert!(said_.contains(words), "{said_}");
    }
    let state = scene.observe();
    let blocked: Vec<_> = blocked(&state).map(|(workload, end)| (workload.label(), end.to_string())).collect();
    assert_eq!(blocked, [("deployment/app".to_owned(), "2031-01-01T00:00:00Z".to_owned())]);
    let noticed = scene.events.iter().filter(|event| event.reason == "RestartBlocked");
    assert_eq!(noticed.map(|event| event.is_warning).collect::<Vec<_>>(), [true]);
    scene.deployment["spec"]["paused"] = json!(false);
    scene.settle();
    assert_eq!((scene.restarts(), said(&scene, LOADED).0), (1, ConditionStatus::True));
}

#[test]
fn content_that_returns_during_a_pause_restarts_nothing() {
    let (one, two) = (ca("one").pem(), ca("two").pem());
    let mut scene = Scene::new(&[&one]);
    scene.settle();
    scene.deployment["spec"]["paused"] = json!(true);
    for text in [&two, &one] {
        scene.set_cas(&[text]);
        scene.settle();
    }
    scene.deployment["spec"]["paused"] = json!(false);
    scene.settle();
    assert_eq!(scene.restarts(), 0);
}

#[test]
fn several_changes_within_the_interval_make_one_restart() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.spec.min_restart_interval = crate::api::Period::from_secs(300);
    scene.settle();
    scene.set_cas(&[&ca("two").pem()]);
    scene.settle();
    assert_eq!(scene.restarts(), 1, "the first does not wait");
    for name in ["three", "four"] {
        scene.pass(minutes(1));
        scene.set_cas(&[&ca(name).pem()]);
        scene.settle();
    }
    assert_eq!((scene.restarts(), said(&scene, LOADED).1), (1, "Waiting".to_owned()));
    assert_eq!(scene.status().next_restart_not_before, Some(scene.restarted_at + minutes(5)));
    scene.pass(minutes(4));
    scene.settle();
    assert_eq!((scene.restarts(), said(&scene, LOADED).0), (2, ConditionStatus::True));
}

#[test]
fn a_restart_that_was_not_recorded_is_not_repeated() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.settle();
    scene.set_cas(&[&ca("two").pem()]);
    let before = scene.status().clone();
    scene.reconcile();
    // The previous status, as if the process had ended after the restart.
    *scene.status_mut() = before;
    scene.settle();
    assert_eq!(scene.restarts(), 1);
    // The whole status is lost. The annotation shows what was loaded.
    *scene.status_mut() = TrustConsumerStatus::default();
    scene.settle();
    assert_eq!(scene.restarts(), 1);
    *scene.status_mut() = TrustConsumerStatus::default();
    scene.set_cas(&[&ca("three").pem()]);
    scene.settle();
    assert_eq!(scene.restarts(), 2);
}

#[test]
fn a_workload_that_does_not_exist_is_no_trouble_and_a_new_one_has_loaded_what_is_there() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    let deployment = scene.deployment.take();
    scene.settle();
    assert_eq!(said(&scene, LOADED), (ConditionStatus::Unknown, "WorkloadMissing".to_owned()));
    scene.set_cas(&[&ca("two").pem()]);
    scene.deployment = deployment;
    scene.settle();
    assert_eq!((scene.restarts(), said(&scene, LOADED).0), (0, ConditionStatus::True));
    // A Deployment that was deleted and created again with the same name.
    scene.set_cas(&[&ca("three").pem()]);
    scene.deployment["metadata"]["uid"] = json!("2");
    scene.settle();
    assert_eq!(scene.restarts(), 0);
}

#[test]
fn naming_further_keys_restarts_nothing() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.settle();
    scene.set_cas(&[&ca("two").pem()]);
    scene.settle();
    assert_eq!(scene.restarts(), 1);
    scene.secret["data"]["tls.crt"] = json!("YQ==");
    scene.spec.loads[0].keys.push("tls.crt".to_owned());
    scene.settle();
    assert_eq!((scene.restarts(), said(&scene, LOADED).0), (1, ConditionStatus::True));
    scene.secret["data"]["tls.crt"] = json!("Yg==");
    scene.settle();
    assert_eq!(scene.restarts(), 2);
    scene.spec.loads[0].keys.pop();
    scene.settle();
    assert_eq!(scene.restarts(), 2);
    // The content of a key that is still named changes at the same time.
    scene.spec.loads[0].keys.push("tls.crt".to_owned());
    scene.set_cas(&[&ca("three").pem()]);
    scene.settle();
    assert_eq!(scene.restarts(), 3);
}

#[test]
fn pods_that_a_person_deletes_are_counted_as_new() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.spec.workloads[0].kind = crate::api::WorkloadKind::StatefulSet;
    scene.deployment["kind"] = json!("StatefulSet");
    scene.deployment["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    scene.settle();
    scene.set_cas(&[&ca("two").pem()]);
    scene.reconcile();
    scene.deployment["status"]["observedGeneration"] = scene.deployment["metadata"]["generation"].clone();
    scene.reconcile();
    assert_eq!((scene.restarts(), said(&scene, RESTARTABLE)), (1, (ConditionStatus::False, "ByHand".to_owned())));
    assert!(message(&scene, RESTARTABLE).contains("delete its pods"), "{}", message(&scene, RESTARTABLE));
    scene.settle();
    assert_eq!((scene.restarts(), said(&scene, LOADED).0), (1, ConditionStatus::True));
}

#[test]
fn a_missing_permission_is_reported_and_restarts_nothing() {
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.settle();
    let before = scene.status().workloads.clone();
    scene.failure = Some(ReadFailure { reason: "Forbidden", message: "Grant it.".to_owned() });
    scene.set_cas(&[&ca("two").pem()]);
    scene.settle();
    assert_eq!(said(&scene, VALID), (ConditionStatus::Unknown, "Forbidden".to_owned()));
    assert_eq!(said(&scene, RESTARTABLE), (ConditionStatus::Unknown, "Forbidden".to_owned()));
    assert_eq!((scene.restarts(), &scene.status().workloads), (0, &before), "what is recorded stays");
    scene.failure = None;
    scene.settle();
    assert_eq!(scene.restarts(), 1);
}

#[test]
fn the_oldest_trust_consumer_restarts_a_workload_that_several_name() {
    let spec = Scene::new(&[]).spec;
    let created = |second| jiff::Timestamp::from_second(second).ok();
    let owners = owners([(created(2), "a", &spec), (created(1), "b", &spec), (created(2), "c", &spec)]);
    assert_eq!(owners.get(&spec.workloads[0]), Some(&"b"));
}

#[test]
fn strategies_that_let_the_last_pod_go_are_named() {
    let probe = json!({"spec": {"containers": [{"readinessProbe": {}}]}});
    let bare = json!({"spec": {"containers": [{}]}});
    let gap = |kind: &str, spec: serde_json::Value, pods: i64| {
        availability::gap(&crate::json::json!({"kind": kind, "spec": spec, "status": {"desiredNumberScheduled": pods}}))
    };
    let rolling = |surge: &str, unavailable: &str, replicas: i64| {
        json!({
            "replicas": replicas, "template": probe,
            "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        })
    };
    for (kind, spec, pods, words) in [
        ("Deployment", json!({"replicas": 3, "strategy": {"type": "Recreate"}}), 0, "Recreate"),
        ("Deployment", rolling("0%", "100%", 3), 0, "all of its 3 pods"),
        ("Deployment", rolling("0%", "0%", 1), 0, "its one pod stops"),
        ("Deployment", json!({"replicas": 1, "template": bare}), 0, "no readinessProbe"),
        ("StatefulSet", json!({"replicas": 1}), 0, "its one pod stops"),
        ("DaemonSet", json!({}), 1, "its one pod stops"),
        ("DaemonSet", json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}}), 3, "all of its 3 pods"),
    ] {
        let found = gap(kind, spec.clone(), pods);
        assert!(found.as_ref().is_some_and(|found| found.contains(words)), "{kind} {spec}: {found:?}");
    }
    for (kind, spec, pods) in [
        ("Deployment", json!({"template": probe}), 0),
        ("Deployment", rolling("25%", "25%", 1), 0),
        ("Deployment", rolling("0%", "50%", 3), 0),
        ("Deployment", json!({"replicas": 0, "strategy": {"type": "Recreate"}}), 0),
        ("Deployment", json!({"template": bare, "minReadySeconds": 10}), 0),
        ("StatefulSet", json!({"replicas": 2}), 0),
        ("DaemonSet", json!({}), 2),
        ("DaemonSet", json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}), 1),
    ] {
        assert_eq!(gap(kind, spec.clone(), pods), None, "{kind} {spec}");
    }
    let mut scene = Scene::new(&[&ca("one").pem()]);
    scene.deployment["spec"]["strategy"] = json!({"type": "Recreate"});
    scene.settle();
    assert_eq!(said(&scene, AVAILABLE), (ConditionStatus::False, "LastPod".to_owned()));
}

#[test]
fn one_rollout_at_a_time_over_all_namespaces_unless_it_hangs() {
    let cas = [ca("one").pem(), ca("two").pem()];
    let mut worlds = [Scene::new(&[&cas[0]]), Scene::new(&[&cas[0]])];
    worlds.iter_mut().for_each(Scene::settle);
    worlds.iter_mut().for_each(|scene| scene.set_cas(&[&cas[1]]));
    let key = |at: usize| (format!("ns{at}"), "limits".to_owned());
    let consumers = |worlds: &[Scene; 2]| -> Consumers { (0..2).map(|at| (key(at), worlds[at].observe())).collect() };
    let now = worlds[0].now;
    assert_eq!(next(&consumers(&worlds), 1, now), Some((&key(0), 0)));
    worlds[0].reconcile();
    let rolling = consumers(&worlds);
    assert_eq!(next(&rolling, 1, now), None);
    let blocked = blocker(&rolling, (&key(1), 0), 1, now);
    assert_eq!(blocked, Some(RestartBlocker::OtherRollouts("deployment/app in namespace ns0".to_owned())));
    assert_eq!(next(&rolling, 2, now), Some((&key(1), 0)), "two may roll at a time");
    assert_eq!(wake(&rolling, now), Some(now + minutes(10)));
    assert_eq!(
        next(&rolling, 1, now + hours(1)),
        Some((&key(1), 0)),
        "a rollout that hangs delays its own namespace only"
    );
    worlds[0].complete();
    assert_eq!(next(&consumers(&worlds), 1, now), Some((&key(1), 0)));
}

#[test]
fn the_summary_says_what_is_waited_for_and_whether_a_person_has_to_act() {
    let summary = |scene: &Scene| ConsumerSummary::of("shop", "limits", &scene.spec, scene.status());
    let mut scene = Scene::new(&[&ca("one").pem()]);
    let unknown = summary(&scene);
    assert!(unknown.loaded.is_none() && unknown.actions[0].contains("trustspan agent"), "{unknown:?}");

    scene.settle();
    let loaded = summary(&scene);
    assert_eq!(loaded.loaded, Some(ConditionStatus::True));
    assert_eq!((loaded.actions.len(), loaded.waits_for, loaded.reason), (0, None, None));
    assert!(loaded.first_expiry.is_some() && loaded.act_before.is_none());

    scene.set_cas(&[&ca("two").pem()]);
    scene.reconcile();
    let rolling = summary(&scene);
    assert_eq!((rolling.reason.as_deref(), rolling.actions.len()), (Some("Rolling"), 0));
    assert_eq!(rolling.waits_for, Some(message(&scene, LOADED)));
    assert!(rolling.pending_since.is_some());

    scene.settle();
    scene.deployment["spec"]["paused"] = json!(true);
    scene.set_cas(&[&ca("three").pem()]);
    scene.settle();
    let paused = summary(&scene);
    assert_eq!(paused.actions, [message(&scene, RESTARTABLE)]);
    assert_eq!((paused.waits_for, paused.act_before), (None, scene.status().first_expiry));
    assert!(paused.act_before.is_some());

    // What is not restarted until somebody corrects it is named next to that.
    scene.deployment["spec"]["paused"] = json!(false);
    scene.secret["data"]["ca.crt"] = json!("bm9uZQ==");
    scene.reconcile();
    let invalid = summary(&scene);
    assert_eq!(invalid.actions, [message(&scene, VALID)]);
    assert_eq!(invalid.waits_for, Some(message(&scene, LOADED)));
}
