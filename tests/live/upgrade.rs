//! Rotations while the agent is upgraded and downgraded: an older and this version take turns, and each is killed at a random instant.

use std::{
    env, fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    kept::{self, ROTATED},
    testbed::{Seed, User, shipped},
    world::World,
};

/// Environment variable with the folder of the older version: its binary, and its CRDs.
const OLDER: &str = "TRUSTSPAN_OLDER";
/// Each agent runs for at most this long before it is killed. A step of a rotation takes about as long.
const LIVES: Duration = Duration::from_secs(6);
/// Each version has at least this many turns in a rotation.
const TURNS: usize = 2;
/// One name for all, as if one pod: an agent continues its own Lease.
const NAME: &str = "turns";

/// The folder of the older version; none without [`OLDER`].
pub(crate) fn older() -> Option<PathBuf> {
    env::var_os(OLDER).map(PathBuf::from)
}

/// One rotation. The older version begins it.
pub(crate) fn rotation(world: &mut World<'_>) -> Result<()> {
    let older = older().with_context(|| format!("no {OLDER}"))?;
    crds_are_compatible(&older)?;
    let mut seed = Seed::of_run(&format!("upgrade {}", world.notes.len()));
    let kubeconfig = world.cluster.kubeconfig(User::Agent);
    let binary = older.join("trustspan");
    let versions = [("older", Some(binary.as_path())), ("newer", None)];
    let start = |world: &mut World<'_>, (version, binary): (&str, Option<&Path>)| {
        // Killed before the other starts, as in a Deployment whose update strategy is Recreate.
        world.agent = None;
        world.step(&format!("{version} version starts in phase {}", kept::phase(world)?));
        world.agent = Some(world.agents.start_version(binary, NAME, &kubeconfig)?);
        anyhow::Ok(())
    };
    start(world, versions[0])?;
    kept::begin(world)?;
    let mut phases = vec![kept::phase(world)?];
    let limit = ROTATED.as_secs() / LIVES.as_secs() * 2;
    for turn in versions.iter().cycle().skip(1) {
        sleep(Duration::from_millis(seed.below(u64::try_from(LIVES.as_millis())?)));
        let phase = kept::phase(world)?;
        if phase == "Steady" {
            break;
        }
        ensure!((phases.len() as u64) < limit, "phase {phase} after {limit} turns: {}", phases.join(", "));
        start(world, *turn)?;
        phases.push(phase);
    }
    ensure!(phases.len() > 2 * TURNS, "{} turns in a rotation: expected more than {}", phases.len(), 2 * TURNS);
    kept::wait_steady(world)?;
    start(world, versions[1])?;
    world.notes.push(format!("  turns of the older and the newer version began in: {}", phases.join(", ")));
    Ok(())
}

/// The older version's objects fit the schemas of this one.
fn crds_are_compatible(older: &Path) -> Result<()> {
    let file = older.join("crd.yaml");
    let older = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let read = |text: &str| anyhow::Ok(serde_saphyr::from_multiple::<Value>(text)?);
    let (older, newer) = (read(&older)?, read(&shipped("crd.yaml")?)?);
    let mut broken = Vec::new();
    for crd in &older {
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        let Some(now) = newer.iter().find(|now| now["metadata"]["name"] == name) else {
            broken.push(format!("{name} is gone"));
            continue;
        };
        let versions = |crd: &Value| crd["spec"]["versions"].as_array().cloned().unwrap_or_default();
        for version in versions(crd) {
            let path = format!("{name} {}", version["name"]);
            match versions(now).iter().find(|now| now["name"] == version["name"] && now["served"] == true) {
                Some(now) => {
                    let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
                    tightened(&schema(&version), &schema(now), &path, &mut broken);
                }
                None => broken.push(format!("{path} is not served")),
            }
        }
    }
    ensure!(!older.is_empty() && broken.is_empty(), "not compatible with {}: {broken:#?}", file.display());
    Ok(())
}

/// What an object of the older schema may have, and the newer schema rejects or drops.
fn tightened(older: &Value, newer: &Value, path: &str, broken: &mut Vec<String>) {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let number = |value: &Value| value.as_f64();
    if older["type"] != newer["type"] || older["pattern"] != newer["pattern"] || older["format"] != newer["format"] {
        broken.push(format!("{path} has another type, format or pattern"));
    }
    for bound in ["maximum", "maxLength", "maxItems", "maxProperties"] {
        if number(&newer[bound]).is_some_and(|now| number(&older[bound]).is_none_or(|before| now < before)) {
            broken.push(format!("{path} has a lower {bound}"));
        }
    }
    for bound in ["minimum", "minLength", "minItems", "minProperties"] {
        if number(&newer[bound]).is_some_and(|now| number(&older[bound]).is_none_or(|before| now > before)) {
            broken.push(format!("{path} has a higher {bound}"));
        }
    }
    for required in list(&newer["required"]) {
        if !list(&older["required"]).contains(&required) {
            broken.push(format!("{path} requires {required}"));
        }
    }
    for value in list(&older["enum"]) {
        if !list(&newer["enum"]).contains(&value) && !newer["enum"].is_null() {
            broken.push(format!("{path} does not allow {value}"));
        }
    }
    let rules = |schema: &Value| list(&schema["x-kubernetes-validations"]).into_iter().map(|one| one["rule"].clone());
    for rule in rules(newer).filter(|rule| !rules(older).any(|before| before == *rule)) {
        broken.push(format!("{path} has a new rule: {rule}"));
    }
    for (field, before) in older["properties"].as_object().into_iter().flatten() {
        match newer["properties"].get(field) {
            Some(now) => tightened(before, now, &format!("{path}.{field}"), broken),
            None => broken.push(format!("{path}.{field} is gone")),
        }
    }
    for inner in ["items", "additionalProperties"] {
        if older[inner].is_object() {
            tightened(&older[inner], &newer[inner], &format!("{path}[]"), broken);
        }
    }
}
