//! Bad inputs with real kubectl, by each of its commands. Each input is rejected, or causes a warning, with its
//! message; a dry run gives the same result before; and the stored object stays.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::gateways::ISTIO;
use crate::pki::{Dates, Identity, Keys, Kind, Spec};
use crate::secrets::{put, with};
use crate::stage::{MANAGED, SOURCE, Stage, credential, expect, on_stage, sound};
use crate::testbed::{Authority, Cluster, Output, SOON, Seed, wait_for_value};

cases![
    refuses_what_would_break_trust,
    warns_of_what_is_odd,
    refuses_in_every_way_of_writing,
    odd_requests_are_judged_like_others,
    large_updates_are_judged,
];

/// Fields of a Secret with bad content, and the rule that reports it.
type Bad = (Vec<(&'static str, String)>, &'static str);

/// The cases of the tables of how Envoy loads a bundle.
fn bad() -> Result<Vec<Bad>> {
    let mut keys = Keys::shuffled(&mut Seed::of_run("bad inputs"));
    let mut ca = |spec| Identity::root(spec, keys.of(Kind::P256)?);
    let (good, other) = (ca(Spec::ca("good"))?, ca(Spec::ca("other"))?);
    let dated = |dates| Spec { dates, ..Spec::ca("dated") };
    let (expired, future) = (ca(dated(Dates::Expired))?, ca(dated(Dates::Future))?);
    let renewed = Identity::root(dated(Dates::Valid), expired.key.clone())?;
    let nameless = || Spec { subject_key_id: false, ..Spec::ca("one name") };
    let same_name = ca(nameless())?.pem() + &ca(nameless())?.pem();
    let long = ["a", "b", "c"].map(|letter| Spec::ca(letter.repeat(25_000)));
    let long = long.into_iter().map(|spec| Ok(ca(spec)?.pem())).collect::<Result<String>>()?;
    let leaf = other.issue(Spec::leaf("other"), renewed.key.clone())?;
    let old = other.issue(Spec { dates: Dates::Expired, ..Spec::leaf("old") }, renewed.key.clone())?;
    let (pem, key) = (good.pem(), good.key.pem());
    let garbage = "-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n";
    let one = |field, content, rule| (vec![(field, content)], rule);
    Ok(vec![
        one("ca.crt", format!("{pem}{garbage}"), "unparsable"),
        one("ca.crt", pem.trim_end().repeat(2), "unparsable"),
        one("ca.crt", pem.replacen("CERTIFICATE-----\n", "CERTIFICATE-----\n=", 1), "unparsable"),
        one("ca.crt", "no PEM at all".to_owned(), "empty"),
        one("ca.crt", String::new(), "empty"),
        one("cacert", "# a comment\n".to_owned(), "empty"),
        one("ca.crt", format!("{pem}{key}"), "private-key-in-bundle"),
        one("ca.crt", format!("\u{feff}{}{pem}", other.pem()), "dropped-by-proxy"),
        one("ca.crt", format!("  {}{pem}", other.pem()), "dropped-by-proxy"),
        one("ca.crt", leaf.pem(), "not-a-ca"),
        one("ca.crt", expired.pem(), "expired"),
        one("ca.crt", future.pem(), "not-yet-valid"),
        one("ca.crt", expired.pem() + &renewed.pem(), "expired-beside-renewed"),
        one("ca.crt", future.pem() + &Identity::root(dated(Dates::Valid), future.key)?.pem(), "expired-beside-renewed"),
        one("ca.crt", same_name, "same-subject-ambiguity"),
        one("ca.crt", long, "too-large"),
        one("tls.key", key, "key-mismatch"),
        one("tls.key", String::new(), "pair-incomplete"),
        (vec![("tls.crt", old.pem()), ("tls.key", old.key.pem())], "expired"),
    ])
}

fn filled(secret: &Value, data: &[(&str, String)]) -> Value {
    data.iter().fold(secret.clone(), |secret, (field, content)| with(&secret, field, content))
}

fn refuses_what_would_break_trust(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        for (name, labelled) in [(MANAGED, true), (SOURCE, false)] {
            let (_, secret) = sound(name, labelled)?;
            passed(stage, &secret)?;
            let stored = stage.get("secret", name)?;
            let mut reported = BTreeSet::new();
            for (data, rule) in bad()? {
                let (field, unsound) = (data[0].0, filled(&secret, &data));
                // The same server judges the source and the managed Secret, so for the source Secret one case of each
                // rule is enough.
                if !reported.insert(rule) && !labelled {
                    continue;
                }
                let denied = refused(stage, &unsound, &[])?;
                ensure!(denied.contains("validate.trustspan.dev"), "{name}, {rule}: saw {denied}");
                ensure!(denied.contains(rule) && denied.contains(field), "{name}, {rule} on {field}: saw {denied}");
                ensure!(!denied.contains("PRIVATE KEY-----"), "{rule} shows a key");
                if labelled {
                    let asked = refused(stage, &unsound, DRY_RUN)?;
                    ensure!(asked == denied, "{rule}, dry run: {asked}\napply: {denied}");
                }
            }
            // The same resourceVersion shows that nothing was written in between either.
            ensure!(stage.get("secret", name)? == stored, "{name}: what is stored has changed");
        }
        Ok(())
    })
}

