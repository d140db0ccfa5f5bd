//! Target: a stream of manifests. Each document is checked and rewritten, as `check` and `rewrite` do.

use std::{path::Path, sync::LazyLock};

use json_patch::Patch;
use serde_json::Value;
use trustspan::admission::{self, Context, Decision, Request};
use trustspan::json::Json;
use trustspan::registry::Registry;
use trustspan::rewrite::undo;
use trustspan::rotation::{Inventory, Outlook};
use trustspan::store::directory::{self, entry, is_gateway_secret};
use trustspan::store::manifest::{Chunk, Chunks, Document, open};
use trustspan::trust::Severities;

use crate::{
    draw::Draw,
    json::{TEXTS, object},
    mutate::mutate,
    review::registry,
};

const NAMESPACE: &str = "istio-system";

pub(crate) fn case(draw: &mut Draw) {
    let text = text(draw);
    draw.show("stream.yaml", &text);
    let chunks = chunks(&text);
    if std::str::from_utf8(&text).is_ok() {
        let joined: String =
            chunks.iter().map(|c| if c.bom { "\u{feff}".to_owned() } else { String::new() } + &c.text).collect();
        assert_eq!(joined.as_bytes(), text, "the chunks are not the stream");
    }
    judge(&chunks);
    chunks.iter().for_each(rewritten);
}

/// Splits a stream into its documents.
pub(crate) fn chunks(text: &[u8]) -> Vec<Chunk> {
    Chunks::new("stream".into(), text).filter_map(Result::ok).collect()
}

fn text(draw: &mut Draw) -> Vec<u8> {
    if draw.one_in(6) {
        return draw.rest();
    }
    let mut text = Vec::new();
    for _ in 0..=draw.below(3) {
        match draw.below(4) {
            0 => text.extend(format!("{:#}\n", object(draw)).into_bytes()),
            1 => text.extend(object(draw).to_string().into_bytes()),
            2 => text.extend(serde_saphyr::to_string(&object(draw)).unwrap_or_default().into_bytes()),
            _ => text.extend(draw.of(&TEXTS).as_bytes()),
        }
        text.extend(draw.of(&["\n---\n", "", "\n", "\n...\n", "\n--- # next\n"]).as_bytes());
        // Mutations of PEM rarely matter to a YAML parser; these do.
        for _ in 0..draw.below(4) {
            let piece = *draw.of(&PIECES);
            let at = draw.below(text.len() as u64 + 1) as usize;
            text.splice(at..at, piece.bytes());
        }
    }
    let count = draw.below(3);
    mutate(&mut text, count, draw);
    text
}

const PIECES: [&str; 26] = [
    "---\n",
    "...\n",
    "- ",
    ": ",
    "? ",
    "&a ",
    "*a",
    "<<: *a",
    "!!str ",
    "!x ",
    "|",
    ">-\n",
    "|2\n",
    "\"",
    "'",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "#",
    "%YAML 1.2\n",
    "\t",
    "\r",
    "\u{feff}",
    "~",
];

/// Reads the documents as `check` does: first the cluster that they describe, then each object.
pub(crate) fn judge(chunks: &[Chunk]) {
    let now = jiff::Timestamp::now();
    let documents: Vec<_> = chunks.iter().filter_map(|chunk| chunk.parse().ok().flatten()).collect();
    let objects = || documents.iter().flat_map(Document::objects);
    let entries = objects().filter(|o| is_gateway_secret(&o.value)).filter_map(|o| entry(&o.value, NAMESPACE).ok());
    let mut inventory = Inventory::new(entries);
    objects().for_each(|object| inventory.take(&object.value, NAMESPACE, now));
    let context = Context::new(inventory, Outlook::Whole, now);
    for object in objects() {
        let findings = admission::check(&Json::from(&*object.value), NAMESPACE, &context, now).unwrap_or_default();
        assert!(findings.iter().all(|finding| !finding.message.is_empty()));
    }
}

/// The same as [`judge`], for a file, with the reader of `check`.
pub(crate) fn judge_file(path: &Path) {
    let now = jiff::Timestamp::now();
    let sources = open(&[path.to_owned()]).expect("a file");
    let collected = directory::collect(&sources, NAMESPACE, &Severities::default(), now);
    let context = Context::new(collected.inventory, Outlook::Whole, now);
    for source in &sources {
        for chunk in source.chunks().expect("a file").flatten() {
            let Ok(document) = chunk.parse() else { continue };
            for object in document.iter().flat_map(Document::objects) {
                admission::check(&Json::from(&*object.value), NAMESPACE, &context, now);
            }
        }
    }
}

static REGISTRY: LazyLock<Registry> = LazyLock::new(registry);

/// Rewrites a document, once.
pub(crate) fn rewrite(chunk: &Chunk) {
    let Ok(Some(document)) = chunk.parse() else { return };
    let patches = document.objects().map(|o| (o.pointer(), decided(&o.value, &REGISTRY).patch.parse()));
    let patches: Vec<_> = patches.filter(|(_, patch)| !patch.0.is_empty()).collect();
    if patches.is_empty() {
        return;
    }
    let _ = document.edit(patches.iter().map(|(pointer, patch)| (pointer.as_str(), patch)));
}

/// Rewrites a document, and undoes the rewrite.
fn rewritten(chunk: &Chunk) {
    let Some(patched) = edited(chunk, |object| Some(decided(object, &REGISTRY).patch.parse())) else { return };
    edited(&patched, |object| undo(&Json::from(object)).map(|undo| undo.patch));
    let again = edited(&patched, |object| Some(decided(object, &REGISTRY).patch.parse()));
    assert!(again.is_none(), "rewritten a second time");
}

fn decided(object: &Value, registry: &Registry) -> Decision {
    let object = &Json::from(object);
    let request = Request::create(object, object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE));
    admission::mutate(&request, registry, jiff::Timestamp::now())
}

/// Applies patches to the text of a document, and compares the result with the patched value. `None` if no patch
/// changes it.
fn edited(chunk: &Chunk, patch: impl Fn(&Value) -> Option<Patch>) -> Option<Chunk> {
    let document = chunk.parse().ok()??;
    let patches: Vec<_> = document.objects().filter_map(|o| Some((o.pointer(), patch(&o.value)?))).collect();
    let patches: Vec<_> = patches.into_iter().filter(|(_, patch)| !patch.0.is_empty()).collect();
    if patches.is_empty() {
        return None;
    }
    let mut target = document.value().clone();
    for (pointer, patch) in &patches {
        json_patch::patch(target.pointer_mut(pointer).expect("its object"), patch).expect("the patch applies");
    }
    let edited = document.edit(patches.iter().map(|(pointer, patch)| (pointer.as_str(), patch))).expect("an edit");
    let mut again = Chunks::new("edited".into(), edited.text().as_bytes());
    let first = again.next().expect("a document").expect("a text");
    assert!(again.next().is_none(), "more documents than before");
    assert_eq!(first.parse().expect("YAML").expect("an object").value(), &target, "the text reads otherwise");
    Some(first)
}
