//! Computes edits of the text from the old and the new value, in the style of the surrounding text.

use std::collections::BTreeSet;
use std::ops::Range;

use granit_parser::ScalarStyle;
use serde_json::Value;

use super::super::scalar::{double_quoted, is_plain_safe, single_quoted};
use super::super::tree::{MapEntry, Shape, YamlNode, fields};

/// A document's text and style.
pub(super) struct Layout<'t> {
    text: &'t str,
    /// Whether the document is JSON, not YAML in flow style.
    pub(super) json: bool,
    /// Whether it is JSON without white space.
    pub(super) compact: bool,
    pub(super) eol: &'static str,
    edits: Vec<(Range<usize>, String)>,
}

/// A node's position, which determines how it can be replaced.
#[derive(Clone, Copy)]
enum Slot {
    /// Value of an entry of a block mapping with its keys in this column.
    Block { column: usize, after_colon: usize },
    /// Value in a flow mapping.
    Flow,
    /// The root, or an item of a sequence.
    Other,
}

/// Every method returns `None` if the text cannot be edited.
impl<'t> Layout<'t> {
    pub(super) fn new(text: &'t str, root: &YamlNode) -> Self {
        let first = match &root.shape {
            Shape::Mapping { flow: true, entries } => Some(entries.first()),
            _ => None,
        };
        let json = first.is_some_and(|first| first.is_none_or(|e| e.key_style == ScalarStyle::DoubleQuoted));
        let tight =
            |e: &MapEntry| text[e.key_span.end..].strip_prefix(':').is_some_and(|rest| !rest.starts_with([' ', '\n']));
        let compact = json && first.flatten().is_none_or(tight);
        let eol = match text.find('\n') {
            Some(end) if text[..end].ends_with('\r') => "\r\n",
            _ => "\n",
        };
        Self { text, json, compact, eol, edits: Vec::new() }
    }

    /// The text with the value `new`.
    pub(super) fn edit(mut self, root: &YamlNode, old: &Value, new: &Value) -> Option<String> {
        self.node(root, old, new, Slot::Other)?;
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let (mut out, mut done) = (String::with_capacity(self.text.len() + 256), 0);
        for (range, new) in &self.edits {
            out.push_str(self.text.get(done..range.start)?);
            out.push_str(new);
            done = range.end;
        }
        out.push_str(self.text.get(done..)?);
        Some(out)
    }

    fn replace(&mut self, range: Range<usize>, new: impl Into<String>) -> Option<()> {
        self.edits.push((range, new.into()));
        Some(())
    }

    fn node(&mut self, node: &YamlNode, old: &Value, new: &Value, slot: Slot) -> Option<()> {
        match (&node.shape, old, new) {
            (Shape::Mapping { flow, entries }, Value::Object(old), Value::Object(new)) => {
                if !old.keys().eq(new.keys()) {
                    let removed =
                        fields(entries, old).filter(|(_, own)| own.is_some_and(|(key, _)| !new.contains_key(key)));
                    let removed: BTreeSet<_> = removed.map(|(entry, _)| entry.key_span.start).collect();
                    let kept = |entry: &MapEntry| !removed.contains(&entry.key_span.start);
                    let added: Vec<_> = new.iter().filter(|(key, _)| !old.contains_key(*key)).collect();
                    match flow {
                        _ if added.is_empty() && removed.is_empty() => {}
                        true => self.flow_entries(node, entries, &kept, &added)?,
                        false => self.block_entries(entries, &kept, &added, slot)?,
                    }
                }
                // The column of the first key, which is known only in block style: a JSON document can be one line.
                let first = entries.first().filter(|_| !flow).map(|e| e.key_span.start);
                let column = first.map_or(0, |start| start - self.line_start(start));
                fields(entries, old).try_for_each(|(entry, field)| {
                    let Some((old, new)) = field.and_then(|(key, old)| Some((old, new.get(key)?))) else {
                        return Some(());
                    };
                    let slot = match (flow, self.after_colon(entry)) {
                        (false, Some(after_colon)) => Slot::Block { column, after_colon },
                        (true, _) => Slot::Flow,
                        (false, None) => Slot::Other,
                    };
                    self.node(&entry.node, old, new, slot)
                })
            }
            (Shape::Sequence { items }, Value::Array(old), Value::Array(new)) if old.len() == new.len() => items
                .iter()
                .zip(old.iter().zip(new))
                .try_for_each(|(item, (old, new))| self.node(item, old, new, Slot::Other)),
            _ if old == new => Some(()),
            _ => self.replace_node(node, old, new, slot),
        }
    }

