//! One walk over a document's YAML events: its value, and where each node stands in the text.
//!
//! JSON is read by the same walk: it is YAML in flow style, escapes of surrogate pairs included (granit-parser joins them).

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem;
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, StructureStyle, Tag};
use serde_json::{Map, Value, map};

use super::scalar::resolve;
use crate::api::shortened;

/// Deepest nesting. Kubernetes objects stay below 30.
const MAX_DEPTH: usize = 128;

/// What aliases may add to a document, in bytes (roughly): ten lines of them can stand for gigabytes. etcd takes objects of 1.5 MiB
/// (`--max-request-bytes`).
const MAX_ALIASED: usize = 8 << 20;

/// Keys and values that an object may hold, those of aliases not counted: what can be read in a tenth of a second. etcd takes objects of
/// 1.5 MiB; a CustomResourceDefinition of that size has some 40,000, and so has a Gateway of 2,500 servers.
const MAX_OF_OBJECT: usize = 60_000;

/// Keys and values that a document of so many bytes may hold, which may be a List of any number of objects: every sixth byte may begin
/// one, and 20,000 more. The densest text that API servers write, managed fields in JSON without blanks (`"f:app":{},`), has two in some
/// twelve bytes.
const fn max_of_document(bytes: usize) -> usize {
    20_000 + bytes / 6
}

/// Where a node stands.
#[derive(Debug)]
pub(super) struct YamlNode {
    /// Bytes of the node in the chunk, without its tag and anchor. A block collection ends where its last entry ends.
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

/// A key and its value. The key's text is not kept a second time: see [`fields`].
#[derive(Debug)]
pub(super) struct MapEntry {
    /// The merge key `<<`.
    pub(super) is_merge: bool,
    pub(super) key_span: Range<usize>,
    pub(super) key_style: ScalarStyle,
    pub(super) node: YamlNode,
}

/// Each entry of a mapping with its key and value in the map that was read; none for a merge key. A map has the fields of its
/// entries first, in their order, and then what it merges.
pub(super) fn fields<'n>(
    entries: &'n [MapEntry],
    map: &'n Map<String, Value>,
) -> impl Iterator<Item = (&'n MapEntry, Option<(&'n String, &'n Value)>)> {
    let mut own = map.iter();
    entries.iter().map(move |entry| (entry, if entry.is_merge { None } else { own.next() }))
}

/// What a node is to the objects of a document.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// An object: the document, or an item of a List.
    Object,
    /// The value of the `items` of a List, or of what may yet say that it is one: keys are often sorted.
    Items,
    /// Anything in an object.
    Field,
}

/// What was seen where, when a text is no document.
#[derive(Debug)]
pub(super) struct TreeError {
    /// Line in the chunk, from 1.
    pub(super) line: usize,
    pub(super) seen: String,
}

/// A document's value, and where its nodes stand.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) value: Value,
    pub(super) root: YamlNode,
}

/// What a text reads as: `None` when there is nothing in it.
pub(super) type Composed = Result<Option<Tree>, TreeError>;

/// Reads one document.
pub(super) fn compose(text: &str) -> Composed {
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
    let mut composer = Composer {
        parser,
        anchors: HashMap::new(),
        aliased: 0,
        room: max_of_document(text.len()),
        left: MAX_OF_OBJECT,
    };
    let mut document = None;
    loop {
        let (event, span) = composer.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => return Ok(document),
            event if document.is_none() => {
                let made = composer.node(event, span, 0, Part::Object)?;
                // A document of markers and comments only has one null, written with no character.
                if made.value != Value::Null || !made.node.span.is_empty() {
                    document = Some(Tree { value: made.value, root: made.node });
                }
            }
            _ => return Err(fail(span, "a second document without a line --- before it")),
        }
    }
}

struct Made {
    value: Value,
    node: YamlNode,
    /// Nesting below, and size in bytes (roughly), both with aliases followed.
    depth: usize,
    size: usize,
}

struct Composer<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, (Value, usize, usize)>,
    aliased: usize,
    /// How many more keys and values are read.
    room: usize,
    /// How many more of them in the object that is being read.
    left: usize,
}

