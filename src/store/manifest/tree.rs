//! Composes a document from its YAML events, in one pass: its value, and the span of each node in the text.
//!
//! JSON is read in the same way: it is YAML in flow style, escapes of surrogate pairs included (granit-parser joins them).

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag};
use serde_json::{Map, Value, map};

use super::scalar::resolve;
use crate::api::shortened;

/// Deepest nesting. Kubernetes objects have fewer than 30 levels.
const MAX_DEPTH: usize = 128;

/// Approximate bytes that aliases may add to a document: ten lines of them can expand to gigabytes. etcd's limit of an object is 1.5 MiB
/// (`--max-request-bytes`).
const MAX_ALIASED_BYTES: usize = 8 << 20;

/// Keys and values of an object, without those of aliases: as many as can be read in a tenth of a second. A CustomResourceDefinition or a
/// Gateway with 2,500 servers has about 40,000 in 1.5 MiB, etcd's limit of an object.
const MAX_NODES_OF_OBJECT: usize = 60_000;

/// Keys and values of a document, which can be a List with any number of objects: one in six bytes, and 20,000 more. The densest text that
/// API servers write, managed fields in JSON without blanks (`"f:app":{},`), has two in about twelve bytes.
const fn max_nodes_of_document(bytes: usize) -> usize {
    20_000 + bytes / 6
}

/// A node's position in the text.
#[derive(Debug)]
pub(super) struct YamlNode {
    /// Byte range in the chunk, without tag and anchor. A block collection ends with its last entry.
    pub(super) span: Range<usize>,
    /// Line in the chunk, from 1.
    pub(super) line: usize,
    pub(super) shape: Shape,
}

#[derive(Debug)]
pub(super) enum Shape {
    Scalar(ScalarStyle),
    Mapping { flow: bool, entries: Vec<MapEntry> },
    Sequence { items: Vec<YamlNode> },
    Alias,
}

/// A key and its value. The key's text is not stored again: see [`fields`].
#[derive(Debug)]
pub(super) struct MapEntry {
    /// The merge key `<<`.
    pub(super) is_merge: bool,
    pub(super) key_span: Range<usize>,
    pub(super) key_style: ScalarStyle,
    pub(super) node: YamlNode,
}

/// Each entry of a mapping with its key and value in the parsed map; no key for a merge key. The map contains the fields of its
/// entries first, in their order, and then the merged ones.
pub(super) fn fields<'n>(
    entries: &'n [MapEntry],
    map: &'n Map<String, Value>,
) -> impl Iterator<Item = (&'n MapEntry, Option<(&'n String, &'n Value)>)> {
    let mut own = map.iter();
    entries.iter().map(move |entry| (entry, if entry.is_merge { None } else { own.next() }))
}

/// A node's role in the objects of a document.
#[derive(Clone, Copy, PartialEq)]
enum NodeRole {
    /// An object: the document, or an item of a List.
    Object,
    /// The `items` of a List, or of an object whose `kind` was not read yet: keys are often sorted.
    Items,
    /// Anything else.
    Field,
}

/// Why a text is not a valid document.
#[derive(Debug)]
pub(super) struct TreeError {
    /// Line in the chunk, from 1.
    pub(super) line: usize,
    pub(super) found: String,
}

/// A document's value and nodes.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) value: Value,
    pub(super) root: YamlNode,
}

/// The result of [`compose`]; `None` for an empty document.
pub(super) type Composed = Result<Option<Tree>, TreeError>;

/// Parses one document.
pub(super) fn compose(text: &str) -> Composed {
    // A mebibyte can contain hundreds of thousands of empty documents; a parser for each would be slow.
    if text.lines().all(|line| matches!(line, "" | "---" | "...")) {
        return Ok(None);
    }
    let mut options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(text, options);
    let mut composer = Composer {
        parser,
        anchors: HashMap::new(),
        aliased_bytes: 0,
        document_budget: max_nodes_of_document(text.len()),
        object_budget: MAX_NODES_OF_OBJECT,
    };
    let mut document = None;
    loop {
        let (event, span) = composer.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(document),
            event if document.is_none() => {
                let composed = composer.node(event, span, 0, NodeRole::Object)?;
                // A document with only markers and comments counts as empty.
                if composed.value != Value::Null || !composed.node.span.is_empty() {
                    document = Some(Tree { value: composed.value, root: composed.node });
                }
            }
            _ => return Err(fail(span, "a second document without a line --- before it")),
        }
    }
}

struct ComposedNode {
    value: Value,
    node: YamlNode,
    /// Levels below, and approximate size in bytes, both with aliases expanded.
    depth: usize,
    size: usize,
}

struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, (Value, usize, usize)>,
    aliased_bytes: usize,
    /// Remaining keys and values of the document.
    document_budget: usize,
    /// Remaining keys and values of the current object.
    object_budget: usize,
}