/// Server-side apply. The webhook's timeout is five seconds, which a debug build on a busy machine can exceed. The
/// request is then repeated, since a timeout is no verdict.
fn apply(stage: &Stage<'_>, secret: &Value, more: &[&str]) -> Result<Output> {
    wait_for_value("an answer in time", SOON, || {
        let kubectl = more.iter().fold(put(stage, secret), |kubectl, arg| kubectl.arg(arg));
        let output = kubectl.run()?;
        Ok((!output.stderr.contains("context deadline exceeded")).then_some(output))
    })
}

fn refused(stage: &Stage<'_>, secret: &Value, more: &[&str]) -> Result<String> {
    let output = apply(stage, secret, more)?;
    ensure!(!output.success(), "expected a refusal, saw {output:?}");
    Ok(output.stderr)
}

fn passed(stage: &Stage<'_>, secret: &Value) -> Result<()> {
    let output = apply(stage, secret, &[])?;
    ensure!(output.success(), "expected success, saw {output:?}");
    Ok(())
}

const DRY_RUN: &[&str] = &["--dry-run=server"];

fn warns_of_what_is_odd(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (authority, secret) = sound(MANAGED, true)?;
        let good = authority.pem();
        let mut keys = Keys::shuffled(&mut Seed::of_run("odd inputs"));
        let old = Identity::root(Spec { dates: Dates::Expired, ..Spec::ca("old") }, keys.of(Kind::P256)?)?;
        let of_same_name = format!("{good}{}", Authority::new("root of the test")?.pem());
        for (bundle, rule) in [
            (good.repeat(2), "duplicate"),
            (format!("{good}{}", old.pem()), "expired"),
            (of_same_name, "same-subject-ambiguity"),
        ] {
            let odd = with(&secret, "ca.crt", &bundle);
            let (asked, done) = (apply(stage, &odd, DRY_RUN)?, apply(stage, &odd, &[])?);
            let warned = done.success() && done.stderr.contains(&format!("Warning: {rule}: data[ca.crt]"));
            ensure!(warned && asked.stderr == done.stderr, "{rule}: dry run {asked:?}\napply {done:?}");
            let stored = stage.get("secret", MANAGED)?["data"]["ca.crt"].clone();
            expect(rule, &stored, STANDARD.encode(bundle))?;
        }
        Ok(())
    })
}