/// Where an event stands: of the parser's span, ten times as large, what is asked for.
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
            Some(Err(error)) => Err(TreeError { line: error.marker().line(), seen: error.info() }),
            None => Ok((Event::StreamEnd, Span::default().into())),
        }
    }

    /// Makes room for a key or a value.
    fn count(&mut self, span: Region) -> Result<(), TreeError> {
        let Some(room) = self.room.checked_sub(1) else {
            return Err(fail(
                span,
                "more keys and values than one in 6 bytes and 20,000 more, as no Kubernetes object has them; split it",
            ));
        };
        self.left = self.left.checked_sub(1).ok_or_else(|| too_many(span))?;
        self.room = room;
        Ok(())
    }

    fn node(&mut self, event: Event<'t>, span: Region, depth: usize, part: Part) -> Result<Made, TreeError> {
        if depth > MAX_DEPTH {
            return Err(fail(span, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.count(span)?;
        let anchor = event.anchor_id();
        let made = match event {
            Event::Scalar(text, style, _, tag) => {
                let size = 64 + text.len();
                let value = scalar(text, style, tag.as_deref()).map_err(|seen| fail(span, seen))?;
                Made { value, node: node(span, Shape::Scalar(style)), depth: 0, size }
            }
            Event::SequenceStart(style, ..) => self.sequence(span, style, depth, part)?,
            Event::MappingStart(style, ..) => self.mapping(span, style, depth, part)?,
            Event::Alias(id) => self.alias(span, id, depth)?,
            _ => return Err(fail(span, "something that is no node")),
        };
        if let Some(id) = anchor {
            self.anchors.insert(id, (made.value.clone(), made.depth, made.size));
            self.spend(span, made.size)?;
        }
        Ok(made)
    }

    fn alias(&mut self, span: Region, id: usize, depth: usize) -> Result<Made, TreeError> {
        let Some(&(ref value, below, size)) = self.anchors.get(&id) else {
            return Err(fail(span, "an alias inside the node that it stands for"));
        };
        if depth + below > MAX_DEPTH {
            return Err(fail(span, format!("aliases nested deeper than {MAX_DEPTH} levels")));
        }
        let (value, _) = (value.clone(), self.spend(span, size)?);
        Ok(Made { value, node: node(span, Shape::Alias), depth: below, size })
    }

    fn spend(&mut self, span: Region, size: usize) -> Result<(), TreeError> {
        self.aliased += size;
        if self.aliased > MAX_ALIASED {
            return Err(fail(
                span,
                format!("aliases that stand for more than {} MiB; write them out", MAX_ALIASED >> 20),
            ));
        }
        Ok(())
    }

    fn sequence(&mut self, span: Region, style: StructureStyle, depth: usize, part: Part) -> Result<Made, TreeError> {
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
            let made = match part {
                Part::Items => {
                    let left = mem::replace(&mut self.left, MAX_OF_OBJECT);
                    let made = self.node(event, at, depth + 1, Part::Object)?;
                    self.left = left;
                    made
                }
                _ => self.node(event, at, depth + 1, Part::Field)?,
            };
            below = below.max(made.depth + 1);
            size += made.size;
            values.push(made.value);
            items.push(made.node);
        }
    }

    fn mapping(&mut self, span: Region, style: StructureStyle, depth: usize, part: Part) -> Result<Made, TreeError> {
        let before = self.room;
        let (mut map, mut entries, mut below, mut size) = (Map::new(), Vec::<MapEntry>::new(), 0, 64);
        let mut merges = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                merge(&mut map, merges)?;
                if part == Part::Object {
                    if before - self.room > MAX_OF_OBJECT && is_list(&map) != Some(true) {
                        return Err(too_many(span));
                    }
                    if has_no_items(&map) {
                        return Err(fail(span, "a List whose items are no sequence"));
                    }
                }
                let mut node = node(span, Shape::Scalar(ScalarStyle::Plain));
                // A last value of no character stands at its key's end, before the colon.
                node.span.end = end(style, at, entries.last().map(|entry| &entry.node)).max(node.span.start);
                node.shape = Shape::Mapping { flow: style == StructureStyle::Flow, entries };
                return Ok(Made { value: Value::Object(map), node, depth: below, size });
            }
            let Event::Scalar(text, key_style, _, tag) = event else {
                return Err(fail(at, "a key that is no scalar; expected a name"));
            };
            self.count(at)?;
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
            let may_be_items = part == Part::Object && key == "items" && is_list(&map) != Some(false);
            let part = if may_be_items { Part::Items } else { Part::Field };
            let made = self.node(event, value_at, depth + 1, part)?;
            below = below.max(made.depth + 1);
            size += made.size;
            if is_merge {
                merges.push((value_at, made.value));
            } else {
                match map.entry(key) {
                    map::Entry::Vacant(field) => drop(field.insert(made.value)),
                    map::Entry::Occupied(field) => {
                        return Err(fail(at, format!("the key {:?} a second time in one map", shortened(field.key()))));
                    }
                }
            }
            entries.push(MapEntry { is_merge, key_span: at.start..at.end, key_style, node: made.node });
        }
    }
}

/// Merge keys give way to the map's own, and an earlier one wins over a later.
fn merge(map: &mut Map<String, Value>, merges: Vec<(Region, Value)>) -> Result<(), TreeError> {
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

fn node(span: Region, shape: Shape) -> YamlNode {
    YamlNode { span: span.start..span.end, line: span.line, shape }
}

fn end(style: StructureStyle, end: Region, last: Option<&YamlNode>) -> usize {
    match (style, last) {
        (StructureStyle::Block, Some(last)) => last.span.end,
        _ => end.end,
    }
}

/// Whether its kind calls an object a List, as the API's conventions name all of them; `None` while there is none.
fn is_list(object: &Map<String, Value>) -> Option<bool> {
    object.get("kind").map(|kind| kind.as_str().is_some_and(|kind| kind.ends_with("List")))
}

/// Whether an object says that it is one of the core group's Lists, and has something else as its items. In other groups there may be
/// kinds that are called so and are none.
fn has_no_items(object: &Map<String, Value>) -> bool {
    let core = object.get("apiVersion").is_some_and(|version| version == "v1");
    let items = object.get("items").filter(|items| !items.is_null());
    core && is_list(object) == Some(true) && items.is_some_and(|items| !items.is_array())
}

fn too_many(span: Region) -> TreeError {
    fail(span, format!("more than {MAX_OF_OBJECT} keys and values in one object; split it"))
}

fn fail(span: Region, seen: impl Into<String>) -> TreeError {
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
    if value.0 { Ok(value.1) } else { Err(format!("{:?} under the tag {}", shortened(&text), tag.original())) }
}

#[cfg(test)]
mod tests;
