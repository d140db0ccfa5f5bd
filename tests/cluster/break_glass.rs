//! Break-glass on the real API server, which decides whether a user has the right to override rules.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::secrets::with;
use crate::stage::{MANAGED, SOURCE, Stage, on_stage, sound};
use crate::testbed::{Cluster, Kubectl, SOON, wait_for};

cases![
    who_holds_the_right_overrides_with_a_warning,
    who_lacks_the_right_is_refused,
    a_dry_run_breaks_glass_alike,
    an_annotation_is_not_planted,
    a_new_secret_is_not_taken_for_one_being_deleted,
    a_managed_secret_in_use_is_let_go,
];

/// A developer with the right in the stage's namespace, by impersonation.
const ON_CALL: &str = "on-call";
/// Any other developer.
const OTHER: &str = "other";

fn bind(stage: &Stage<'_>) -> Result<()> {
    let binding = ["create", "rolebinding", ON_CALL, "--clusterrole=trustspan-breakglass", "--user", ON_CALL];
    stage.cluster.kubectl(binding).ns(&stage.ns).ok()?;
    wait_for("the right", SOON, || {
        Ok(by(stage, ON_CALL, &["auth", "can-i", "breakglass", "gatewaysecrets"]).run()?.success())
    })?;
    let other = by(stage, OTHER, &["auth", "can-i", "breakglass", "gatewaysecrets"]).run()?;
    ensure!(!other.success(), "edit holds the right: {other:?}");
    Ok(())
}

fn by(stage: &Stage<'_>, user: &str, args: &[&str]) -> Kubectl {
    let impersonated = ["--as", user, "--as-group", "developers", "--as-group", "system:authenticated"];
    stage.cluster.kubectl(args.iter().copied().chain(impersonated)).ns(&stage.ns)
}

fn put(stage: &Stage<'_>, user: &str, secret: &Value, more: &[&str]) -> Kubectl {
    let args: Vec<_> = ["apply", "--server-side", "--force-conflicts", "-f", "-"].iter().chain(more).copied().collect();
    by(stage, user, &args).stdin(secret.to_string())
}

/// An invalid Secret with an annotation that overrides a rule, and the reason.
fn unsound(name: &str, rule: &str) -> Result<Value> {
    let mut secret = with(&sound(name, name == MANAGED)?.1, "ca.crt", "no PEM at all");
    secret["metadata"]["annotations"] = json!({ format!("breakglass.trustspan.dev/{rule}"): "ticket 4711" });
    Ok(secret)
}

fn who_holds_the_right_overrides_with_a_warning(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        bind(stage)?;
        for name in [MANAGED, SOURCE] {
            let output = put(stage, ON_CALL, &unsound(name, "empty")?, &[]).run()?;
            ensure!(output.success(), "{name}: {output:?}");
            ensure!(output.stderr.contains("break-glass (ticket 4711)"), "{name}: saw {output:?}");
            // An annotation for another rule does not override this one.
            let other = with(&unsound(name, "expired")?, "ca.crt", "no PEM either");
            let refused = put(stage, ON_CALL, &other, &[]).fails()?;
            ensure!(refused.contains("empty: data[ca.crt]"), "{name}: saw {refused}");
        }
        // The managed Secret has two writes; the accepted one has the reason as an audit annotation.
        let mut audited = Vec::new();
        wait_for("both writes in the audit log", SOON, || {
            audited = cluster.audit_annotations(&stage.ns)?;
            Ok(audited.len() >= 2)
        })?;
        let overridden = |annotations: &Value| {
            let all = annotations.as_object().into_iter().flatten();
            all.filter(|(key, _)| key.ends_with("/break-glass")).map(|(_, why)| why.clone()).collect::<Vec<_>>()
        };
        ensure!(overridden(&audited[0]) == ["empty: ticket 4711"], "saw {}", audited[0]);
        ensure!(audited.last().is_some_and(|last| overridden(last).is_empty()), "saw {audited:?}");
        let metrics = stage.server.metrics()?;
        ensure!(metrics.contains(r#"trustspan_break_glass_total{rule="empty"} 2"#), "{metrics}");
        Ok(())
    })
}

