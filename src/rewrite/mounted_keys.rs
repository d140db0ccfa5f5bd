//! The keys of Secrets that the containers of a pod load.

use std::collections::{BTreeMap, BTreeSet};

use crate::json::Json;

/// A set of keys of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keys<'a> {
    /// Every key that the Secret has.
    All,
    /// These keys.
    Only(BTreeSet<&'a str>),
}

impl Keys<'_> {
    pub(super) fn contains(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(keys) => keys.contains(key),
        }
    }
}

/// The keys of each Secret that the containers and init containers of a pod load: mounted volumes (with `items` and
/// `subPath`), environment variables and `envFrom`. A volume that no container mounts loads nothing.
pub(super) fn of<'a>(pod_spec: &'a Json<'a>) -> BTreeMap<&'a str, Keys<'a>> {
    let volumes = volumes(pod_spec);
    let (mut pairs, mut loads) = (0, MountedKeys::default());
    for container in ["initContainers", "containers"].iter().flat_map(|list| items(&pod_spec[*list])) {
        for mount in items(&container["volumeMounts"]) {
            for &(name, source) in mount["name"].as_str().and_then(|name| volumes.get(name)).into_iter().flatten() {
                if pairs > PAIRS {
                    break;
                }
                pairs += 1 + source["items"].as_array().map_or(0, <[_]>::len);
                loads.mounted(name, source, mount);
            }
        }
        for reference in items(&container["env"]).map(|variable| &variable["valueFrom"]["secretKeyRef"]) {
            if let (Some(name), Some(key)) = (reference["name"].as_str(), reference["key"].as_str()) {
                loads.some(name, [key]);
            }
        }
        for name in items(&container["envFrom"]).filter_map(|source| source["secretRef"]["name"].as_str()) {
            loads.all(name);
        }
    }
    if pairs > PAIRS {
        // A hostile pod exceeds the limit. All keys then count as loaded.
        volumes.values().flatten().for_each(|(name, _)| loads.all(name));
    }
    loads.0
}

/// Limit of the mounts times the sources and their items of a pod. A pod has about ten of each.
const PAIRS: usize = 10_000;

/// The Secrets of each volume: the name, and the source, which may have `items`.
fn volumes<'a>(pod_spec: &'a Json<'a>) -> BTreeMap<&'a str, Vec<(&'a str, &'a Json<'a>)>> {
    let mut volumes: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for volume in items(&pod_spec["volumes"]) {
        let own = std::iter::once((&volume["secret"]["secretName"], &volume["secret"]));
        let projected = items(&volume["projected"]["sources"]).map(|source| &source["secret"]);
        let secrets = own.chain(projected.map(|secret| (&secret["name"], secret)));
        let named = secrets.filter_map(|(name, source)| Some((name.as_str()?, source)));
        volumes.entry(volume["name"].as_str().unwrap_or_default()).or_default().extend(named);
    }
    volumes
}

#[derive(Default)]
struct MountedKeys<'a>(BTreeMap<&'a str, Keys<'a>>);

impl<'a> MountedKeys<'a> {
    fn all(&mut self, name: &'a str) {
        self.0.insert(name, Keys::All);
    }

    fn some(&mut self, name: &'a str, keys: impl IntoIterator<Item = &'a str>) {
        if let Keys::Only(known) = self.0.entry(name).or_insert(Keys::Only(BTreeSet::new())) {
            known.extend(keys);
        }
    }

    /// Adds the keys of a source that a mount contains. `subPath` limits them to one file or folder.
    fn mounted(&mut self, name: &'a str, source: &'a Json<'a>, mount: &'a Json<'a>) {
        let below = mount["subPath"].as_str().filter(|path| !path.is_empty());
        let shows = |path: &str| {
            below.is_none_or(|below| {
                path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        match (source["items"].as_array(), below) {
            (Some(list), _) => {
                let pairs = list.iter().filter_map(|item| Some((item["key"].as_str()?, item["path"].as_str()?)));
                self.some(name, pairs.filter(|(_, path)| shows(path)).map(|(key, _)| key));
            }
            // Without items each key is a file of the same name.
            (None, Some(below)) => self.some(name, [below]),
            (None, None) => self.all(name),
        }
    }
}

fn items<'a>(value: &'a Json<'a>) -> impl Iterator<Item = &'a Json<'a>> {
    value.as_array().into_iter().flatten()
}