/// The position of a parser event. The parser's own `Span` takes ten times as much memory.
#[derive(Clone, Copy)]
struct Region {
    start: usize,
    end: usize,
    line: usize,
}

impl From<Span> for Region {
    fn from(span: Span) -> Self {
        let Range { start, end } = span.byte_range().unwrap_or_default();
        Self { start, end, line: span.start.line() }
    }
}

impl<'t> Composer<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Region), TreeError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.into())),
            Some(Err(error)) => Err(TreeError { line: error.marker().line(), found: error.info() }),
            None => Ok((Event::StreamEnd, Span::default().into())),
        }
    }

    /// Counts a key or a value.
    fn count(&mut self, span: Region) -> Result<(), TreeError> {
        let Some(remaining) = self.document_budget.checked_sub(1) else {
            return Err(fail(
                span,
                "more keys and values than one in 6 bytes plus 20,000, which no Kubernetes object has; split it",
            ));
        };
        self.object_budget = self.object_budget.checked_sub(1).ok_or_else(|| too_many(span))?;
        self.document_budget = remaining;
        Ok(())
    }

    fn node(
        &mut self,
        event: Event<'t>,
        span: Region,
        depth: usize,
        role: NodeRole,
    ) -> Result<ComposedNode, TreeError> {
        if depth > MAX_DEPTH {
            return Err(fail(span, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.count(span)?;
        let anchor = event.anchor_id();
        let composed = match event {
            Event::Scalar(text, style, _, tag) => {
                let size = 64 + text.len();
                let value = scalar(text, style, tag.as_deref()).map_err(|found| fail(span, found))?;
                ComposedNode { value, node: node(span, Shape::Scalar(style)), depth: 0, size }
            }
            Event::SequenceStart(style, ..) => self.sequence(span, style, depth, role)?,
            Event::MappingStart(style, ..) => self.mapping(span, style, depth, role)?,
            Event::Alias(id) => self.alias(span, id, depth)?,
            _ => return Err(fail(span, "an unexpected YAML event")),
        };
        if let Some(id) = anchor {
            self.anchors.insert(id, (composed.value.clone(), composed.depth, composed.size));
            self.count_aliased(span, composed.size)?;
        }
        Ok(composed)
    }

    fn alias(&mut self, span: Region, id: usize, depth: usize) -> Result<ComposedNode, TreeError> {
        let Some(&(ref value, below, size)) = self.anchors.get(&id) else {
            return Err(fail(span, "an alias inside the node that it refers to"));
        };
        if depth + below > MAX_DEPTH {
            return Err(fail(span, format!("aliases nested deeper than {MAX_DEPTH} levels")));
        }
        let (value, _) = (value.clone(), self.count_aliased(span, size)?);
        Ok(ComposedNode { value, node: node(span, Shape::Alias), depth: below, size })
    }

    fn count_aliased(&mut self, span: Region, size: usize) -> Result<(), TreeError> {
        self.aliased_bytes += size;
        if self.aliased_bytes > MAX_ALIASED_BYTES {
            return Err(fail(
                span,
                format!("aliases that expand to more than {} MiB; write their values out", MAX_ALIASED_BYTES >> 20),
            ));
        }
        Ok(())
    }

    fn sequence(
        &mut self,
        span: Region,
        style: StructureStyle,
        depth: usize,
        role: NodeRole,
    ) -> Result<ComposedNode, TreeError> {
        let (mut values, mut items, mut below, mut size) = (Vec::new(), Vec::new(), 0, 64);
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                let mut node = node(span, Shape::Sequence { items });
                if let Shape::Sequence { items } = &node.shape {
                    node.span.end = end(style, at, items.last());
                }
                return Ok(ComposedNode { value: Value::Array(values), node, depth: below, size });
            }
            let item = match role {
                NodeRole::Items => {
                    let remaining = mem::replace(&mut self.object_budget, MAX_NODES_OF_OBJECT);
                    let item = self.node(event, at, depth + 1, NodeRole::Object)?;
                    self.object_budget = remaining;
                    item
                }
                _ => self.node(event, at, depth + 1, NodeRole::Field)?,
            };
            below = below.max(item.depth + 1);
            size += item.size;
            values.push(item.value);
            items.push(item.node);
        }
    }

    fn mapping(
        &mut self,
        span: Region,
        style: StructureStyle,
        depth: usize,
        role: NodeRole,
    ) -> Result<ComposedNode, TreeError> {
        let before = self.document_budget;
        let (mut map, mut entries, mut below, mut size) = (Map::new(), Vec::<MapEntry>::new(), 0, 64);
        let mut merges = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                merge(&mut map, merges)?;
                if role == NodeRole::Object {
                    if before - self.document_budget > MAX_NODES_OF_OBJECT && is_list(&map) != Some(true) {
                        return Err(too_many(span));
                    }
                    if has_no_items(&map) {
                        return Err(fail(span, "a List whose items are not a sequence"));
                    }
                }
                let mut node = node(span, Shape::Scalar(ScalarStyle::Plain));
                // An empty last value is at the end of its key, before the colon.
                node.span.end = end(style, at, entries.last().map(|entry| &entry.node)).max(node.span.start);
                node.shape = Shape::Mapping { flow: style == StructureStyle::Flow, entries };
                return Ok(ComposedNode { value: Value::Object(map), node, depth: below, size });
            }
            let Event::Scalar(text, key_style, _, tag) = event else {
                return Err(fail(at, "a key that is not a scalar; expected a name"));
            };
            self.count(at)?;
            if entries.is_empty() {
                // In a document with hundreds of thousands of maps, most have one key.
                (map, entries) = (Map::with_capacity(1), Vec::with_capacity(1));
            }
            let is_merge = text == "<<" && key_style == ScalarStyle::Plain && tag.is_none();
            size += text.len();
            let key = match scalar(text, key_style, tag.as_deref()).map_err(|found| fail(at, found))? {
                Value::String(key) => key,
                Value::Bool(key) => key.to_string(),
                Value::Number(key) if !key.is_f64() => key.to_string(),
                key => return Err(fail(at, format!("the key {key}; expected a string (put it in quotes)"))),
            };
            let (event, value_at) = self.next()?;
            let may_be_items = role == NodeRole::Object && key == "items" && is_list(&map) != Some(false);
            let role = if may_be_items { NodeRole::Items } else { NodeRole::Field };
            let composed = self.node(event, value_at, depth + 1, role)?;
            below = below.max(composed.depth + 1);
            size += composed.size;
            if is_merge {
                merges.push((value_at, composed.value));
            } else {
                match map.entry(key) {
                    map::Entry::Vacant(field) => drop(field.insert(composed.value)),
                    map::Entry::Occupied(field) => {
                        return Err(fail(at, format!("a second key {:?} in the same map", shortened(field.key()))));
                    }
                }
            }
            entries.push(MapEntry { is_merge, key_span: at.start..at.end, key_style, node: composed.node });
        }
    }
}

