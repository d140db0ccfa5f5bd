//! A directory of manifests, read again whenever a file in it changes.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use jiff::Timestamp;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::RegistryCache;
use crate::registry::Registry;

const EVERY: Duration = Duration::from_secs(1);
/// A status computed from manifests depends on the clock too (a certificate runs out), so it is never older than this.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Directories below the first; ends a loop of symbolic links.
const DEPTH: usize = 8;

/// Keeps `live` up to date with the directory. A directory that cannot be read leaves the last good registry in place.
pub async fn follow<E: Display + Send + 'static>(
    dir: PathBuf,
    live: Arc<RegistryCache>,
    load: impl Fn(&Path, Timestamp) -> Result<Registry, E> + Clone + Send + 'static,
) {
    let mut seen = None;
    let mut read_at = Instant::now();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (place, known, load) = (dir.clone(), seen.clone(), load.clone());
        let aged = read_at.elapsed() >= AT_LEAST_EVERY;
        let step = spawn_blocking(move || {
            // Listed before it is read: a change in between is seen at the next tick.
            let listing = list(&place, DEPTH).map_err(|e| e.to_string());
            (aged || known.as_ref() != Some(&listing)).then(|| (listing, load(&place, Timestamp::now())))
        });
        let Ok(Some((listing, read))) = step.await else { continue };
        (seen, read_at) = (Some(listing), Instant::now());
        match read {
            Ok(registry) => {
                tracing::debug!(gatewaysecrets = registry.entries().len(), "manifests read");
                live.publish(registry);
            }
            Err(error) => {
                live.failed();
                tracing::error!("manifests not read, the last good ones stay: {error}");
            }
        }
    }
}

type Listing = Vec<(PathBuf, u64, Option<SystemTime>)>;

fn list(dir: &Path, depth: usize) -> io::Result<Listing> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // `..data` and its like: what a mounted ConfigMap is made of; its files are listed through their links.
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() && depth > 0 => found.extend(list(&path, depth - 1)?),
            Ok(meta) => found.push((path, meta.len(), meta.modified().ok())),
            // Gone since the directory was listed, or a dangling link: still part of the listing.
            Err(_) => found.push((path, 0, None)),
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Entry;

    /// One entry for each file; a file that says `bad` is an error.
    fn count(dir: &Path, _now: Timestamp) -> Result<Registry, String> {
        let mut entries = Vec::new();
        for (path, ..) in list(dir, DEPTH).map_err(|e| e.to_string())? {
            if fs::read_to_string(&path).map_err(|e| e.to_string())?.contains("bad") {
                return Err("a bad file".to_owned());
            }
            let spec = serde_json::from_str(r#"{"sourceSecretName":"r"}"#).map_err(|e| e.to_string())?;
            entries.push(Entry::unstored(String::new(), path.display().to_string(), spec));
        }
        Ok(Registry::new(entries))
    }

    async fn until(what: impl Fn() -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(60), async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        waited.await.expect("condition not met within a minute");
    }

    #[tokio::test]
    async fn follows_changes_and_keeps_the_last_good_registry() {
        let dir = tempfile::tempdir().unwrap();
        let live = Arc::new(RegistryCache::default());
        let task = tokio::spawn(follow(dir.path().to_owned(), live.clone(), count));
        let known = || live.registry().map(|r| r.entries().len());
        until(|| known() == Some(0)).await;

        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/a.yaml"), "good").unwrap();
        until(|| known() == Some(1)).await;

        fs::write(dir.path().join("b.yaml"), "bad").unwrap();
        until(|| live.failures() > 0).await;
        assert_eq!(known(), Some(1));

        fs::write(dir.path().join("b.yaml"), "good again").unwrap();
        until(|| known() == Some(2)).await;
        task.abort();
    }
}
