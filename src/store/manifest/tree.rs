//! One walk over a document's YAML events: its value, and where each node stands in the text.
//!
//! JSON is read by the same walk: it is YAML in flow style, escapes of surrogate pairs included (granit-parser joins them).

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag};
use serde_json::{Map, Value, map};

use super::scalar::resolve;

/// Deepest nesting. Kubernetes objects stay below 30.
const MAX_DEPTH: usize = 128;

/// What aliases may add to a document, in bytes (roughly): ten lines of them can stand for gigabytes. etcd takes objects of 1.5 MiB
/// (`--max-request-bytes`).
const MAX_ALIASED: usize = 8 << 20;

/// Values that a text of so many bytes may hold, those of aliases not counted: every eighth byte may begin one, and 10,000 more.
/// The densest text that API servers write, managed fields in JSON without blanks (`"f:app":{},`), has one in some ten bytes.
const fn max_values(bytes: usize) -> usize {
    10_000 + bytes / 8
}

/// Where a node stands.
#[derive(Debug)]
pub(super) struct Node {
    /// Bytes of the node in the chunk, without its tag and anchor. A block collection ends where its last entry ends.
    pub(super) span: Range<usize>,
    /// Line in the chunk, from 1.
    pub(super) line: usize,
    pub(super) shape: Shape,
}

#[derive(Debug)]
pub(super) enum Shape {
    Scalar(ScalarStyle),
    Mapping { flow: bool, entries: Vec<Entry> },
    Sequence { items: Vec<Node> },
    Alias,
}

/// A key and its value. The key's text is not kept a second time: see [`fields`].
#[derive(Debug)]
pub(super) struct Entry {
    /// The merge key `<<`.
    pub(super) is_merge: bool,
    pub(super) key_span: Range<usize>,
    pub(super) key_style: ScalarStyle,
    pub(super) node: Node,
}

/// Each entry of a mapping with its key and value in the map that was read; none for a merge key. A map has the fields of its
/// entries first, in their order, and then what it merges.
pub(super) fn fields<'n>(
    entries: &'n [Entry],
    map: &'n Map<String, Value>,
) -> impl Iterator<Item = (&'n Entry, Option<(&'n String, &'n Value)>)> {
    let mut own = map.iter();
    entries.iter().map(move |entry| (entry, if entry.is_merge { None } else { own.next() }))
}

/// What was seen where, when a text is no document.
#[derive(Debug)]
pub(super) struct TreeError {
    /// Line in the chunk, from 1.
    pub(super) line: usize,
    pub(super) seen: String,
}

/// Reads one document; `None` when there is nothing in it.
pub(super) fn compose(text: &str) -> Result<Option<(Value, Node)>, TreeError> {
    // Hundreds of thousands of documents with nothing in them fit in a mebibyte; a parser for each takes its time.
    if text.lines().all(|line| matches!(line, "" | "---" | "...")) {
        return Ok(None);
    }
    let mut options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(text, options);
    let mut composer = Composer { parser, anchors: HashMap::new(), aliased: 0, room: max_values(text.len()) };
    let mut document = None;
    loop {
        let (event, span) = composer.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(document),
            event if document.is_none() => {
                let made = composer.node(event, span, 0)?;
                // A document of markers and comments only has one null, written with no character.
                if made.value != Value::Null || !made.node.span.is_empty() {
                    document = Some((made.value, made.node));
                }
            }
            _ => return Err(fail(span, "a second document without a line --- before it")),
        }
    }
}

struct Made {
    value: Value,
    node: Node,
    /// Nesting below, and size in bytes (roughly), both with aliases followed.
    depth: usize,
    size: usize,
}

struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, (Value, usize, usize)>,
    aliased: usize,
    /// How many more values are read.
    room: usize,
}

/// Where an event stands: of the parser's span, ten times as large, what is asked for.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    end: usize,
    line: usize,
}

