//! How long the kubelet takes to update the file of a Secret in a running pod.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    Bed,
    app::App,
    restarts::write,
    testbed::{SYNC_FREQUENCY, Seed},
};

const WRITES: usize = 8;
/// Writes are at random instants within this time: the kubelet's own rhythm.
const RHYTHM: u64 = 10_000;

pub(crate) fn measured(bed: &Bed) -> Result<()> {
    bed.cluster.with_temp_ns(|ns| {
        let mut seed = Seed::of_run("writes of a Secret");
        write(bed, ns, "ca 0")?;
        let app = App::create(bed, ns, "ca")?;
        let mut took = Vec::new();
        for number in 1..=WRITES {
            thread::sleep(Duration::from_millis(seed.below(RHYTHM)));
            let content = write(bed, ns, &format!("ca {number}"))?;
            let written = Instant::now();
            app.wait_mounted(&content)?;
            took.push(written.elapsed());
        }
        took.sort();
        println!(
            "{WRITES} writes, syncFrequency {SYNC_FREQUENCY}: from the write to the pod's file {:.1?} to {:.1?}, median {:.1?}: {took:.1?}",
            took[0],
            took[WRITES - 1],
            took[WRITES / 2],
        );
        Ok(())
    })
}
