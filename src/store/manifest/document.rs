//! A document that was read, and the objects in it.

use std::borrow::Cow;

use serde_json::Value;

use super::tree::{Node, Shape, compose};
use super::{Chunk, ManifestError};

/// A document: its text, its value, and where each node of the value stands in the text.
#[derive(Debug)]
pub struct Document<'c> {
    pub(super) chunk: &'c Chunk,
    pub(super) value: Value,
    pub(super) root: Node,
}

/// A Kubernetes object: a document, or an item of a List.
#[derive(Debug)]
pub struct Object<'d> {
    /// JSON pointer from the document's value to the object: empty, or `/items/N`.
    pub pointer: String,
    /// Line of the source on which it begins.
    pub line: usize,
    /// `file:line`.
    pub source: String,
    /// The object. An item of a typed list (`SecretList`) gets the kind that the list implies.
    pub value: Cow<'d, Value>,
}

impl Chunk {
    /// Reads the text; `None` for a document that holds nothing but comments.
    ///
    /// # Errors
    /// When the text is not YAML (of which JSON is a part), or not a map.
    pub fn parse(&self) -> Result<Option<Document<'_>>, ManifestError> {
        let fail = |at: usize, seen| ManifestError::Syntax {
            source_name: self.source_name.to_string(),
            line: self.line + at.max(1) - 1,
            seen,
        };
        match compose(&self.text) {
            Ok(Some((value @ (Value::Object(_) | Value::Null), root))) => {
                Ok(Some(Document { chunk: self, value, root }))
            }
            Ok(Some((value, root))) => {
                let seen = match value {
                    Value::Array(_) => "a sequence",
                    Value::String(_) => "a string",
                    _ => "a single value",
                };
                Err(fail(root.line, format!("{seen}; expected a Kubernetes object, with apiVersion and kind")))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(fail(error.line, error.seen)),
        }
    }
}

impl Document<'_> {
    /// Line of the source on which its content begins.
    pub fn line(&self) -> usize {
        self.chunk.line + self.root.line - 1
    }

    /// The whole document.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Its objects: a List's items, those of Lists among them too, or the document itself. None when it has no `kind`.
    pub fn objects(&self) -> impl Iterator<Item = Object<'_>> {
        let mut found = Vec::new();
        self.collect(String::new(), Cow::Borrowed(&self.value), &self.root, &mut found);
        found.into_iter()
    }

    /// Recursion is bounded by the depth that a document may have.
    fn collect<'d>(&'d self, pointer: String, value: Cow<'d, Value>, node: &'d Node, found: &mut Vec<Object<'d>>) {
        let kind = text(&value["kind"]);
        if kind.is_empty() {
            return;
        }
        let Some(item_kind) = kind.strip_suffix("List").filter(|_| value["items"].is_array()) else {
            return found.push(self.object(pointer, node.line, value));
        };
        let nodes = match &node.shape {
            Shape::Mapping { entries, .. } => entries.iter().find(|entry| entry.key.as_deref() == Some("items")),
            _ => None,
        };
        let node_of = |index: usize| match nodes.map(|entry| &entry.node.shape) {
            Some(Shape::Sequence { items }) => items.get(index).unwrap_or(node),
            _ => node,
        };
        let implied = |item: &mut Cow<'d, Value>| {
            if item.is_object() && item.get("kind").is_none() && !item_kind.is_empty() {
                item.to_mut()["kind"] = item_kind.into();
                item.to_mut()["apiVersion"] = value["apiVersion"].clone();
            }
        };
        let items: Vec<Cow<'d, Value>> = match &value {
            Cow::Borrowed(list) => list["items"].as_array().into_iter().flatten().map(Cow::Borrowed).collect(),
            Cow::Owned(list) => list["items"].as_array().into_iter().flatten().cloned().map(Cow::Owned).collect(),
        };
        for (index, mut item) in items.into_iter().enumerate() {
            implied(&mut item);
            self.collect(format!("{pointer}/items/{index}"), item, node_of(index), found);
        }
    }

    fn object<'d>(&'d self, pointer: String, line: usize, value: Cow<'d, Value>) -> Object<'d> {
        let line = self.chunk.line + line - 1;
        Object { pointer, line, source: format!("{}:{line}", self.chunk.source_name), value }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::Chunks;

    fn objects(text: &str) -> Vec<(String, String, String)> {
        let mut all = Vec::new();
        for chunk in Chunks::new("f".into(), text.as_bytes()) {
            if let Some(document) = chunk.expect("a chunk").parse().expect("a document") {
                all.extend(document.objects().map(|o| {
                    (o.source, o.pointer, format!("{} {}", super::text(&o.value["kind"]), o.value["metadata"]["name"]))
                }));
            }
        }
        all
    }

    fn at(source: &str, pointer: &str, kind: &str) -> (String, String, String) {
        (source.to_owned(), pointer.to_owned(), kind.to_owned())
    }

    #[test]
    fn objects_know_their_lines() {
        assert_eq!(
            objects("# c\n\nkind: A\nmetadata: {name: a}\n---\n---\n# c\nkind: B\n--- {kind: C}\n--- ~\n---\nx: 1\n"),
            [at("f:3", "", "A \"a\""), at("f:8", "", "B null"), at("f:9", "", "C null")]
        );
    }

    #[test]
    fn lists_are_opened() {
        assert_eq!(
            objects("apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: A\n-\n  kind: B\nkind: List\n"),
            [at("f:3", "/items/0", "A null"), at("f:6", "/items/1", "B null")]
        );
        assert_eq!(
            objects("{\"kind\":\"SecretList\",\"apiVersion\":\"v1\",\"items\":[\n{\"metadata\":{\"name\":\"s\"}}]}\n"),
            [at("f:2", "/items/0", "Secret \"s\"")]
        );
        assert_eq!(objects("kind: List\nitems: []\n"), []);
        assert_eq!(
            objects("kind: List\nitems:\n- kind: List\n  items:\n  - kind: A\n  - kind: B\n- kind: C\n"),
            [
                at("f:5", "/items/0/items/0", "A null"),
                at("f:6", "/items/0/items/1", "B null"),
                at("f:7", "/items/1", "C null"),
            ]
        );
    }

    #[test]
    fn errors_name_file_and_line() {
        for (text, message) in [
            ("a: 1\n---\nb: [\n", "f:"),
            ("\n- a\n", "f:2: a sequence; expected a Kubernetes object, with apiVersion and kind"),
            ("a: 1\n---\na: 1\na: 2\n", "f:4: the key \"a\" a second time in one map"),
        ] {
            let error = Chunks::new("f".into(), text.as_bytes())
                .find_map(|chunk| chunk.and_then(|c| c.parse().map(drop)).err())
                .expect("an error");
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
}
