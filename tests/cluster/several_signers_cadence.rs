//! Seven signers of `spec.additionalTrust`, each of which renews its CA at a different cadence, from 5 to 60 seconds. The writes of the managed
//! Secret are those of the API server's audit log; a watch gets the content of each.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use crate::agent::kept;
use crate::several_signers::{declare, kind, write_signer, writes};
use crate::stage::{deployment, expect};
use crate::testbed::{Authority, Cluster, Kept, SOON, Seed, wait_for, wait_for_value};

cases![seven_signers_renew_at_different_cadences];

/// Seconds of the short form; `TRUSTSPAN_SIGNER_SECONDS` sets another number.
const SECONDS: u64 = 20;
/// Seconds between two CAs of each signer, give or take a fifth.
const CADENCES: [u64; 7] = [5, 8, 13, 21, 34, 47, 60];
/// `propagationDelays.clients`: how long the bundle keeps a previous CA.
const DELAY: Duration = Duration::from_secs(15);
/// A content that stays for longer has to be written before it changes.
const BRIEF: Duration = Duration::from_secs(1);

type Pem = String;

fn pem(authority: &Authority) -> Pem {
    authority.pem().replace("\r\n", "\n")
}

/// The CAs of a bundle, in order.
fn cas(bundle: &str) -> Vec<Pem> {
    bundle.split_inclusive("-----END CERTIFICATE-----\n").map(str::to_owned).collect()
}

/// The CAs that the signers have at a time, after the GatewaySecret's own, in the order of the spec.
fn current(own: &Authority, signers: &[Authority]) -> Vec<Pem> {
    std::iter::once(own).chain(signers).map(pem).collect()
}

/// What the signers did.
struct Signed {
    /// The current CAs after each change.
    states: Vec<Vec<Pem>>,
    /// When each previous CA was replaced.
    replaced: BTreeMap<Pem, Instant>,
    /// The CAs that the managed Secret was seen to hold.
    seen: BTreeSet<Pem>,
}

impl Signed {
    fn current(&self) -> &[Pem] {
        self.states.last().map(Vec::as_slice).unwrap_or_default()
    }

    /// Waits until the managed Secret has the newest content. No CA may be missing that was replaced less than [`DELAY`] ago.
    fn wait(&mut self, kept: &Kept<'_>) -> Result<()> {
        let bundle = wait_for_value("the newest CAs in the managed Secret", SOON, || {
            let bundle = cas(&kept.bundle()?.unwrap_or_default());
            Ok(bundle.starts_with(self.current()).then_some(bundle))
        })?;
        let recent = self.replaced.iter().filter(|(ca, at)| at.elapsed() < DELAY && self.seen.contains(*ca));
        let dropped = recent.filter(|(ca, _)| !bundle.contains(ca)).count();
        ensure!(dropped == 0, "{dropped} CAs were dropped before {DELAY:?} had passed");
        self.seen.extend(bundle);
        Ok(())
    }
}

/// The writes of the managed Secret, by what they changed.
#[derive(Default)]
struct Writes {
    /// A signer's new CA, or the new CAs of several signers.
    changes: usize,
    /// Of these, with the changes of several signers.
    shared: usize,
    /// Only the removal of previous CAs.
    drops: usize,
}

impl Writes {
    /// Compares the contents, in the order in which they were written, with what the signers did.
    fn of(contents: &[Vec<Pem>], states: &[Vec<Pem>]) -> Result<Self> {
        let (mut writes, mut reached) = (Self::default(), 0);
        let first = contents.first().context("no content")?;
        ensure!(Some(first) == states.first(), "the first content is another one");
        for (before, after) in contents.iter().zip(&contents[1..]) {
            ensure!(before != after, "a write that changed nothing");
            let state = states.iter().skip(reached).position(|state| after.starts_with(state));
            let changes = state.context("a write whose current CAs the signers never had in this order")?;
            match changes {
                0 => writes.drops += 1,
                1 => writes.changes += 1,
                _ => (writes.changes, writes.shared) = (writes.changes + 1, writes.shared + 1),
            }
            reached += changes;
            // The CAs that were replaced come before those that were replaced earlier. Some of these may be dropped.
            let current = states[reached].len();
            let mut expected = before.iter().filter(|ca| !after[..current].contains(ca));
            let is_in_order = after[current..].iter().all(|ca| expected.any(|other| other == ca));
            ensure!(is_in_order, "the previous CAs are in another order");
        }
        ensure!(reached + 1 == states.len(), "written up to change {reached} of {}", states.len() - 1);
        Ok(writes)
    }
}

