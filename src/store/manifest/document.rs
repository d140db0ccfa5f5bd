//! A parsed document and its objects.

use std::borrow::Cow;
use std::rc::Rc;

use serde_json::Value;

use super::tree::{Shape, Tree, YamlNode, compose, fields};
use super::{Chunk, ManifestError};

/// A document: its text, its value, and the position of each node in the text.
#[derive(Debug)]
pub struct Document<'c> {
    pub(super) chunk: &'c Chunk,
    pub(super) tree: &'c Tree,
}

/// A Kubernetes object: a document, or an item of a List.
#[derive(Debug)]
pub struct Object<'d> {
    /// First line in the source.
    pub line: usize,
    /// The object. Items of a typed list (`SecretList`) get the kind that the list implies.
    pub value: Cow<'d, Value>,
    chunk: &'d Chunk,
    /// JSON pointer of its list, and its index.
    list_item: Option<(Rc<str>, usize)>,
}

impl Object<'_> {
    /// JSON pointer from the document's value to the object: empty, or `/items/N`.
    pub fn pointer(&self) -> String {
        self.list_item.as_ref().map(|(list, index)| format!("{list}/{index}")).unwrap_or_default()
    }

    /// Path of the file, or `stdin`.
    pub fn file(&self) -> &str {
        &self.chunk.source_name
    }

    /// `file:line`.
    pub fn source(&self) -> String {
        format!("{}:{}", self.chunk.source_name, self.line)
    }
}

/// An object without copies: a hostile List has hundreds of thousands of items.
struct FoundObject<'d> {
    value: &'d Value,
    node: &'d YamlNode,
    list_item: Option<(Rc<str>, usize)>,
    /// Kind and `apiVersion` that a typed list implies for an item that has none.
    implied: Option<(&'d str, &'d Value)>,
}

impl Chunk {
    /// Parses the text, once; `None` for a document with nothing but comments.
    ///
    /// # Errors
    /// When the text is not YAML (of which JSON is a part), or not a map.
    pub fn parse(&self) -> Result<Option<Document<'_>>, ManifestError> {
        let fail = |at: usize, found| ManifestError::Syntax {
            source_name: self.source_name.to_string(),
            line: self.line + at.max(1) - 1,
            found,
        };
        let tree = match self.composed.get_or_init(|| compose(&self.text)) {
            Ok(Some(tree)) => tree,
            Ok(None) => return Ok(None),
            Err(error) => return Err(fail(error.line, error.found.clone())),
        };
        let found = match tree.value {
            Value::Object(_) | Value::Null => return Ok(Some(Document { chunk: self, tree })),
            Value::Array(_) => "a sequence",
            Value::String(_) => "a string",
            _ => "a single value",
        };
        Err(fail(tree.root.line, format!("{found}; expected a Kubernetes object, with apiVersion and kind")))
    }
}

impl Document<'_> {
    /// First line of the content in the source.
    pub fn line(&self) -> usize {
        self.chunk.line + self.tree.root.line - 1
    }

    /// The whole document.
    pub fn value(&self) -> &Value {
        &self.tree.value
    }

    /// The items of a List (and of nested Lists), or the document itself. None of those that have neither `kind`, `apiVersion` nor `metadata`:
    /// a directory of manifests has other YAML files, too.
    pub fn objects(&self) -> impl Iterator<Item = Object<'_>> {
        let mut found = Vec::new();
        collect(
            FoundObject { value: &self.tree.value, node: &self.tree.root, list_item: None, implied: None },
            &mut found,
        );
        found.into_iter().map(|found| self.object(found))
    }

    fn object<'d>(&'d self, FoundObject { value, node, list_item, implied }: FoundObject<'d>) -> Object<'d> {
        let mut value = Cow::Borrowed(value);
        if let Some((kind, api_version)) = implied {
            let fields = value.to_mut();
            fields["kind"] = kind.into();
            fields["apiVersion"] = api_version.clone();
        }
        Object { line: self.chunk.line + node.line - 1, value, chunk: self.chunk, list_item }
    }
}

/// The recursion is limited by the depth that a document may have.
fn collect<'d>(one: FoundObject<'d>, found: &mut Vec<FoundObject<'d>>) {
    let FoundObject { value, node, .. } = one;
    let (kind, api_version) = one.implied.unwrap_or_else(|| (text(&value["kind"]), &value["apiVersion"]));
    let Some((item_kind, items)) = kind.strip_suffix("List").zip(value["items"].as_array()) else {
        if !kind.is_empty() || ["apiVersion", "metadata"].iter().any(|field| value.get(field).is_some()) {
            found.push(one);
        }
        return;
    };
    let nodes = match (&node.shape, value) {
        (Shape::Mapping { entries, .. }, Value::Object(map)) => {
            fields(entries, map).find(|(_, field)| field.is_some_and(|(key, _)| key == "items"))
        }
        _ => None,
    };
    let nodes = match nodes.map(|(entry, _)| &entry.node.shape) {
        Some(Shape::Sequence { items }) => items.as_slice(),
        _ => &[],
    };
    let pointer: Rc<str> = one.list_item.map_or("/items".into(), |(list, at)| format!("{list}/{at}/items").into());
    for (index, value) in items.iter().enumerate() {
        let kindless = value.as_object().is_some_and(|item| !item.contains_key("kind"));
        let implied = (kindless && !item_kind.is_empty()).then_some((item_kind, api_version));
        let list_item = Some((Rc::clone(&pointer), index));
        collect(FoundObject { value, node: nodes.get(index).unwrap_or(node), list_item, implied }, found);
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
                    (
                        o.source(),
                        o.pointer(),
                        format!("{} {}", super::text(&o.value["kind"]), o.value["metadata"]["name"]),
                    )
                }));
            }
        }
        all
    }

    fn at(source: &str, pointer: &str, kind: &str) -> (String, String, String) {
        (source.to_owned(), pointer.to_owned(), kind.to_owned())
    }

    #[test]
    fn objects_have_their_lines() {
        assert_eq!(
            objects("# c\n\nkind: A\nmetadata: {name: a}\n---\n---\n# c\nkind: B\n--- {kind: C}\n--- ~\n---\nx: 1\n"),
            [at("f:3", "", "A \"a\""), at("f:8", "", "B null"), at("f:9", "", "C null")]
        );
    }

    #[test]
    fn lists_are_flattened() {
        assert_eq!(
            objects("apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: A\n-\n  kind: B\nkind: List\n"),
            [at("f:3", "/items/0", "A null"), at("f:6", "/items/1", "B null")]
        );
        assert_eq!(
            objects("{\"kind\":\"SecretList\",\"apiVersion\":\"v1\",\"items\":[\n{\"metadata\":{\"name\":\"s\"}}]}\n"),
            [at("f:2", "/items/0", "Secret \"s\"")]
        );
        assert_eq!(objects("kind: List\nitems: []\n"), []);
        assert_eq!(objects("apiVersion: v1\nmetadata: {name: a}\n"), [at("f:1", "", " \"a\"")], "without kind");
        assert_eq!(objects("kind: SecretList\nitems: [~, {}]\n"), [at("f:2", "/items/1", "Secret null")]);
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
            ("a: 1\n---\na: 1\na: 2\n", "f:4: a second key \"a\" in the same map"),
        ] {
            let error = Chunks::new("f".into(), text.as_bytes())
                .find_map(|chunk| chunk.and_then(|c| c.parse().map(drop)).err())
                .expect("an error");
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
}