impl From<Span> for Place {
    fn from(span: Span) -> Self {
        let Range { start, end } = span.byte_range().unwrap_or_default();
        Self { start, end, line: span.start.line() }
    }
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Place), TreeError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.into())),
            Some(Err(error)) => Err(TreeError { line: error.marker().line(), seen: error.info() }),
            None => Ok((Event::StreamEnd, Span::default().into())),
        }
    }

    fn node(&mut self, event: Event<'t>, span: Place, depth: usize) -> Result<Made, TreeError> {
        if depth > MAX_DEPTH {
            return Err(fail(span, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let Some(room) = self.room.checked_sub(1) else {
            return Err(fail(
                span,
                "more values than one in 8 bytes and 10,000 more, as no Kubernetes object has them; split it",
            ));
        };
        self.room = room;
        let anchor = event.anchor_id();
        let made = match event {
            Event::Scalar(text, style, _, tag) => {
                let size = 64 + text.len();
                let value = scalar(text, style, tag.as_deref()).map_err(|seen| fail(span, seen))?;
                Made { value, node: node(span, Shape::Scalar(style)), depth: 0, size }
            }
            Event::SequenceStart(style, ..) => self.sequence(span, style, depth)?,
            Event::MappingStart(style, ..) => self.mapping(span, style, depth)?,
            Event::Alias(id) => self.alias(span, id, depth)?,
            _ => return Err(fail(span, "something that is no node")),
        };
        if let Some(id) = anchor {
            self.anchors.insert(id, (made.value.clone(), made.depth, made.size));
            self.spend(span, made.size)?;
        }
        Ok(made)
    }

    fn alias(&mut self, span: Place, id: usize, depth: usize) -> Result<Made, TreeError> {
        let Some(&(ref value, below, size)) = self.anchors.get(&id) else {
            return Err(fail(span, "an alias inside the node that it stands for"));
        };
        if depth + below > MAX_DEPTH {
            return Err(fail(span, format!("aliases nested deeper than {MAX_DEPTH} levels")));
        }
        let (value, _) = (value.clone(), self.spend(span, size)?);
        Ok(Made { value, node: node(span, Shape::Alias), depth: below, size })
    }

    fn spend(&mut self, span: Place, size: usize) -> Result<(), TreeError> {
        self.aliased += size;
        if self.aliased > MAX_ALIASED {
            return Err(fail(
                span,
                format!("aliases that stand for more than {} MiB; write them out", MAX_ALIASED >> 20),
            ));
        }
        Ok(())
    }

    fn sequence(&mut self, span: Place, style: StructureStyle, depth: usize) -> Result<Made, TreeError> {
        let (mut values, mut items, mut below, mut size) = (Vec::new(), Vec::new(), 0, 64);
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                let mut node = node(span, Shape::Sequence { items });
                if let Shape::Sequence { items } = &node.shape {
                    node.span.end = end(style, at, items.last());
                }
                return Ok(Made { value: Value::Array(values), node, depth: below, size });
            }
            let made = self.node(event, at, depth + 1)?;
            below = below.max(made.depth + 1);
            size += made.size;
            values.push(made.value);
            items.push(made.node);
        }
    }

    fn mapping(&mut self, span: Place, style: StructureStyle, depth: usize) -> Result<Made, TreeError> {
        let (mut map, mut entries, mut below, mut size) = (Map::new(), Vec::<Entry>::new(), 0, 64);
        let mut merges = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                merge(&mut map, merges)?;
                let mut node = node(span, Shape::Scalar(ScalarStyle::Plain));
                // A last value of no character stands at its key's end, before the colon.
                node.span.end = end(style, at, entries.last().map(|entry| &entry.node)).max(node.span.start);
                node.shape = Shape::Mapping { flow: style == StructureStyle::Flow, entries };
                return Ok(Made { value: Value::Object(map), node, depth: below, size });
            }
            let Event::Scalar(text, key_style, _, tag) = event else {
                return Err(fail(at, "a key that is no scalar; expected a name"));
            };
            if entries.is_empty() {
                // Room for one: of hundreds of thousands of maps, most have no more.
                (map, entries) = (Map::with_capacity(1), Vec::with_capacity(1));
            }
            let is_merge = text == "<<" && key_style == ScalarStyle::Plain && tag.is_none();
            size += text.len();
            let key = match scalar(text, key_style, tag.as_deref()).map_err(|seen| fail(at, seen))? {
                Value::String(key) => key,
                Value::Bool(key) => key.to_string(),
                Value::Number(key) if !key.is_f64() => key.to_string(),
                key => return Err(fail(at, format!("the key {key}; expected a string (put it in quotes)"))),
            };
            let (event, value_at) = self.next()?;
            let made = self.node(event, value_at, depth + 1)?;
            below = below.max(made.depth + 1);
            size += made.size;
            if is_merge {
                merges.push((value_at, made.value));
            } else {
                match map.entry(key) {
                    map::Entry::Vacant(field) => drop(field.insert(made.value)),
                    map::Entry::Occupied(field) => {
                        return Err(fail(at, format!("the key {:?} a second time in one map", field.key())));
                    }
                }
            }
            entries.push(Entry { is_merge, key_span: at.start..at.end, key_style, node: made.node });
        }
    }
}

/// Merge keys give way to the map's own, and an earlier one wins over a later.
fn merge(map: &mut Map<String, Value>, merges: Vec<(Place, Value)>) -> Result<(), TreeError> {
    for (at, merge) in merges {
        let maps = match merge {
            Value::Array(maps) => maps,
            map => vec![map],
        };
        for merged in maps {
            let Value::Object(merged) = merged else {
                return Err(fail(at, "a merge key << with something that is no map"));
            };
            for (key, value) in merged {
                map.entry(key).or_insert(value);
            }
        }
    }
    Ok(())
}

fn node(span: Place, shape: Shape) -> Node {
    Node { span: span.start..span.end, line: span.line, shape }
}

