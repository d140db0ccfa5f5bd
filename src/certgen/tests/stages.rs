use super::*;

const CREATE: Options = Options { intent: Intent::Create, single_write: false };
const ROTATE: Options = Options { intent: Intent::Rotate, single_write: false };
const AT_ONCE: Options = Options { intent: Intent::Rotate, single_write: true };

fn writes(cluster: &mut Cluster, mut options: Options) -> Vec<String> {
    let mut writes = Vec::new();
    loop {
        match cluster.step(options).unwrap() {
            Step::Write(what) => writes.push(what),
            Step::WaitUntil(until) => {
                writes.push(format!("wait {}", until.duration_since(cluster.now).as_secs()));
                cluster.now = until;
            }
            Step::WaitForRollout => cluster.roll_out(),
            Step::Done(_) => return writes,
        }
        options.intent = if options.intent == Intent::Rotate { Intent::Resume } else { options.intent };
    }
}

fn blocked(cluster: &mut Cluster, options: Options) -> String {
    cluster.run(options, 100).expect_err("blocked").0
}

#[test]
fn an_installation_creates_everything_once() {
    let mut cluster = Cluster::new();
    assert_eq!(
        writes(&mut cluster, CREATE),
        [
            "hmac",
            "begin",
            "create Secret server",
            "create Secret client",
            "create Secret limiter",
            "delete Secret test-certgen-pending"
        ]
    );
    assert_eq!(cluster.bundle("client"), ["CN=ca 1"]);
    let done = cluster.step(CREATE).unwrap();
    assert_eq!(done, Step::Done("nothing to do: 4 Secrets exist".to_owned()));
    assert_eq!(cluster.secret("server")["metadata"]["namespace"], "system");
}

#[test]
fn trust_comes_before_certificates() {
    let mut cluster = Cluster::installed();
    assert_eq!(
        writes(&mut cluster, ROTATE),
        [
            "begin",
            "write the bundle of Secret server",
            "write the bundle of Secret client",
            "write the bundle of Secret limiter",
            "write the caBundle of MutatingWebhookConfiguration injector",
            "record that the new CA is trusted everywhere",
            "wait 180",
            "restart deployment/limiter",
            "write the certificate of Secret server",
            "write the certificate of Secret client",
            "write the certificate of Secret limiter",
            "record that all certificates are of the new CA",
            "restart deployment/limiter",
            "wait 180",
            "delete Secret test-certgen-pending",
        ]
    );
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
}

#[test]
fn the_old_ca_is_dropped_at_the_next_rotation() {
    let mut cluster = Cluster::installed();
    let hmac = cluster.secret("hmac").clone();
    for bundle in [["CN=ca 2", "CN=ca 1"], ["CN=ca 3", "CN=ca 2"], ["CN=ca 4", "CN=ca 3"]] {
        assert_eq!(cluster.complete(ROTATE), "the rotation is complete");
        cluster.assert_rotated(&bundle);
    }
    assert_eq!(*cluster.secret("hmac"), hmac);
    cluster.profile.max_previous_cas = 2;
    cluster.complete(ROTATE);
    cluster.assert_rotated(&["CN=ca 5", "CN=ca 4", "CN=ca 3"]);
}

#[test]
fn a_workload_restarts_once_for_each_content() {
    let mut cluster = Cluster::installed();
    assert_eq!((cluster.restarts, cluster.loaded_hash("limiter")), (0, Value::Null), "none for an installation");
    cluster.profile.restart.loads_certificate_once.clear();
    cluster.complete(ROTATE);
    assert_eq!(cluster.restarts, 1);
    let first = cluster.loaded_hash("limiter");
    cluster.complete(CREATE);
    assert_eq!((cluster.restarts, cluster.loaded_hash("limiter")), (1, first.clone()));
    cluster.complete(AT_ONCE);
    assert_eq!(cluster.restarts, 2);
    assert_ne!(cluster.loaded_hash("limiter"), first);
}

