//! Edits a document's text: everything that a patch does not touch stays as it is, byte for byte.
//!
//! The patches are applied to the value, and the new value is compared with the old one along the tree of nodes, so the
//! cost does not grow with the number of operations. The result is parsed again and compared. Where the text cannot be
//! edited (for example, an anchor whose other aliases must not change), the document is reserialised.

mod layout;
#[cfg(test)]
mod proptests;

use json_patch::Patch;
use serde_json::Value;

use super::tree::compose;
use super::{Document, ManifestError};
use layout::Layout;

/// A document's text after patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edited {
    /// Edited in place.
    InPlace(String),
    /// Reserialised: comments and layout are lost.
    Reserialized(String),
}

impl Edited {
    /// The text.
    pub fn text(&self) -> &str {
        match self {
            Self::InPlace(text) | Self::Reserialized(text) => text,
        }
    }
}

impl Document<'_> {
    /// Applies patches, each to the object at a JSON pointer (see [`super::Object::pointer`]).
    ///
    /// # Errors
    /// When a patch does not apply.
    pub fn edit<'p>(&self, patches: impl IntoIterator<Item = (&'p str, &'p Patch)>) -> Result<Edited, ManifestError> {
        let mut target = self.tree.value.clone();
        for (pointer, patch) in patches {
            if let Some(object) = target.pointer_mut(pointer) {
                // After an error the partly patched value is discarded.
                json_patch::patch_unsafe(object, patch).map_err(|cause| ManifestError::Patch {
                    source_name: self.chunk.source_name.to_string(),
                    line: self.line(),
                    cause,
                })?;
            }
        }
        let in_place = Layout::new(&self.chunk.text, &self.tree.root).edit(&self.tree.root, &self.tree.value, &target);
        Ok(match in_place.filter(|text| reads_as(text, &target)) {
            Some(text) => Edited::InPlace(text),
            None => Edited::Reserialized(self.reserialized(&target)),
        })
    }

    fn reserialized(&self, target: &Value) -> String {
        let text = &self.chunk.text;
        let layout = Layout::new(text, &self.tree.root);
        let end = if text.ends_with('\n') { layout.eol } else { "" };
        if layout.json {
            let marker = if text.starts_with("---") { format!("---{}", layout.eol) } else { String::new() };
            return match layout.compact {
                true => format!("{marker}{target}{end}"),
                false => format!("{marker}{target:#}{end}"),
            };
        }
        let lines = |text: &str| text.lines().any(|line| line.trim_end() == "...");
        let tail = if lines(text) { "...\n" } else { "" };
        let start = if text.lines().any(|line| line.starts_with("---")) { "---\n" } else { "" };
        let yaml = serde_saphyr::to_string(target)
            .map(|yaml| format!("{start}{}\n{tail}", yaml.trim_end()))
            .ok()
            .filter(|yaml| reads_as(yaml, target));
        // JSON is unambiguous YAML.
        yaml.unwrap_or_else(|| format!("{start}{target:#}\n{tail}"))
    }
}

fn reads_as(text: &str, target: &Value) -> bool {
    // Parsing JSON as JSON is faster.
    let json = || serde_json::from_str::<Value>(text).is_ok_and(|value| value == *target);
    text.starts_with('{') && json() || matches!(compose(text), Ok(Some(tree)) if tree.value == *target)
}

#[cfg(test)]
mod tests {
    use super::super::{Chunk, Chunks};
    use super::*;
    use serde_json::json;

    fn chunk(text: &str) -> Chunk {
        Chunks::new("f".into(), text.as_bytes()).next().expect("a chunk").expect("UTF-8")
    }

    fn edit_all(text: &str, patches: &[(&str, &Patch)]) -> Edited {
        let chunk = chunk(text);
        let document = chunk.parse().expect("a document").expect("content");
        document.edit(patches.iter().copied()).expect("patches that apply")
    }

    fn edit(text: &str, patch: Value) -> Edited {
        let patch: Patch = serde_json::from_value(patch).expect("a patch");
        edit_all(text, &[("", &patch)])
    }