fn seven_signers_renew_at_different_cadences(cluster: &Cluster) -> Result<()> {
    let seconds = std::env::var("TRUSTSPAN_SIGNER_SECONDS").map_or(Ok(SECONDS), |number| number.parse())?;
    kept(cluster, |kept| {
        let mut seed = Seed::of_run("cadences of signers");
        kept.set_client_delay(&format!("{}s", DELAY.as_secs()))?;
        // The agent may restart workloads, but not this one: it reloads the managed Secret by itself.
        kept.set_policy("workloadRestarts", &json!({ "mode": "Enabled" }))?;
        let (_server, _registration) = kept.judged()?;
        let mut app = deployment("app", "managed", &[]);
        app["metadata"]["annotations"] = json!({ "trustspan.dev/rewrite": "disabled" });
        cluster.apply(kept.ns, &app.to_string())?;

        let own = Authority::new("own")?;
        let mut signers: Vec<_> =
            (0..CADENCES.len()).map(|number| Authority::new(&format!("signer {number}"))).collect::<Result<_>>()?;
        kept.write_root(&own)?;
        kept.write_client("checkout", &own)?;
        kept.set("clients", &json!({ "allDeclared": true, "secretNames": ["checkout"] }))?;
        for (number, signer) in signers.iter().enumerate() {
            write_signer(kept, number, signer)?;
        }
        declare(kept, signers.len())?;
        let _agent = kept.agents.start("a")?;
        kept.wait_bundle(&std::iter::once(&own).chain(&signers).collect::<Vec<_>>())?;
        kept.wait_phase("Steady")?;
        let content = r#"jsonpath={.data.ca\.crt}{"\n"}"#;
        let watch = cluster.start_kubectl(["get", "secret", "managed", "-n", kept.ns, "--watch", "-o", content])?;
        wait_for("the watch to begin", SOON, || Ok(!watch.log().is_empty()))?;
        let before = writes(kept)?;

        let started = Instant::now();
        let end = started + Duration::from_secs(seconds);
        let mut due: Vec<_> =
            CADENCES.iter().map(|cadence| started + Duration::from_millis(seed.below(cadence * 1000))).collect();
        let states = vec![current(&own, &signers)];
        let mut signed = Signed { seen: states[0].iter().cloned().collect(), states, replaced: BTreeMap::new() };
        let (mut waited, mut latest) = (0, Duration::ZERO);
        loop {
            let (number, at) = due.iter().copied().enumerate().min_by_key(|(_, at)| *at).context("a signer")?;
            if at.saturating_duration_since(Instant::now()) > BRIEF || at >= end {
                let since = Instant::now();
                signed.wait(kept)?;
                (waited, latest) = (waited + 1, latest.max(since.elapsed()));
            }
            if at >= end {
                break;
            }
            thread::sleep(at.saturating_duration_since(Instant::now()));
            let renewed = Authority::new(&format!("signer {number}, renewed {}", signed.states.len()))?;
            let replaced = std::mem::replace(&mut signers[number], renewed);
            signed.replaced.insert(pem(&replaced), Instant::now());
            write_signer(kept, number, &signers[number])?;
            signed.states.push(current(&own, &signers));
            let cadence = CADENCES[number] * 1000;
            due[number] = at.max(Instant::now()) + Duration::from_millis(cadence * 4 / 5 + seed.below(cadence * 2 / 5));
        }
        wait_for("all previous CAs to be dropped", SOON, || {
            Ok(cas(&kept.bundle()?.unwrap_or_default()) == signed.current())
        })?;

        let counted = writes(kept)? - before;
        let contents = wait_for_value("the watch to get all writes", SOON, || {
            let log = watch.log();
            let contents = log.lines().map(|line| Ok(cas(&String::from_utf8(STANDARD.decode(line)?)?)));
            let contents = contents.collect::<Result<Vec<_>>>()?;
            Ok((contents.len() > counted).then_some(contents))
        })?;
        ensure!(contents.len() == counted + 1, "{counted} writes, and {} contents", contents.len());
        let changes = signed.states.len() - 1;
        let made = Writes::of(&contents, &signed.states)?;
        println!(
            "TRUSTSPAN_SEED={}: {changes} changes of seven signers in {seconds} s; {counted} writes: {} with changes, of which {} with those of \
             several signers, and {} that only dropped previous CAs; {waited} contents stood for more than {BRIEF:?}, and each was written, \
             {:.1} s after the change at the latest",
            Seed::number(),
            made.changes,
            made.shared,
            made.drops,
            latest.as_secs_f64()
        );
        ensure!(made.changes <= changes && made.drops <= changes, "more writes than changes");
        a_deleted_signer_stays_while_a_client_needs_it(kept, &own, signers)?;
        let stored = cluster.get("deployment", kept.ns, "app")?;
        expect("the generation of a Deployment that reloads by itself", &stored["metadata"]["generation"], 1)?;
        let sets = cluster.list("replicasets", kept.ns, "app=app")?.len();
        ensure!(sets == 1, "{sets} ReplicaSets of a Deployment that reloads by itself");
        Ok(())
    })
}

fn a_deleted_signer_stays_while_a_client_needs_it(
    kept: &Kept<'_>,
    own: &Authority,
    mut signers: Vec<Authority>,
) -> Result<()> {
    kept.set_client_delay("1s")?;
    kept.write_client_with("checkout", &signers[3], &[own])?;
    kept.cluster.kubectl(["delete", kind(3), "signer-3"]).ns(kept.ns).ok()?;
    let deleted = signers.remove(3);
    let all: Vec<_> = std::iter::once(own).chain(&signers).collect();
    let kept_for_client: Vec<_> = all.iter().copied().chain([&deleted]).collect();
    kept.wait_bundle(&kept_for_client)?;
    wait_for("a wait that names the client", SOON, || {
        let waits = kept.status()?["waits"].to_string();
        Ok(waits.contains("signer-3 does not exist") && waits.contains("need 1 previous CA: checkout"))
    })?;
    kept.wait_bundle(&kept_for_client)?;
    kept.write_client_with("checkout", own, &[own])?;
    kept.wait_bundle(&all)
}