/// A run is killed after each number of writes, and continued by another run, also with other flags.
#[test]
fn a_rotation_is_resumed_where_it_was_interrupted() {
    for (first, then) in [(ROTATE, ROTATE), (AT_ONCE, AT_ONCE), (AT_ONCE, ROTATE), (ROTATE, AT_ONCE)] {
        let start = Cluster::installed();
        let mut whole = start.clone();
        whole.complete(first);
        // The last write deletes the pending Secret, so a run after it would begin another rotation.
        for interrupted in 1..whole.writes - start.writes {
            let mut cluster = start.clone();
            assert_eq!(cluster.run(first, interrupted).unwrap(), None);
            cluster.pass(7);
            cluster.complete(then);
            assert_eq!(cluster.cas, 2, "after {interrupted} writes: one rotation, one CA");
            cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
            assert!(cluster.restarts <= 2, "after {interrupted} writes: {} restarts", cluster.restarts);
        }
    }
}

#[test]
fn an_installation_is_resumed_where_it_was_interrupted() {
    for interrupted in 0..6 {
        for options in [CREATE, ROTATE] {
            let mut cluster = Cluster::new();
            cluster.run(CREATE, interrupted).unwrap();
            cluster.complete(options);
            assert_eq!(cluster.cas, 1, "after {interrupted} writes");
            assert!(
                SECRETS.iter().all(|name| cluster.bundle(name) == ["CN=ca 1"] && cluster.issuer(name) == "CN=ca 1")
            );
        }
    }
}

#[test]
fn a_run_without_overwrite_leaves_a_rotation_alone() {
    let mut cluster = Cluster::installed();
    cluster.run(ROTATE, 3).unwrap();
    let writes = cluster.writes;
    assert!(cluster.complete(CREATE).contains("run with --overwrite to resume it"));
    assert_eq!(cluster.writes, writes);
}

#[test]
fn a_missing_secret_is_made_by_a_rotation_only() {
    let mut cluster = Cluster::installed();
    for name in ["client", "hmac"] {
        cluster.objects.0.remove(&ObjectRef::secret(name));
    }
    let why = blocked(&mut cluster, CREATE);
    assert!(why.starts_with("Secret client is missing") && why.contains("--overwrite"), "{why}");
    assert!(cluster.objects.get(ObjectKind::Secret, "hmac").is_some(), "an HMAC Secret is of no CA");
    cluster.complete(ROTATE);
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
}

#[test]
fn a_stage_that_somebody_undoes_is_repeated() {
    let mut cluster = Cluster::installed();
    let before = cluster.secret("client").clone();
    let whole = writes(&mut cluster.clone(), ROTATE);
    let certificates = whole.iter().position(|what| what.starts_with("write the certificate")).unwrap();
    // Waits make no writes.
    cluster.run(ROTATE, certificates - 1).unwrap();
    cluster.secret("client")["data"] = before["data"].clone();
    let rest = writes(&mut cluster, ROTATE);
    assert_eq!(
        rest[..4],
        [
            "somebody else has changed the Secrets: repeat the stage",
            "write the bundle of Secret client",
            "record that the new CA is trusted everywhere",
            "wait 180",
        ]
    );
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
}

#[test]
fn a_rotation_that_was_given_up_does_not_cost_the_ca_in_use() {
    let mut cluster = Cluster::installed();
    cluster.run(ROTATE, 6).unwrap();
    cluster.objects.0.remove(&ObjectRef::secret(PENDING));
    assert_eq!(
        (cluster.bundle("client"), cluster.issuer("client")),
        (vec!["CN=ca 2".into(), "CN=ca 1".into()], "CN=ca 1".into())
    );
    cluster.complete(ROTATE);
    cluster.assert_rotated(&["CN=ca 3", "CN=ca 1"]);
}

