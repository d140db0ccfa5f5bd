//! A client that makes new handshakes with all gateways, one after the other, with what its Secret holds.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::{
    client::{Client, ClusterSnapshot, ca_crt},
    journal::Journal,
    mesh::{CLIENT, Mesh},
    pace::Pace,
    testbed::{Cluster, SOON, wait_for},
};

pub(crate) struct Traffic {
    around: Arc<ClusterSnapshot>,
    client: JoinHandle<Result<()>>,
}

impl Traffic {
    /// Starts the client: it loads its Secret again some time after each change, as a mounted one.
    pub(crate) fn start(cluster: &Cluster, mesh: &Mesh, runtime: &Handle) -> Result<Self> {
        let log = File::create(cluster.temp_dir("traffic")?.join("failures.log"))?;
        let around = Arc::new(ClusterSnapshot {
            shelf: Arc::clone(&mesh.shelf),
            journal: Arc::new(Journal::new(log)),
            served: Box::new(|_| "a gateway".to_owned()),
            pace: Pace::of_run()?,
            restarts: AtomicU32::new(0),
            over: AtomicBool::new(false),
        });
        around.journal.step("before");
        let targets = mesh.targets().into();
        let client =
            Client { name: CLIENT.to_owned(), load_once: false, trust: ca_crt, targets, around: Arc::clone(&around) };
        Ok(Self { client: runtime.spawn(client.run()), around })
    }

    /// Records what is done from now on, for messages.
    pub(crate) fn step(&self, step: &str) {
        self.around.journal.step(step);
    }

    /// Waits for this many further handshakes.
    pub(crate) fn wait_handshakes(&self, more: u32) -> Result<()> {
        let goal = self.around.journal.handshakes() + more;
        wait_for(&format!("{more} more handshakes"), SOON, || Ok(self.around.journal.handshakes() >= goal))
    }

    /// Ends the traffic, and returns the number of handshakes.
    ///
    /// # Errors
    /// When one of them failed.
    pub(crate) fn finish(self, runtime: &Handle) -> Result<u32> {
        self.around.over.store(true, Ordering::SeqCst);
        runtime.block_on(self.client).context("the client panicked")??;
        let (handshakes, failures) = (self.around.journal.handshakes(), self.around.journal.failures());
        ensure!(failures.is_empty(), "{} of {handshakes} handshakes failed:\n{}", failures.len(), failures.join("\n"));
        Ok(handshakes)
    }
}