fn who_lacks_the_right_is_refused(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        bind(stage)?;
        for name in [MANAGED, SOURCE] {
            let refused = put(stage, OTHER, &unsound(name, "empty")?, &[]).fails()?;
            ensure!(
                refused.contains("empty: data[ca.crt]") && refused.contains("break-glass:"),
                "{name}: saw {refused}"
            );
            ensure!(!cluster.exists("secret", &stage.ns, name)?, "{name} is stored");
            // An annotation by a user with the right has no effect for other users.
            let mut secret = sound(name, name == MANAGED)?.1;
            secret["metadata"]["annotations"] = json!({ "breakglass.trustspan.dev/empty": "ticket 4711" });
            put(stage, ON_CALL, &secret, &[]).ok()?;
            let refused = put(stage, OTHER, &with(&secret, "ca.crt", "no PEM at all"), &[]).fails()?;
            ensure!(
                refused.contains("empty: data[ca.crt]") && !refused.contains("break-glass:"),
                "{name}: saw {refused}"
            );
        }
        Ok(())
    })
}

fn a_dry_run_breaks_glass_alike(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        bind(stage)?;
        let secret = unsound(MANAGED, "empty")?;
        let dry = ["--dry-run=server"];
        let allowed = put(stage, ON_CALL, &secret, &dry).run()?;
        ensure!(allowed.success() && allowed.stderr.contains("break-glass (ticket 4711)"), "saw {allowed:?}");
        let (asked, applied) = (put(stage, OTHER, &secret, &dry).fails()?, put(stage, OTHER, &secret, &[]).fails()?);
        ensure!(asked == applied, "dry run: {asked}\napply: {applied}");
        ensure!(!cluster.exists("secret", &stage.ns, MANAGED)?, "a dry run stored the Secret");
        let metrics = stage.server.metrics()?;
        ensure!(metrics.contains(r#"trustspan_break_glass_total{rule="empty"} 0"#), "a dry run counts: {metrics}");
        Ok(())
    })
}

fn an_annotation_is_not_planted(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        bind(stage)?;
        put(stage, OTHER, &sound(MANAGED, true)?.1, &[]).ok()?;
        by(stage, OTHER, &["create", "secret", "generic", "plain", "--from-literal=password=x"]).ok()?;
        for name in [MANAGED, "plain"] {
            let annotate = ["annotate", "secret", name, "breakglass.trustspan.dev/empty=later"];
            let refused = by(stage, OTHER, &annotate).fails()?;
            ensure!(refused.contains("break-glass:"), "{name}: saw {refused}");
            by(stage, ON_CALL, &annotate).ok()?;
            by(stage, OTHER, &["label", "secret", name, "team=checkout"]).ok()?;
            by(stage, OTHER, &["annotate", "secret", name, "breakglass.trustspan.dev/empty-"]).ok()?;
        }
        Ok(())
    })
}

/// Server-side apply can create an object with a deletionTimestamp. Writes to an object that is being deleted are
/// allowed.
fn a_new_secret_is_not_taken_for_one_being_deleted(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        bind(stage)?;
        let dying = |mut secret: Value| {
            secret["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            secret["metadata"]["finalizers"] = json!(["example.com/hold"]);
            secret
        };
        for name in [MANAGED, SOURCE] {
            let refused = put(stage, OTHER, &dying(unsound(name, "empty")?), &[]).fails()?;
            ensure!(
                refused.contains("empty: data[ca.crt]") && refused.contains("break-glass:"),
                "{name}: saw {refused}"
            );
        }
        // Otherwise later writes to the Secret would not be judged.
        let refused = put(stage, OTHER, &dying(sound(MANAGED, true)?.1), &[]).fails()?;
        ensure!(refused.contains("managed-in-use: metadata.deletionTimestamp"), "saw {refused}");
        // An update cannot add a deletionTimestamp to a stored Secret either.
        let (_, secret) = sound(MANAGED, true)?;
        put(stage, OTHER, &secret, &[]).ok()?;
        put(stage, OTHER, &dying(with(&secret, "ca.crt", "no PEM at all")), &[]).fails()?;
        let stored = stage.get("secret", MANAGED)?;
        ensure!(stored["metadata"]["deletionTimestamp"].is_null(), "saw {}", stored["metadata"]);
        Ok(())
    })
}

fn a_managed_secret_in_use_is_let_go(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        bind(stage)?;
        put(stage, OTHER, &sound(MANAGED, true)?.1, &[]).ok()?;
        by(stage, ON_CALL, &["annotate", "secret", MANAGED, "breakglass.trustspan.dev/managed-in-use=moved"]).ok()?;
        let refused = by(stage, OTHER, &["delete", "secret", MANAGED]).fails()?;
        ensure!(refused.contains("managed-in-use"), "saw {refused}");
        let output = by(stage, ON_CALL, &["delete", "secret", MANAGED]).run()?;
        ensure!(output.success() && output.stderr.contains("break-glass (moved)"), "saw {output:?}");
        Ok(())
    })
}