    /// Replaces a node by one of another kind, or by another scalar.
    fn replace_node(&mut self, node: &YamlNode, old: &Value, new: &Value, slot: Slot) -> Option<()> {
        let current = &self.text[node.span.clone()];
        let scalar = !new.is_object() && !new.is_array();
        match (&node.shape, slot) {
            (Shape::Scalar(ScalarStyle::Literal | ScalarStyle::Folded), _) => None,
            // The style in which null is written determines the style of the map, so that the inverse edit restores it.
            (Shape::Scalar(_), Slot::Block { column, after_colon }) if current.is_empty() => match new {
                Value::Object(fields) if !fields.is_empty() => {
                    let lines = self.block_lines(fields.iter(), column + 2);
                    self.replace(after_colon..after_colon, format!("{}{}{lines}", self.eol, " ".repeat(column + 2)))
                }
                _ => self.replace(after_colon..after_colon, format!(" {}", self.flow(new))),
            },
            (Shape::Scalar(_), _) if current.is_empty() => None,
            (Shape::Scalar(_), _) if current == "~" && new.is_object() => {
                let flow = self.flow(new);
                let inner = flow.strip_prefix('{').and_then(|f| f.strip_suffix('}'))?;
                self.replace(node.span.clone(), format!("{{ {inner} }}"))
            }
            (Shape::Scalar(style), _) if scalar => {
                let new = self.scalar(new, *style);
                self.replace(node.span.clone(), new)
            }
            (Shape::Scalar(_), _) if old.is_null() => self.replace(node.span.clone(), self.flow(new)),
            (Shape::Alias, _) if scalar && !old.is_object() && !old.is_array() => {
                self.replace(node.span.clone(), self.scalar(new, ScalarStyle::Plain))
            }
            (Shape::Mapping { flow: true, .. }, _) if new.is_null() => {
                let null = if current.starts_with("{ ") && !self.json { "~" } else { "null" };
                self.replace(node.span.clone(), null)
            }
            (Shape::Mapping { flow: false, .. }, Slot::Block { after_colon, .. }) if new.is_null() => {
                self.check_blank(after_colon..node.span.start)?;
                self.replace(after_colon..self.end(node, node.span.end), "")
            }
            _ => None,
        }
    }

    fn block_entries(
        &mut self,
        entries: &[MapEntry],
        kept: &dyn Fn(&MapEntry) -> bool,
        added: &[(&String, &Value)],
        slot: Slot,
    ) -> Option<()> {
        let (first, last) = (entries.first()?, entries.last()?);
        let start = first.key_span.start;
        let line = self.line_start(start);
        let prefix = &self.text[line..start];
        let alone = prefix.bytes().all(|b| b == b' ');
        if !prefix.bytes().all(|b| matches!(b, b' ' | b'-')) {
            return None;
        }
        let indent = " ".repeat(prefix.len());
        let lines = self.block_lines(added.iter().copied(), prefix.len());
        let Some(first_kept) = entries.iter().position(kept) else {
            let end = self.entry_end(last);
            return match (added.is_empty(), slot) {
                (false, _) => self.replace(start..end, lines),
                (true, Slot::Block { after_colon, .. }) => {
                    self.check_blank(after_colon..start)?;
                    self.replace(after_colon..end, " {}")
                }
                _ => None,
            };
        };
        if !added.is_empty() {
            match alone {
                true => self.replace(line..line, format!("{indent}{lines}{}", self.eol))?,
                false => self.replace(start..start, format!("{lines}{}{indent}", self.eol))?,
            }
        }
        let mut removed = entries.iter().enumerate().filter(|(_, e)| !kept(e)).collect::<Vec<_>>();
        if !alone && first_kept > 0 {
            // The first key is on the line of a dash, which stays.
            for pair in entries[..=first_kept].windows(2) {
                self.check_blank(self.entry_end(&pair[0])..pair[1].key_span.start)?;
            }
            self.replace(start..entries[first_kept].key_span.start, "")?;
            removed.retain(|(index, _)| *index > first_kept);
        }
        removed.into_iter().try_for_each(|(_, entry)| {
            let line = self.line_start(entry.key_span.start);
            self.check_blank(line..entry.key_span.start)?;
            let end = self.entry_end(entry);
            let rest = self.text[end..].split_inclusive('\n').next().unwrap_or_default();
            let comment = rest.trim_start();
            (comment.is_empty() || comment.starts_with('#')).then_some(())?;
            self.replace(line..end + rest.len(), "")
        })
    }