/// The map's own keys win over merged ones, and earlier merges over later ones.
fn merge(map: &mut Map<String, Value>, merges: Vec<(Region, Value)>) -> Result<(), TreeError> {
    for (at, merge) in merges {
        let maps = match merge {
            Value::Array(maps) => maps,
            map => vec![map],
        };
        for merged in maps {
            let Value::Object(merged) = merged else {
                return Err(fail(at, "a merge key << whose value is not a map"));
            };
            for (key, value) in merged {
                map.entry(key).or_insert(value);
            }
        }
    }
    Ok(())
}

fn node(span: Region, shape: Shape) -> YamlNode {
    YamlNode { span: span.start..span.end, line: span.line, shape }
}

fn end(style: StructureStyle, end: Region, last: Option<&YamlNode>) -> usize {
    match (style, last) {
        (StructureStyle::Block, Some(last)) => last.span.end,
        _ => end.end,
    }
}

/// Whether an object's kind ends with `List`, as the API conventions require of lists; `None` without a kind.
fn is_list(object: &Map<String, Value>) -> Option<bool> {
    object.get("kind").map(|kind| kind.as_str().is_some_and(|kind| kind.ends_with("List")))
}

/// Whether an object is a List of the core group whose items are not a sequence. Other groups can have kinds with such names that are not
/// lists.
fn has_no_items(object: &Map<String, Value>) -> bool {
    let core = object.get("apiVersion").is_some_and(|version| version == "v1");
    let items = object.get("items").filter(|items| !items.is_null());
    core && is_list(object) == Some(true) && items.is_some_and(|items| !items.is_array())
}

fn too_many(span: Region) -> TreeError {
    fail(span, format!("more than {MAX_NODES_OF_OBJECT} keys and values in one object; split it"))
}

fn fail(span: Region, found: impl Into<String>) -> TreeError {
    TreeError { line: span.line, found: found.into() }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let resolved = || resolve(&text).map_err(|reason| format!("{text}: {reason}"));
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain { resolved() } else { Ok(Value::String(text.into_owned())) };
    };
    let value = match tag.core_suffix() {
        Some("null") => resolved().map(|v| (v.is_null(), v)),
        Some("bool") => resolved().map(|v| (v.is_boolean(), v)),
        Some("int") => resolved().map(|v| (v.is_i64() || v.is_u64(), v)),
        Some("float") => resolved().map(|v| (v.is_number(), v)),
        _ if tag.suffix_in_namespace("tag:yaml.org,2002:").as_deref() == Some("binary") => {
            return Err("the tag !!binary, which is not supported; put the base64 text in quotes".to_owned());
        }
        _ => return Ok(Value::String(text.into_owned())),
    }?;
    if value.0 { Ok(value.1) } else { Err(format!("{:?} under the tag {}", shortened(&text), tag.original())) }
}

#[cfg(test)]
mod tests;
