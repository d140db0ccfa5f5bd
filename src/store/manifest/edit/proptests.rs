//! Properties of edits in all styles: the result has the patched value, and the inverse edit restores every byte.

use json_patch::Patch;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};

use super::super::{Chunk, Chunks, Document};
use super::Edited;

#[derive(Clone, Debug)]
enum Tree {
    Text(String, u8),
    Null(u8),
    Number(i32),
    Map(Vec<(String, Tree)>, bool),
    Seq(Vec<Tree>, bool),
}

/// Style of the text.
#[derive(Clone, Copy, Debug)]
enum Style {
    Yaml { comments: bool, crlf: bool, step: usize },
    Json { pretty: bool },
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        ("[a-z]{2,8}[-][a-z]{1,5}", 0u8..3).prop_map(|(text, quotes)| Tree::Text(text, quotes)),
        (0u8..3).prop_map(Tree::Null),
        any::<i32>().prop_map(Tree::Number),
    ];
    let deep = leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            3 => (map(inner.clone()), any::<bool>()).prop_map(|(map, flow)| Tree::Map(map, flow)),
            1 => (prop::collection::vec(inner, 0..4), any::<bool>()).prop_map(|(seq, flow)| Tree::Seq(seq, flow)),
        ]
    });
    map(deep).prop_map(|mut map| {
        map.push(("kind".to_owned(), Tree::Text("Gate-way".to_owned(), 0)));
        Tree::Map(map, false)
    })
}

fn map(inner: impl Strategy<Value = Tree>) -> impl Strategy<Value = Vec<(String, Tree)>> {
    prop::collection::btree_map("[a-z]-[a-z]{1,2}", inner, 0..5).prop_map(|map| map.into_iter().collect())
}

fn style() -> impl Strategy<Value = Style> {
    prop_oneof![
        3 => (any::<bool>(), any::<bool>(), 1usize..5)
            .prop_map(|(comments, crlf, step)| Style::Yaml { comments, crlf, step }),
        1 => any::<bool>().prop_map(|pretty| Style::Json { pretty }),
    ]
}

impl Tree {
    fn value(&self) -> Value {
        match self {
            Self::Text(text, _) => text.as_str().into(),
            Self::Null(_) => Value::Null,
            Self::Number(number) => (*number).into(),
            Self::Map(map, _) => map.iter().map(|(k, v)| (k.clone(), v.value())).collect(),
            Self::Seq(seq, _) => seq.iter().map(Self::value).collect(),
        }
    }

    fn text(&self, style: Style) -> String {
        match style {
            Style::Json { pretty: true } => format!("{:#}\n", self.value()),
            Style::Json { pretty: false } => self.value().to_string(),
            Style::Yaml { comments, crlf, step } => {
                let mut out = String::new();
                self.block(&mut out, 0, step, comments);
                if crlf { out.replace('\n', "\r\n") } else { out }
            }
        }
    }

    fn flow(&self) -> String {
        match self {
            Self::Text(text, 1) => format!("'{text}'"),
            Self::Text(text, 2) => format!("\"{text}\""),
            Self::Text(text, _) => text.clone(),
            Self::Null(1) => "~".to_owned(),
            Self::Null(_) => "null".to_owned(),
            Self::Number(number) => number.to_string(),
            Self::Map(map, _) => {
                let entries: Vec<_> = map.iter().map(|(k, v)| format!("{k}: {}", v.flow())).collect();
                format!("{{{}}}", entries.join(", "))
            }
            Self::Seq(seq, _) => format!("[{}]", seq.iter().map(Self::flow).collect::<Vec<_>>().join(", ")),
        }
    }

    /// Writes the node at a column, from the current position, and ends its last line.
    fn block(&self, out: &mut String, column: usize, step: usize, comments: bool) {
        let note = |out: &mut String, text: &str| {
            if comments && text.len().is_multiple_of(2) {
                out.push_str(" # note");
            }
            out.push('\n');
        };
        let pad = " ".repeat(column);
        match self {
            Self::Map(map, false) if !map.is_empty() => {
                for (index, (key, value)) in map.iter().enumerate() {
                    if index > 0 {
                        if comments && key.starts_with(|c| c < 'h') {
                            out.push_str(&format!("{pad}# about {key}\n"));
                        }
                        out.push_str(&pad);
                    }
                    out.push_str(&format!("{key}:"));
                    if value.is_block() {
                        note(out, key);
                        out.push_str(&" ".repeat(column + step));
                        value.block(out, column + step, step, comments);
                    } else if matches!(value, Self::Null(2)) {
                        note(out, key);
                    } else {
                        out.push_str(&format!(" {}", value.flow()));
                        note(out, key);
                    }
                }
            }
            Self::Seq(seq, false) if !seq.is_empty() => {
                for (index, item) in seq.iter().enumerate() {
                    if index > 0 {
                        out.push_str(&pad);
                    }
                    out.push_str("- ");
                    item.block(out, column + 2, step, comments);
                }
            }
            _ => {
                out.push_str(&self.flow());
                out.push('\n');
            }
        }
    }

    fn is_block(&self) -> bool {
        match self {
            Self::Map(map, flow) => !flow && !map.is_empty(),
            Self::Seq(seq, flow) => !flow && !seq.is_empty(),
            _ => false,
        }
    }
}