#[test]
fn certificates_of_two_cas_are_not_rotated_with_one_kept() {
    let mut cluster = Cluster::installed();
    let mut other = Cluster::new();
    other.cas = 6;
    other.complete(CREATE);
    *cluster.secret("client") = other.secret("client").clone();
    let why = blocked(&mut cluster, ROTATE);
    assert!(why.contains("Secret client") && why.contains("maxPreviousCAs keeps 1 old CA"), "{why}");
    cluster.profile.max_previous_cas = 2;
    cluster.complete(ROTATE);
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1", "CN=ca 7"]);
}

#[test]
fn a_rollout_that_cannot_progress_blocks_before_anything_is_written() {
    let start = Cluster::installed();
    let mut cluster = start.clone();
    cluster.deployment("limiter")["spec"]["paused"] = json!(true);
    assert!(
        blocked(&mut cluster, ROTATE)
            .contains("deployment/limiter is not restarted by a change of its pod template: paused")
    );
    assert_eq!(cluster.writes, start.writes);

    let mut cluster = start.clone();
    let failed = json!([{ "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded" }]);
    cluster.deployment("limiter")["status"]["conditions"] = failed.clone();
    assert!(blocked(&mut cluster, ROTATE).contains("the rollout of deployment/limiter does not progress"));
    assert_eq!(cluster.writes, start.writes);

    // In the middle of a rotation the certificates do not change.
    let mut cluster = start.clone();
    cluster.run(ROTATE, 6).unwrap();
    cluster.deployment("limiter")["spec"]["paused"] = json!(true);
    assert!(blocked(&mut cluster, ROTATE).contains("paused"));
    assert_eq!(cluster.issuer("server"), "CN=ca 1");
    cluster.deployment("limiter")["spec"]["paused"] = json!(false);
    cluster.complete(ROTATE);
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
}

#[test]
fn certificates_wait_until_the_rollout_is_complete() {
    let mut cluster = Cluster::installed();
    cluster.run(ROTATE, 7).unwrap();
    assert_eq!(cluster.restarts, 1);
    for _ in 0..3 {
        cluster.pass(1000);
        assert_eq!(cluster.step(ROTATE).unwrap(), Step::WaitForRollout);
    }
    assert_eq!(cluster.issuer("server"), "CN=ca 1");
}

#[test]
fn secrets_that_cannot_be_rotated_are_named() {
    let start = Cluster::installed();
    let changed = |name: &str, field: &str, value: Value, options| {
        let mut cluster = start.clone();
        cluster.secret(name)[field] = value;
        blocked(&mut cluster, options)
    };
    let why = changed("client", "type", json!("Opaque"), CREATE);
    assert!(why.contains("Secret client has type Opaque, expected kubernetes.io/tls"), "{why}");
    let why = changed("client", "immutable", json!(true), ROTATE);
    assert!(why.contains("Secret client is immutable"), "{why}");
    let why = changed("client", "data", json!({ "ca.crt": STANDARD.encode("prose") }), ROTATE);
    assert!(why.contains("Secret client has no readable CA under ca.crt") && why.contains("--single-write"), "{why}");
    let why = changed("hmac", "data", json!({}), ROTATE);
    assert!(why.contains("Secret hmac has no key"), "{why}");

    let mut cluster = start.clone();
    let foreign = json!({ "metadata": { "name": PENDING }, "data": {} });
    cluster.objects.0.insert(ObjectRef::secret(PENDING), foreign);
    assert!(blocked(&mut cluster, ROTATE).contains("was not written by certgen"));
}

#[test]
fn a_wrong_clock_does_not_shorten_or_stop_a_wait() {
    let mut cluster = Cluster::installed();
    cluster.run(ROTATE, 6).unwrap();
    let late = (cluster.now + SignedDuration::from_hours(48)).to_string();
    cluster.secret(PENDING)["metadata"]["annotations"]["trustspan.dev/certgen-trust-written-at"] = json!(late);
    assert_eq!(cluster.step(ROTATE).unwrap(), Step::Write("record that the new CA is trusted everywhere".to_owned()));
    assert_eq!(cluster.step(ROTATE).unwrap(), Step::WaitUntil(cluster.now + SignedDuration::from_secs(180)));
}