    /// `patch` turns `before` into `after` in place, and `inverse` turns it back.
    fn both_ways(before: &str, patch: Value, after: &str, inverse: Value) {
        assert_eq!(edit(before, patch), Edited::InPlace(after.to_owned()));
        assert_eq!(edit(after, inverse), Edited::InPlace(before.to_owned()));
    }

    #[test]
    fn edits_block_style() {
        both_ways(
            "# lead\nkind: A # a\nmetadata:\n  # who\n  name: a\nspec:\n- ref: 'root' # r\n  n: 0644\n- { ref: \"root\" }\n",
            json!([
                {"op": "add", "path": "/metadata/annotations", "value": {"trustspan.dev/undo": "[{\"op\":\"it's\"}]"}},
                {"op": "replace", "path": "/spec/0/ref", "value": "managed"},
                {"op": "replace", "path": "/spec/1/ref", "value": "managed"},
            ]),
            "# lead\nkind: A # a\nmetadata:\n  # who\n  annotations:\n    trustspan.dev/undo: '[{\"op\":\"it''s\"}]'\n  name: a\nspec:\n- ref: 'managed' # r\n  n: 0644\n- { ref: \"managed\" }\n",
            json!([
                {"op": "remove", "path": "/metadata/annotations"},
                {"op": "replace", "path": "/spec/0/ref", "value": "root"},
                {"op": "replace", "path": "/spec/1/ref", "value": "root"},
            ]),
        );
    }

    #[test]
    fn adds_a_first_key_in_every_style() {
        let add = json!([{"op": "add", "path": "/m/k", "value": "v"}]);
        let remove = json!([{"op": "remove", "path": "/m/k"}]);
        for (before, after) in [
            ("m:\r\n    a: 1\r\n", "m:\r\n    k: v\r\n    a: 1\r\n"),
            ("m: {}\n", "m: {k: v}\n"),
            ("m: { }\n", "m: {k: v }\n"),
            ("m: { a: 1 }", "m: { k: v, a: 1 }"),
            ("m: {a: 1}", "m: {k: v, a: 1}"),
            ("m: {\n  a: 1\n}\n", "m: {\n  k: v,\n  a: 1\n}\n"),
            ("{\"m\":{\"a\":1}}", "{\"m\":{\"k\":\"v\",\"a\":1}}"),
            ("{\"m\":{}}", "{\"m\":{\"k\":\"v\"}}"),
            ("{\n\t\"m\": {\n\t\t\"a\": 1\n\t}\n}\n", "{\n\t\"m\": {\n\t\t\"k\": \"v\",\n\t\t\"a\": 1\n\t}\n}\n"),
        ] {
            both_ways(before, add.clone(), after, remove.clone());
        }
        both_ways(
            "- a: 1\n".replacen("- ", "l:\n- - ", 1).as_str(),
            json!([{"op": "add", "path": "/l/0/0/k", "value": {"x": "z"}}]),
            "l:\n- - k:\n      x: z\n    a: 1\n",
            json!([{"op": "remove", "path": "/l/0/0/k"}]),
        );
    }

    #[test]
    fn replaces_null_and_back() {
        let map = json!([{"op": "replace", "path": "/m", "value": {"k": "v"}}]);
        let null = json!([{"op": "replace", "path": "/m", "value": null}]);
        for (before, after) in [
            ("m:\nn: 1\n", "m:\n  k: v\nn: 1\n"),
            ("m: # c\n", "m:\n  k: v # c\n"),
            ("m: null # c\n", "m: {k: v} # c\n"),
            ("m: ~\n", "m: { k: v }\n"),
            ("{\"m\":null}", "{\"m\":{\"k\":\"v\"}}"),
        ] {
            both_ways(before, map.clone(), after, null.clone());
        }
    }

