//! The time from a new CA in the source Secret to its trust in the managed Secret: by watch, and by resync when watches
//! deliver nothing.

use std::{thread::sleep, time::Duration};

use anyhow::{Result, ensure};

use crate::{
    Size,
    issuer::Issuer,
    proxy::Proxy,
    testbed::{Cluster, Kept, SOON, Seed, User, wait_for},
    usage::wait_quiet,
};

/// Longer than any of these tests, so that no resync happens.
const NEVER: &str = "1h";
/// The promised time with a working watch.
const BY_WATCH: Duration = Duration::from_secs(1);
/// The resync interval, and the same as an argument.
const POLL: (Duration, &str) = (Duration::from_secs(1), "1s");
/// The time for a resync after it is due.
const RESYNC: Duration = Duration::from_secs(1);
/// Rotations after an outage.
const RESUMED: usize = 5;
/// The source and the managed Secret, and their `-cacert` siblings.
const SECRETS: usize = 4;

pub(crate) fn by_watch(cluster: &Cluster, size: Size) -> Result<Vec<String>> {
    cluster.with_temp_ns(|ns| {
        let (kept, issuer) = prepared(cluster, ns)?;
        let _agent = kept.agents.start_with("watching", &cluster.kubeconfig(User::Agent), NEVER)?;
        let times = Times::of(size.watched, |number| {
            // A rotation in progress would read the next source Secret by itself.
            kept.wait_phase("Steady")?;
            issuer.rotate(number)
        })?;
        ensure!(times.median() < BY_WATCH, "expected a median below {BY_WATCH:?}, saw {}", times.line(""));
        Ok(vec![HEAD.to_owned(), times.line("by watch")])
    })
}

pub(crate) fn by_poll(cluster: &Cluster, size: Size) -> Result<Vec<String>> {
    cluster.with_temp_ns(|ns| {
        let (kept, issuer) = prepared(cluster, ns)?;
        let proxy = Proxy::start(cluster)?;
        let _agent = kept.agents.start_with("polling", proxy.kubeconfig(), POLL.1)?;
        watched(&proxy)?;
        proxy.mute();
        let mut seed = Seed::of_run("moments between polls");
        let times = Times::of(size.polled, |number| {
            kept.wait_phase("Steady")?;
            // The CA changes at a random instant of the resync interval.
            sleep(Duration::from_millis(seed.below(1_000)));
            issuer.rotate(number)
        })?;
        // Waits for writes that are still in progress. Then the GatewaySecret is changed, which no watch reports.
        wait_quiet(cluster)?;
        let paused = r#"{ "spec": { "paused": true } }"#;
        cluster.kubectl(["patch", "gatewaysecret", "gateway", "--type=merge", "--patch", paused]).ns(ns).ok()?;
        let generation = cluster.get("gatewaysecret", ns, "gateway")?["metadata"]["generation"].take();
        wait_for("the change to be seen", SOON, || Ok(kept.status()?["observedGeneration"] == generation))?;
        ensure!(proxy.watches() == SECRETS, "expected {SECRETS} mute watches, saw {}", proxy.watches());
        let bound = POLL.0 + RESYNC;
        ensure!(times.longest() < bound, "expected less than {bound:?}, saw {}", times.line(""));
        Ok(vec![times.line(&format!("by poll, each {}", POLL.1))])
    })
}

pub(crate) fn after_an_outage(cluster: &Cluster, _: Size) -> Result<Vec<String>> {
    cluster.with_temp_ns(|ns| {
        let (kept, issuer) = prepared(cluster, ns)?;
        let proxy = Proxy::start(cluster)?;
        let _agent = kept.agents.start_with("resuming", proxy.kubeconfig(), NEVER)?;
        kept.wait_phase("Steady")?;
        watched(&proxy)?;
        proxy.break_off();
        wait_for("all watches to end", SOON, || Ok(proxy.watches() == 0))?;
        proxy.restore();
        watched(&proxy)?;
        let times = Times::of(RESUMED, |number| {
            kept.wait_phase("Steady")?;
            issuer.rotate(number)
        })?;
        ensure!(times.median() < BY_WATCH, "expected a median below {BY_WATCH:?}, saw {}", times.line(""));
        Ok(vec![times.line("by watch, resumed")])
    })
}

/// Propagation delays are short, so that rotations follow each other quickly.
fn prepared<'c>(cluster: &'c Cluster, ns: &'c str) -> Result<(Kept<'c>, Issuer)> {
    let kept = Kept::new(cluster, ns, "50ms")?;
    kept.agents.grant()?;
    let issuer = Issuer::new(&kept)?;
    Ok((kept, issuer))
}

/// Waits until the agent watches all its Secrets.
fn watched(proxy: &Proxy) -> Result<()> {
    wait_for("watches on all Secrets", SOON, || Ok(proxy.watches() == SECRETS))
}

const HEAD: &str = "root changed → managed Secret seen   rotations      min   median      p95      max";

/// The measured times, in the order of measurement.
struct Times(Vec<Duration>);

impl Times {
    fn of(count: usize, measure: impl FnMut(usize) -> Result<Duration>) -> Result<Self> {
        let mut times = (1..=count).map(measure).collect::<Result<Vec<_>>>()?;
        times.sort_unstable();
        Ok(Self(times))
    }

    /// The time that this many percent of the measurements do not exceed (nearest rank).
    fn quantile(&self, hundredths: usize) -> Duration {
        let rank = (self.0.len() * hundredths).div_ceil(100).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    fn median(&self) -> Duration {
        self.quantile(50)
    }

    fn longest(&self) -> Duration {
        self.quantile(100)
    }

    fn line(&self, what: &str) -> String {
        let [min, median, p95, max] = [0, 50, 95, 100].map(|hundredths| self.quantile(hundredths).as_millis());
        format!("{what:<36} {:>9} {min:>5} ms {median:>5} ms {p95:>5} ms {max:>5} ms", self.0.len())
    }
}