#[test]
fn a_certificate_that_the_profile_got_meanwhile_is_made_by_the_next_rotation() {
    let mut cluster = Cluster::installed();
    cluster.run(ROTATE, 4).unwrap();
    let more = CertificateProfile { secret_name: "more".to_owned(), ..cluster.profile.certificates[0].clone() };
    cluster.profile.certificates.push(more);
    assert!(blocked(&mut cluster, ROTATE).starts_with("Secret more is missing"));
    cluster.complete(ROTATE);
    assert_eq!(cluster.issuer("more"), "CN=ca 3");
}

/// Two runs at the same time: one has read everything, and writes its pending Secret after the other has ended.
#[test]
fn a_pending_secret_that_came_too_late_is_not_used() {
    // The first write of an installation creates the HMAC Secret, the second the pending Secret.
    for (start, options, begin) in [(Cluster::new(), CREATE, 2), (Cluster::installed(), ROTATE, 1)] {
        let mut late = start.clone();
        late.cas = 6;
        late.run(options, begin).unwrap();
        let mut cluster = start;
        cluster.complete(options);
        // After another rotation, the late run would not keep the CA in use.
        cluster.complete(options);
        let (bundle, issuer) = (cluster.bundle("client"), cluster.issuer("client"));
        cluster.objects.0.insert(ObjectRef::secret(PENDING), late.secret(PENDING).clone());
        cluster.complete(options);
        assert!(cluster.objects.get(ObjectKind::Secret, PENDING).is_none());
        assert_eq!((cluster.bundle("client"), cluster.issuer("client")), (bundle, issuer));
    }
}

#[test]
fn a_certificate_that_somebody_else_wrote_is_not_cut_off() {
    let mut cluster = Cluster::installed();
    let mut other = Cluster::new();
    other.cas = 6;
    other.complete(CREATE);
    cluster.run(ROTATE, 6).unwrap();
    *cluster.secret("client") = other.secret("client").clone();
    let why = blocked(&mut cluster, ROTATE);
    assert!(why.contains("somebody else wrote Secret client"), "{why}");
    assert!(why.contains("delete Secret test-certgen-pending"), "{why}");
    cluster.complete(AT_ONCE);
    cluster.assert_rotated(&["CN=ca 2", "CN=ca 1"]);
}

#[test]
fn a_restart_that_leaves_a_gap_says_so() {
    let probed = json!({ "name": "a", "readinessProbe": {} });
    let spec = |strategy: Value, containers: Value| json!({ "replicas": 1, "strategy": strategy, "template": { "spec": { "containers": containers } } });
    let unavailable = |most: Value| json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": most } });
    for (spec, gap) in [
        (
            spec(json!({ "type": "Recreate" }), json!([probed])),
            " (its service has a gap: strategy Recreate stops all pods first)",
        ),
        (
            spec(unavailable(json!(1)), json!([probed])),
            " (its service has a gap: maxUnavailable lets all pods go at once)",
        ),
        (
            spec(unavailable(json!("100%")), json!([probed])),
            " (its service has a gap: maxUnavailable lets all pods go at once)",
        ),
        (spec(unavailable(json!("25%")), json!([probed])), ""),
        (
            spec(unavailable(json!("25%")), json!([probed, { "name": "b" }])),
            " (its service has a gap: without a readiness probe new pods count as ready at once)",
        ),
    ] {
        let mut cluster = Cluster::installed();
        cluster.deployment("limiter")["spec"] = spec;
        let expected = format!("restart deployment/limiter{gap}");
        assert!(writes(&mut cluster, ROTATE).contains(&expected), "{expected}");
    }
}
