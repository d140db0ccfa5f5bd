//! What a pod really loads: the keys of Secrets that its containers can see.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Keys of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Every key that the Secret has.
    All,
    /// These keys.
    Only(BTreeSet<String>),
}

impl Keys {
    pub(super) fn contains(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(keys) => keys.contains(key),
        }
    }

    fn add(&mut self, other: Self) {
        match (self, other) {
            (Self::Only(keys), Self::Only(more)) => keys.extend(more),
            (this, _) => *this = Self::All,
        }
    }
}

/// Secret names to the keys that the containers and init containers of a pod load: mounted volumes (with `items` and
/// `subPath`), environment variables and `envFrom`. A volume that no container mounts loads nothing.
pub(super) fn of(pod_spec: &Value) -> BTreeMap<&str, Keys> {
    let mut loads = BTreeMap::new();
    let mut add = |name, keys| match loads.get_mut(name) {
        Some(known) => Keys::add(known, keys),
        None => drop(loads.insert(name, keys)),
    };
    for container in ["initContainers", "containers"].iter().flat_map(|list| items(&pod_spec[list])) {
        for mount in items(&container["volumeMounts"]) {
            for (name, source) in sources(pod_spec, &mount["name"]) {
                add(name, mounted(source, mount));
            }
        }
        for reference in items(&container["env"]).map(|variable| &variable["valueFrom"]["secretKeyRef"]) {
            if let (Some(name), Some(key)) = (reference["name"].as_str(), reference["key"].as_str()) {
                add(name, Keys::Only(BTreeSet::from([key.to_owned()])));
            }
        }
        for name in items(&container["envFrom"]).filter_map(|source| source["secretRef"]["name"].as_str()) {
            add(name, Keys::All);
        }
    }
    loads
}

/// The Secrets behind a volume: the name, and the source that may hold `items`.
fn sources<'a>(pod_spec: &'a Value, volume: &'a Value) -> Vec<(&'a str, &'a Value)> {
    let volumes = items(&pod_spec["volumes"]).filter(|candidate| candidate["name"] == *volume);
    let secrets = volumes.flat_map(|volume| {
        let own = std::iter::once((&volume["secret"]["secretName"], &volume["secret"]));
        let projected = items(&volume["projected"]["sources"]).map(|source| &source["secret"]);
        own.chain(projected.map(|secret| (&secret["name"], secret)))
    });
    secrets.filter_map(|(name, source)| Some((name.as_str()?, source))).collect()
}

/// The keys that a mount of a source shows. `subPath` narrows them to one file or folder.
fn mounted(source: &Value, mount: &Value) -> Keys {
    let below = mount["subPath"].as_str().filter(|path| !path.is_empty());
    let shows = |path: &str| {
        below.is_none_or(|below| path.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    match (source["items"].as_array(), below) {
        (Some(list), _) => {
            let pairs = list.iter().filter_map(|item| Some((item["key"].as_str()?, item["path"].as_str()?)));
            Keys::Only(pairs.filter(|(_, path)| shows(path)).map(|(key, _)| key.to_owned()).collect())
        }
        // Without items every key is a file of its own name.
        (None, Some(below)) => Keys::Only(BTreeSet::from([below.to_owned()])),
        (None, None) => Keys::All,
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