fn refuses_in_every_way_of_writing(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (_, secret) = sound(MANAGED, true)?;
        stage.kubectl(["create", "-f", "-"]).stdin(secret.to_string()).ok()?;
        let stored = stage.get("secret", MANAGED)?;
        let unsound = with(&secret, "ca.crt", "no PEM at all").to_string();
        let no_pem = STANDARD.encode("no PEM at all");
        let merge = json!({ "data": { "ca.crt": no_pem } }).to_string();
        let plain = json!({ "stringData": { "ca.crt": "no PEM at all" } }).to_string();
        let replace = json!([{ "op": "replace", "path": "/data/ca.crt", "value": no_pem }]).to_string();
        let patch = |kind: &str, patch: &str| stage.kubectl(["patch", "secret", MANAGED, kind, "--patch", patch]);
        let editor = format!("sed -i 's|^  ca.crt: .*|  ca.crt: {no_pem}|'");
        for (way, kubectl) in [
            ("apply", stage.kubectl(["apply", "-f", "-"]).stdin(unsound.as_str())),
            ("replace", stage.kubectl(["replace", "-f", "-"]).stdin(unsound.as_str())),
            ("merge patch", patch("--type=merge", &merge)),
            ("merge patch of stringData", patch("--type=merge", &plain)),
            ("strategic patch", patch("--type=strategic", &merge)),
            ("JSON patch", patch("--type=json", &replace)),
            ("edit", stage.kubectl(["edit", "secret", MANAGED]).env("KUBE_EDITOR", editor)),
        ] {
            let refused = kubectl.fails()?;
            ensure!(refused.contains("empty: data[ca.crt]"), "{way}: saw {refused}");
        }
        ensure!(stage.get("secret", MANAGED)? == stored, "what is stored has changed");
        Ok(())
    })
}

fn odd_requests_are_judged_like_others(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let changed = |change: fn(&mut Value)| -> Result<Value> {
            let mut secret = sound("another", true)?.1;
            change(&mut secret);
            Ok(secret)
        };
        for (what, secret) in [
            ("immutable", changed(|secret| secret["immutable"] = json!(true))?),
            (
                "generateName",
                changed(|secret| {
                    secret["metadata"]["generateName"] = json!("another-");
                    secret["metadata"]["name"] = Value::Null;
                })?,
            ),
            ("unknown fields", changed(|secret| secret["unknown"] = json!({ "ca.crt": "x" }))?),
            ("annotations of null", changed(|secret| secret["metadata"]["annotations"] = Value::Null)?),
        ] {
            let create = |secret: &Value| {
                stage.kubectl(["create", "--validate=ignore", "-f", "-", "--output=name"]).stdin(secret.to_string())
            };
            let refused = create(&with(&secret, "ca.crt", "no PEM at all")).fails()?;
            ensure!(refused.contains("empty: data[ca.crt]"), "{what}: saw {refused}");
            let created = create(&secret).ok()?;
            stage.kubectl(["delete", created.trim()]).ok()?;
        }
        // A write of the status must not change the spec.
        stage.apply(&stage.istio("shop", SOURCE))?;
        let status = json!({ "status": { "observedGeneration": "1" } }).to_string();
        let patch = ["patch", ISTIO, "shop", "--subresource=status", "--type=merge", "--patch", &status];
        cluster.kubectl(patch).ns(&stage.ns).ok()?;
        expect("credentialName", credential(&stage.get(ISTIO, "shop")?), MANAGED)
    })
}

/// An UPDATE carries the old and the new object, here with annotations that make it more than 3 MB.
fn large_updates_are_judged(cluster: &Cluster) -> Result<()> {
    on_stage(cluster, |stage| {
        let (authority, mut secret) = sound(MANAGED, true)?;
        secret["metadata"]["annotations"] = json!({ "example.com/notes": "x".repeat(250_000) });
        let padded = |bundle: &str, note: &str| format!("{}{bundle}", note.repeat(1_000_000 / note.len()));
        let large = |bundle: &str, note: &str| with(&secret, "ca.crt", &padded(bundle, note));
        let notes = ["a comment ", "another one "].map(|note| format!("# {}\n", note.repeat(80)));
        for note in &notes {
            passed(stage, &large(&authority.pem(), note))?;
        }
        let stored = stage.version("secret", MANAGED)?;
        let denied = refused(stage, &large("no PEM at all", &notes[0]), &[])?;
        ensure!(denied.contains("empty: data[ca.crt]"), "saw {denied}");
        ensure!(stage.version("secret", MANAGED)? == stored, "what is stored has changed");
        Ok(())
    })
}
