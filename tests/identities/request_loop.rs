//! A client that works all the time with the kubeconfig in a file, which it reads again when it has changed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_millis(50);

/// A client for a kubeconfig.
pub(crate) async fn client(text: &str) -> Result<Client> {
    let kubeconfig = Kubeconfig::from_yaml(text)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(2));
    config.read_timeout = Some(Duration::from_secs(5));
    Ok(Client::try_from(config)?)
}

/// Runs something on a new runtime.
pub(crate) fn block_on<T>(task: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(task)
}

/// The results so far.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    pub(crate) succeeded: usize,
    /// Errors by their text, with the times of the first and last of them.
    pub(crate) errors: BTreeMap<String, (usize, Instant, Instant)>,
}

impl Tally {
    pub(crate) fn failed(&self) -> usize {
        self.errors.values().map(|(count, ..)| count).sum()
    }

    /// When the first and the last request failed.
    pub(crate) fn outage(&self) -> Option<(Instant, Instant)> {
        let first = self.errors.values().map(|(_, first, _)| *first).min()?;
        Some((first, self.errors.values().map(|(_, _, last)| *last).max()?))
    }
}

/// The running client.
pub(crate) struct RequestLoop {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RequestLoop {
    /// Starts to list ConfigMaps of a namespace.
    pub(crate) fn start(kubeconfig: &Path, namespace: &str) -> Self {
        let (tally, stop) = (Arc::<Mutex<Tally>>::default(), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (tally.clone(), stop.clone());
        let (path, namespace) = (kubeconfig.to_owned(), namespace.to_owned());
        let thread = thread::spawn(move || {
            let run = run(path, namespace, &counted, &stopped);
            if let Err(error) = block_on(run) {
                eprintln!("request loop: {error:#}");
            }
        });
        Self { tally, stop, thread: Some(thread) }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it and prints its results.
    pub(crate) fn end(mut self, what: &str) -> Result<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().context("ended twice")?.join().map_err(|_| anyhow!("the request loop panicked"))?;
        let tally = self.tally();
        println!("{what}: {} requests succeeded, {} failed", tally.succeeded, tally.failed());
        for (text, (count, first, last)) in &tally.errors {
            println!("  {count} within {:.1?}: {text}", *last - *first);
        }
        Ok(tally)
    }
}

async fn run(path: PathBuf, namespace: String, tally: &Mutex<Tally>, stop: &AtomicBool) -> Result<()> {
    let mut current: Option<(String, Api<ConfigMap>)> = None;
    while !stop.load(Ordering::Relaxed) {
        let text = fs::read_to_string(&path)?;
        if current.as_ref().is_none_or(|(known, _)| *known != text) {
            let api = Api::namespaced(client(&text).await?, &namespace);
            current = Some((text, api));
        }
        if let Some((_, api)) = &current {
            let result = api.list(&ListParams::default().limit(1)).await;
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(_) => tally.succeeded += 1,
                Err(error) => {
                    let now = Instant::now();
                    let entry = tally.errors.entry(text_of(&error)).or_insert((0, now, now));
                    (entry.0, entry.2) = (entry.0 + 1, now);
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(())
}

/// The cause of an error, without ports.
fn text_of(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} {}", status.code, status.message);
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
