//! Follows directories of manifests: they are read again when a file changes.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use jiff::Timestamp;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{CheckHandle, RegistryCache};
use crate::health::CheckResult;
use crate::registry::Registry;

const INTERVAL: Duration = Duration::from_secs(1);
/// A status computed from manifests also depends on the clock (certificates expire), so it is never older than this.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Deepest nesting of directories; ends a loop of symbolic links.
const MAX_DEPTH: usize = 8;

/// Publishes what `load` reads of the directories in `cache`, and records in `check` whether they can be read. While they cannot, the last
/// registry stays.
pub async fn follow<E: Display + Send + 'static>(
    directories: Vec<PathBuf>,
    cache: Arc<RegistryCache>,
    check: CheckHandle,
    load: impl Fn(Timestamp) -> Result<Registry, E> + Clone + Send + 'static,
) {
    let mut last_listing = None;
    let mut read_at = Instant::now();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (directories, known, load) = (directories.clone(), last_listing.clone(), load.clone());
        let is_too_old = read_at.elapsed() >= MAX_AGE;
        let read = spawn_blocking(move || {
            // The files are listed before they are read, so that a change in between is noticed at the next interval.
            let list = |dir: &PathBuf| list(dir, MAX_DEPTH).map_err(|e| e.to_string());
            let listing: Vec<_> = directories.iter().map(list).collect();
            (is_too_old || known.as_ref() != Some(&listing)).then(|| (listing, load(Timestamp::now())))
        });
        let Ok(Some((listing, registry))) = read.await else { continue };
        (last_listing, read_at) = (Some(listing), Instant::now());
        match registry {
            Ok(registry) => {
                tracing::debug!(gatewaysecrets = registry.entries().len(), "manifests read");
                cache.publish(registry);
                check.record(CheckResult::Ok);
            }
            Err(error) => {
                cache.record_failure();
                check.record(CheckResult::Misconfigured(format!("manifests not read, the last ones stay: {error}")));
            }
        }
    }
}

type Listing = Vec<(PathBuf, u64, Option<SystemTime>)>;

fn list(dir: &Path, depth: usize) -> io::Result<Listing> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        // `..data` of a mounted ConfigMap; its files are listed through their links.
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() && depth > 0 => found.extend(list(&path, depth - 1)?),
            Ok(meta) => found.push((path, meta.len(), meta.modified().ok())),
            // Removed since the directory was listed, or a dangling link: still part of the listing.
            Err(_) => found.push((path, 0, None)),
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Requirement;
    use crate::registry::Entry;
    use crate::store::HealthState;

    /// Counts files as GatewaySecrets: one entry for each file. A file that contains `bad` is an error.
    fn count(dir: &Path) -> Result<Registry, String> {
        let mut entries = Vec::new();
        for (path, ..) in list(dir, MAX_DEPTH).map_err(|e| e.to_string())? {
            if fs::read_to_string(&path).map_err(|e| e.to_string())?.contains("bad") {
                return Err("a bad file".to_owned());
            }
            let spec = serde_json::from_str(r#"{"sourceSecretName":"r"}"#).map_err(|e| e.to_string())?;
            entries.push(Entry::unstored(String::new(), path.display().to_string(), spec));
        }
        Ok(Registry::new(entries))
    }

    async fn until(condition: impl Fn() -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(60), async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        waited.await.expect("condition not met within a minute");
    }

    #[tokio::test]
    async fn follows_changes_and_keeps_the_last_registry_on_errors() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Arc::new(RegistryCache::default());
        let path = dir.path().to_owned();
        let health = Arc::new(HealthState::default());
        let check = health.add("gatewaysecret-cache", Requirement::AtStart);
        let task = tokio::spawn(follow(vec![path.clone()], cache.clone(), check, move |_now| count(&path)));
        let result = || health.health().checks.remove(0).result;
        let known = || cache.registry().map(|r| r.entries().len());
        until(|| known() == Some(0)).await;

        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/a.yaml"), "good").unwrap();
        until(|| known() == Some(1)).await;

        fs::write(dir.path().join("b.yaml"), "bad").unwrap();
        until(|| cache.failures() > 0).await;
        assert_eq!(known(), Some(1));
        until(|| matches!(result(), CheckResult::Misconfigured(_))).await;

        fs::write(dir.path().join("b.yaml"), "good again").unwrap();
        until(|| known() == Some(2)).await;
        until(|| result().is_ok()).await;
        task.abort();
    }
}