fn end(style: StructureStyle, end: Place, last: Option<&Node>) -> usize {
    match (style, last) {
        (StructureStyle::Block, Some(last)) => last.span.end,
        _ => end.end,
    }
}

fn fail(span: Place, seen: impl Into<String>) -> TreeError {
    TreeError { line: span.line, seen: seen.into() }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let resolved = || resolve(&text).map_err(|why| format!("{text}: {why}"));
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain { resolved() } else { Ok(Value::String(text.into_owned())) };
    };
    let value = match tag.core_suffix() {
        Some("null") => resolved().map(|v| (v.is_null(), v)),
        Some("bool") => resolved().map(|v| (v.is_boolean(), v)),
        Some("int") => resolved().map(|v| (v.is_i64() || v.is_u64(), v)),
        Some("float") => resolved().map(|v| (v.is_number(), v)),
        _ if tag.suffix_in_namespace("tag:yaml.org,2002:").as_deref() == Some("binary") => {
            return Err("the tag !!binary; put base64 text in quotes".to_owned());
        }
        _ => return Ok(Value::String(text.into_owned())),
    }?;
    if value.0 { Ok(value.1) } else { Err(format!("{text:?} under the tag {}", tag.original())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        compose(text).unwrap_or_else(|e| panic!("{text:?}: {}: {}", e.line, e.seen)).map_or(Value::Null, |d| d.0)
    }

    fn error(text: &str) -> (usize, String) {
        compose(text).map(|d| d.map(|d| d.0)).map_err(|e| (e.line, e.seen)).expect_err("an error")
    }

    #[test]
    fn values() {
        assert_eq!(
            value("a: &x {k: [1, yes, ~]}\nb: *x\n'c': \"\\u00e9\"\nd: |\n  l\n1: !!str 2\n"),
            json!({
                "a": {"k": [1, true, null]}, "b": {"k": [1, true, null]}, "c": "é", "d": "l\n", "1": "2",
            })
        );
        assert_eq!(value("{\"s\": \"\\ud83d\\ude00\\/\",\t\"n\": -1.5E3}"), json!({"s": "😀/", "n": -1500.0}));
        assert_eq!(value("a: &x {k: 1, l: 2}\nb:\n  <<: *x\n  l: 3\n")["b"], json!({"k": 1, "l": 3}));
        assert_eq!(value("b:\n  <<: [{k: 1}, {k: 2, m: 3}]\n")["b"], json!({"k": 1, "m": 3}));
    }

    #[test]
    fn nothing_there() {
        for text in ["", "\n", "...\n", "---\r\n\r\n...\r\n", "# c\n", "---\n", "--- # c\n...\n", "%YAML 1.2\n---\n"] {
            assert!(compose(text).unwrap_or_else(|e| panic!("{text:?}: {}", e.seen)).is_none(), "{text:?}");
        }
        assert_eq!(value("--- ~\n"), Value::Null);
    }

    #[test]
    fn errors_name_line_and_cause() {
        assert_eq!(error("a: 1\nb: 2\na: 3\n"), (3, "the key \"a\" a second time in one map".to_owned()));
        assert_eq!(error("a:\n- {b: .inf}\n").0, 2);
        assert_eq!(error("a: &x [*x]\n"), (1, "an alias inside the node that it stands for".to_owned()));
        assert_eq!(error("{\"a\": 1} {\"b\": 2}").0, 1);
        assert_eq!(error("? [a]\n: b\n").1, "a key that is no scalar; expected a name");
        assert!(!error("a: [1\nb: 2").1.is_empty());
    }

    #[test]
    fn values_are_bounded_by_the_size_of_the_text() {
        let list = |item: &str, count| format!("a: [{}]", vec![item; count].join(","));
        assert!(compose(&list("1", 10_000)).is_ok());
        assert!(compose(&list("1234567", 100_000)).is_ok());
        assert!(error(&list("1", 20_000)).1.contains("more values than one in 8 bytes"));
    }

    #[test]
    fn depth_and_aliases_are_bounded() {
        assert!(compose(&format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))).is_ok());
        assert_eq!(error(&"[".repeat(10_000)).0, 1);
        assert_eq!(error(&"{\"a\":".repeat(10_000)).0, 1);
        assert_eq!(error(&"- ".repeat(10_000)).0, 1);
        let mut bomb = "a0: &a0 [x]\n".to_owned();
        for i in 1..20 {
            let alias = format!("*a{},", i - 1).repeat(10);
            bomb.push_str(&format!("a{i}: &a{i} [{alias}]\n"));
        }
        assert!(error(&bomb).1.contains("aliases"), "{:?}", error(&bomb));
        let mut deep = "a0: &a0 [x]\n".to_owned();
        for i in 1..200 {
            deep.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1));
        }
        assert!(error(&deep).1.contains("nested deeper"), "{:?}", error(&deep));
    }
}