/// A patch with operations like those of a rewrite at the chosen positions, and its inverse.
fn patches(value: &Value, picks: &[(Index, u8)]) -> (Patch, Patch) {
    let mut positions = Vec::new();
    collect(value, &mut String::new(), &mut positions);
    let (mut forth, mut back, mut used) = (Vec::new(), Vec::new(), Vec::<String>::new());
    for (pick, form) in picks {
        let (path, at) = pick.get(&positions);
        // Operations inside or around another one would depend on its result.
        if used.iter().any(|u| {
            format!("{path}/").starts_with(&format!("{u}/")) || format!("{u}/").starts_with(&format!("{path}/"))
        }) {
            continue;
        }
        used.push(path.clone());
        let undo = "[{\"op\":\"replace\",\"path\":\"/a/0\",\"value\":\"it's\"}]";
        let new = match form % 3 {
            0 => json!({"trustspan.dev/undo": undo}),
            1 => json!({"annotations": {"trustspan.dev/undo": undo, "trustspan.dev/rotation-hash": "17-0a"}}),
            _ => json!(undo),
        };
        match at {
            Value::Object(_) => {
                forth.push(json!({"op": "add", "path": format!("{path}/NEW"), "value": new}));
                back.push(json!({"op": "remove", "path": format!("{path}/NEW")}));
            }
            Value::String(old) => {
                forth.push(json!({"op": "replace", "path": path, "value": "managed-name"}));
                back.push(json!({"op": "replace", "path": path, "value": old}));
            }
            _ => {
                let map = if new.is_object() { new } else { json!({"k": "v-w"}) };
                forth.push(json!({"op": "replace", "path": path, "value": map}));
                back.push(json!({"op": "replace", "path": path, "value": null}));
            }
        }
    }
    back.reverse();
    let patch = |ops| serde_json::from_value(Value::Array(ops)).expect("a patch");
    (patch(forth), patch(back))
}

/// Collects the positions at which a patch can be made: maps, strings, and nulls in maps.
fn collect(value: &Value, path: &mut String, positions: &mut Vec<(String, Value)>) {
    let length = path.len();
    let mut child = |step: String, child: &Value, in_map: bool, path: &mut String| {
        path.push_str(&step);
        if child.is_string() || (child.is_null() && in_map) {
            positions.push((path.clone(), child.clone()));
        }
        collect(child, path, positions);
        path.truncate(length);
    };
    match value {
        Value::Object(map) => {
            map.iter()
                .for_each(|(key, v)| child(format!("/{}", key.replace('~', "~0").replace('/', "~1")), v, true, path));
            positions.push((path.clone(), value.clone()));
        }
        Value::Array(items) => items.iter().enumerate().for_each(|(i, v)| child(format!("/{i}"), v, false, path)),
        _ => {}
    }
}

fn chunk_of(text: &str) -> Chunk {
    let mut chunks = Chunks::new("f".into(), text.as_bytes());
    let chunk = chunks.next().expect("a chunk").expect("UTF-8");
    assert!(chunks.next().is_none(), "one document: {text}");
    chunk
}

fn read(chunk: &Chunk) -> Document<'_> {
    chunk
        .parse()
        .unwrap_or_else(|e| {
            panic!(
                "{e}
{}",
                chunk.text
            )
        })
        .expect("content")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_inverse_edit_restores_the_text(
        tree in tree(),
        style in style(),
        picks in prop::collection::vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        let text = tree.text(style);
        let chunk = chunk_of(&text);
        let document = read(&chunk);
        prop_assert_eq!(document.value(), &tree.value(), "{}", text);
        let (forth, back) = patches(document.value(), &picks);
        let mut expected = tree.value();
        json_patch::patch(&mut expected, &forth).expect("applies");
        let edited = document.edit([("", &forth)]).expect("applies");
        prop_assert!(matches!(edited, Edited::InPlace(_)), "reserialised:\n{}\n{}", text, edited.text());
        let chunk = chunk_of(edited.text());
        let edited = read(&chunk);
        prop_assert_eq!(edited.value(), &expected);
        let restored = edited.edit([("", &back)]).expect("applies");
        prop_assert_eq!(restored, Edited::InPlace(text));
    }

    /// Every change has the right value, in place or reserialised.
    #[test]
    fn edits_have_the_right_value(tree in tree(), other in tree(), style in style()) {
        let chunk = chunk_of(&tree.text(style));
        let document = read(&chunk);
        let patch = json_patch::diff(&tree.value(), &other.value());
        let edited = document.edit([("", &patch)]).expect("applies");
        let chunk = chunk_of(edited.text());
        let read = read(&chunk);
        prop_assert_eq!(read.value(), &other.value());
    }

    /// Every text that parses can be edited: without a panic, and with the right value.
    #[test]
    fn any_text_can_be_edited(
        soup in r#"(a|é|k|-|: |:|,|, |\[|\]|\{|\}|'|"|\||>|&x|\*x|!!str | #c|\?|~|<<: |%|\\|\t|\r?\n|\n  |\n- |  ){1,25}"#,
        picks in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        for text in [soup.clone(), format!("k: {soup}\nz: 1\n"), format!("{{k: {soup}, z: 1}}\n"), format!("k:\n  a: 1\n  b: {soup}")] {
            let chunk = Chunks::new("f".into(), text.as_bytes()).next().expect("a chunk").expect("UTF-8");
            let Ok(Some(document)) = chunk.parse() else { continue };
            if !document.value().is_object() {
                continue;
            }
            let (forth, back) = patches(document.value(), &picks);
            let mut expected = document.value().clone();
            json_patch::patch(&mut expected, &forth).expect("applies");
            let edited = chunk_of(document.edit([("", &forth)]).expect("applies").text());
            let edited = read(&edited);
            prop_assert_eq!(edited.value(), &expected, "{}", chunk.text);
            let restored = edited.edit([("", &back)]).expect("applies");
            let restored = chunk_of(restored.text());
            let restored = restored.parse().expect("a document");
            prop_assert_eq!(restored.as_ref().map(Document::value), Some(document.value()), "{}", chunk.text);
        }
    }
}