    #[test]
    fn removes_keys() {
        for (before, path, after) in [
            ("a: 1\nb: # x\n  c: |\n    t\n\nd: 2\n", "/b", "a: 1\n\nd: 2\n"),
            ("a: 1\nb: 2", "/b", "a: 1\n"),
            ("m:\n  a: 1\nb: 2\n", "/m/a", "m: {}\nb: 2\n"),
            ("m: {a: 1, b: 2, c: 3}\n", "/m/b", "m: {a: 1, c: 3}\n"),
            ("m: {a: 1, b: 2}\n", "/m/b", "m: {a: 1}\n"),
            ("l:\n- a:\n  b: 1\n", "/l/0/a", "l:\n- b: 1\n"),
        ] {
            assert_eq!(edit(before, json!([{"op": "remove", "path": path}])), Edited::InPlace(after.to_owned()));
        }
    }

    #[test]
    fn an_anchor_is_edited_only_with_all_its_aliases() {
        let text = "a: &x root # c\nb: *x\n";
        let both = json!([
            {"op": "replace", "path": "/a", "value": "new"},
            {"op": "replace", "path": "/b", "value": "new"},
        ]);
        assert_eq!(edit(text, both), Edited::InPlace("a: &x new # c\nb: new\n".to_owned()));
        let one = json!([{"op": "replace", "path": "/a", "value": "new"}]);
        assert_eq!(edit(text, one), Edited::Reserialized("a: new\nb: root\n".to_owned()));
        let alias = json!([{"op": "replace", "path": "/b", "value": "new"}]);
        assert_eq!(edit(text, alias), Edited::InPlace("a: &x root # c\nb: new\n".to_owned()));
    }

    #[test]
    fn keeps_merge_keys() {
        both_ways(
            "x: &x {k: 1}\nm:\n  a: 1\n  <<: *x\n  b: root\n",
            json!([{"op": "replace", "path": "/m/b", "value": "new"}, {"op": "add", "path": "/m/c", "value": 2}]),
            "x: &x {k: 1}\nm:\n  c: 2\n  a: 1\n  <<: *x\n  b: new\n",
            json!([{"op": "replace", "path": "/m/b", "value": "root"}, {"op": "remove", "path": "/m/c"}]),
        );
    }

    #[test]
    fn a_reserialised_document_has_the_same_value_for_kubectl() {
        let text =
            "---\na: &m {k: 'yes', mode: 0644, t: '2024-01-01', s: \"l1\\nl2\\n\", p: '012', o: 'on'}\nb: *m\n...\n";
        let edited = edit(text, json!([{"op": "replace", "path": "/b/k", "value": "no"}]));
        insta::assert_snapshot!(edited.text(), @r#"
        ---
        a:
          k: "yes"
          mode: 420
          t: "2024-01-01"
          s: |
            l1
            l2
          p: "012"
          o: "on"
        b:
          k: "no"
          mode: 420
          t: "2024-01-01"
          s: |
            l1
            l2
          p: "012"
          o: "on"
        ...
        "#);
        assert!(matches!(edited, Edited::Reserialized(_)));
    }

    #[test]
    fn a_list_is_edited_in_one_pass() {
        let items = 3000;
        let mut text = "kind: List\nitems:\n".to_owned();
        for i in 0..items {
            text.push_str(&format!("- kind: A # {i}\n  metadata:\n    name: a{i}\n"));
        }
        let add: Patch =
            serde_json::from_value(json!([{"op": "add", "path": "/metadata/annotations", "value": {"k": "v"}}]))
                .expect("a patch");
        let remove: Patch =
            serde_json::from_value(json!([{"op": "remove", "path": "/metadata/annotations"}])).expect("a patch");
        let pointers: Vec<_> = (0..items).map(|i| format!("/items/{i}")).collect();
        let with = |patch| pointers.iter().map(|p| (p.as_str(), patch)).collect::<Vec<_>>();
        let edited = edit_all(&text, &with(&add));
        assert_eq!(edited.text().matches("      k: v\n    name: ").count(), items);
        let back = edit_all(edited.text(), &with(&remove));
        assert_eq!(back, Edited::InPlace(text));
    }
}
