//! Values that resemble Kubernetes objects.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use trustspan::store::manifest::Chunks;

use crate::{draw::Draw, mutate::mutate as mutate_text, pool::POOL, testbed::ROOT};

/// The texts of the corpus, and the shipped manifests.
pub(crate) static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let folders = ["tests/fuzz/corpus", "manifests/example", "manifests/base", "manifests/reviews"];
    let files = folders.iter().flat_map(|folder| {
        let folder = Path::new(ROOT).join(folder);
        let mut files: Vec<_> =
            fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
        files.sort();
        files
    });
    files.map(|file| fs::read_to_string(file).expect("a text")).collect()
});

/// The objects in these texts.
static OBJECTS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let chunks = TEXTS.iter().flat_map(|text| Chunks::new("corpus".into(), text.as_bytes()));
    let parsed = chunks.map(|chunk| chunk.expect("a chunk"));
    let objects = parsed.flat_map(|chunk| {
        let document = chunk.parse().ok().flatten();
        document.iter().flat_map(|d| d.objects().map(|o| o.value.into_owned()).collect::<Vec<_>>()).collect::<Vec<_>>()
    });
    objects.collect()
});

/// Longer texts are not repeated by a mutation, since repeated repetition would fill the memory.
const LARGE: usize = 2 << 20;
/// Names of Secrets that the example's GatewaySecret uses, and one that it does not.
const NAMES: [&str; 6] = ["gateway-root", "public-gateway", "public-gateway-cacert", "client", "stranger", ""];
/// Keys that trustspan reads.
const KEYS: [&str; 24] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "generateName",
    "annotations",
    "labels",
    "deletionTimestamp",
    "ownerReferences",
    "data",
    "stringData",
    "type",
    "spec",
    "servers",
    "tls",
    "credentialName",
    "template",
    "volumes",
    "containers",
    "trustspan.dev/undo",
    "trustspan.dev/rewrite",
    "trustspan.dev/managed",
    "trustspan.dev/rotation-hash",
];

/// A random object: from the corpus, or a Secret, with a few changes.
pub(crate) fn object(draw: &mut Draw) -> Value {
    let mut object = if draw.one_in(2) { secret(draw) } else { draw.of(&OBJECTS).clone() };
    if draw.one_in(2) {
        object["metadata"]["namespace"] = json!("istio-system");
    }
    for _ in 0..draw.below(5) {
        change(&mut object, draw);
    }
    object
}

/// A Secret with mutated content.
fn secret(draw: &mut Draw) -> Value {
    let mut data = serde_json::Map::new();
    for _ in 0..draw.below(4) {
        let key = *draw.of(&["ca.crt", "tls.crt", "tls.key", "cacert", "cert", "key", "ca.crl", "other"]);
        let mut text = POOL.text(draw, 4).into_bytes();
        let count = draw.below(3);
        mutate_text(&mut text, count, draw);
        data.insert(key.to_owned(), json!(STANDARD.encode(text)));
    }
    let name = *draw.of(&NAMES);
    let labels = match draw.below(4) {
        0 => json!({"trustspan.dev/managed": "true"}),
        1 => json!({"trustspan.dev/client": "public-gateway"}),
        2 => json!({}),
        _ => Value::Null,
    };
    let metadata = json!({"name": name, "namespace": "istio-system", "labels": labels});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
}

/// Changes one value in the object.
pub(crate) fn change(value: &mut Value, draw: &mut Draw) {
    let deeper = draw.below(5) > 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let at = draw.below(map.len() as u64) as usize;
            if let Some((_, below)) = map.iter_mut().nth(at) {
                return change(below, draw);
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = draw.below(items.len() as u64) as usize;
            return change(&mut items[at], draw);
        }
        _ => {}
    }
    if draw.one_in(2) {
        return *value = odd(draw);
    }
    match value {
        Value::Object(map) => {
            let at = draw.below(map.len() as u64 + 1) as usize;
            match map.keys().nth(at).cloned() {
                Some(key) if draw.one_in(2) => drop(map.shift_remove(&key)),
                _ => drop(map.insert((*draw.of(&KEYS)).to_owned(), odd(draw))),
            }
        }
        Value::Array(items) => match draw.below(3) {
            0 => drop(items.pop()),
            1 => items.extend(items.clone()),
            _ => items.push(odd(draw)),
        },
        Value::String(text) => match draw.below(3) {
            0 => {
                let tail = *draw.of(&["\0", "\n", "/", "~1", "é", "\u{feff}", "://", " ", "\""]);
                text.push_str(tail);
            }
            1 => *text = text.repeat((1 + draw.below(300) as usize).min(LARGE / text.len().max(1)).max(1)),
            _ => *text = (*draw.of(&NAMES)).to_owned(),
        },
        other => *other = json!([other]),
    }
}

fn odd(draw: &mut Draw) -> Value {
    match draw.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(u64::MAX),
        4 => json!(1.0e300),
        5 => json!(""),
        6 => json!([]),
        7 => json!({}),
        8 => json!(*draw.of(&NAMES)),
        9 => json!(*draw.of(&KEYS)),
        10 => {
            let depth = draw.below(120);
            (0..depth).fold(json!("deep"), |inner, _| json!({ "metadata": inner }))
        }
        11 => json!("2020-01-01T00:00:00Z"),
        12 => json!(r#"{"patch":[{"op":"replace","path":"/spec","value":null}]}"#),
        _ => draw.of(&OBJECTS).clone(),
    }
}