    fn flow_entries(
        &mut self,
        node: &YamlNode,
        entries: &[MapEntry],
        kept: &dyn Fn(&MapEntry) -> bool,
        added: &[(&String, &Value)],
    ) -> Option<()> {
        let open = node.span.start + 1;
        if !self.text[node.span.start..].starts_with('{') {
            return None;
        }
        let quoted = entries.first().is_some_and(|e| e.key_style == ScalarStyle::DoubleQuoted);
        let new: Vec<_> = added.iter().map(|(key, value)| self.flow_entry(key, value, quoted)).collect();
        let comma = if self.compact { "," } else { ", " };
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return self.replace(open..open, new.join(comma));
        };
        let start = first.key_span.start;
        self.check_blank(open..start)?;
        let Some(first_kept) = entries.iter().position(kept) else {
            return self.replace(start..self.entry_end(last), new.join(comma));
        };
        if !new.is_empty() {
            let gap = match &self.text[open..start] {
                "" if !self.compact => " ",
                gap => gap,
            };
            let text: String = new.iter().map(|entry| format!("{entry},{gap}")).collect();
            self.replace(start..start, text)?;
        }
        if first_kept > 0 {
            self.replace(start..entries[first_kept].key_span.start, "")?;
        }
        entries[first_kept..]
            .windows(2)
            .filter(|pair| !kept(&pair[1]))
            .try_for_each(|pair| self.replace(self.entry_end(&pair[0])..self.entry_end(&pair[1]), ""))
    }

    fn block_lines<'v>(&self, fields: impl Iterator<Item = (&'v String, &'v Value)>, column: usize) -> String {
        let separator = format!("{}{}", self.eol, " ".repeat(column));
        let entry = |(key, value): (&'v String, &'v Value)| match value {
            Value::Object(inner) if !inner.is_empty() => {
                let lines = self.block_lines(inner.iter(), column + 2);
                format!("{}:{separator}  {lines}", self.key(key, false))
            }
            _ => format!("{}: {}", self.key(key, false), self.flow(value)),
        };
        fields.map(entry).collect::<Vec<_>>().join(&separator)
    }

    fn flow_entry(&self, key: &str, value: &Value, quoted: bool) -> String {
        let colon = if self.compact { ":" } else { ": " };
        format!("{}{colon}{}", self.key(key, quoted), self.flow(value))
    }

    fn flow(&self, value: &Value) -> String {
        let comma = if self.compact { "," } else { ", " };
        match value {
            Value::Object(fields) => {
                let entries: Vec<_> =
                    fields.iter().map(|(key, value)| self.flow_entry(key, value, self.json)).collect();
                format!("{{{}}}", entries.join(comma))
            }
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.flow(item)).collect();
                format!("[{}]", items.join(comma))
            }
            scalar => self.scalar(scalar, ScalarStyle::Plain),
        }
    }

    fn key(&self, key: &str, quoted: bool) -> String {
        if !self.json && !quoted && is_plain_safe(key) { key.to_owned() } else { double_quoted(key) }
    }

    fn scalar(&self, value: &Value, style: ScalarStyle) -> String {
        let Value::String(text) = value else { return value.to_string() };
        if self.json {
            return double_quoted(text);
        }
        match style {
            ScalarStyle::SingleQuoted => single_quoted(text).unwrap_or_else(|| double_quoted(text)),
            ScalarStyle::DoubleQuoted => double_quoted(text),
            _ if is_plain_safe(text) => text.clone(),
            _ if text.contains(['"', '\\']) => single_quoted(text).unwrap_or_else(|| double_quoted(text)),
            _ => double_quoted(text),
        }
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |i| i + 1)
    }

    fn after_colon(&self, entry: &MapEntry) -> Option<usize> {
        let rest = &self.text[entry.key_span.end..];
        let gap = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        rest[gap..].starts_with(':').then_some(entry.key_span.end + gap + 1)
    }

    fn entry_end(&self, entry: &MapEntry) -> usize {
        self.end(&entry.node, self.after_colon(entry).unwrap_or(entry.key_span.end))
    }

    /// The end of a node's last character; `empty` for an empty node.
    fn end(&self, node: &YamlNode, empty: usize) -> usize {
        match &node.shape {
            Shape::Mapping { flow: false, entries } => entries.last().map_or(empty, |entry| self.entry_end(entry)),
            Shape::Sequence { items } if !self.text[..node.span.end].ends_with(']') => {
                items.last().map_or(empty, |item| self.end(item, item.span.end))
            }
            Shape::Scalar(ScalarStyle::Literal | ScalarStyle::Folded) => self.text[..node.span.end].trim_end().len(),
            Shape::Scalar(_) if node.span.is_empty() => empty,
            _ => node.span.end,
        }
    }

    /// Fails if a range contains more than white space: a comment, anchor or tag would be lost.
    fn check_blank(&self, range: Range<usize>) -> Option<()> {
        self.text.get(range)?.trim().is_empty().then_some(())
    }
}
