//! Parses the objects of a review within a limit of memory.
//!
//! In a tree of [`Value`]s, seven bytes of JSON (`{"":0},`) take three hundred bytes of memory. Each allocation is therefore counted before it is
//! made, and parsing stops at the limit. Fields that no decision needs are not kept: etcd stores a few bytes for an entry of
//! `managedFields` or of `ownerReferences` that would be the largest part of the tree.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::limits::SMALL_BODY;

/// Bytes of an entry of a map, with its hash (indexmap's `Bucket`).
const ENTRY: usize = size_of::<(usize, String, Value)>();
/// Bytes of the index of a map for each entry that it has room for: 8 of hashbrown's buckets for 7 entries, each with its position and its
/// control byte.
const INDEX: usize = 11;
/// Bytes of the smallest index of a map.
const SMALLEST_INDEX: usize = 64;
/// Bytes of the largest allocation that counts as a whole. Of larger ones, only the pages that were written take memory.
const WHOLE: usize = 16 * 1024;

/// Why a body cannot be parsed.
#[derive(Debug)]
pub(super) enum BoundedJsonError {
    /// Invalid JSON, or JSON that is nested too deeply.
    Json(serde_json::Error),
    /// Parsed, it would take more memory than the limit.
    TooCostly,
}

/// The memory that is left for a review, in bytes, without the body itself.
pub(super) struct Budget {
    left: Cell<usize>,
    is_exceeded: Cell<bool>,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        Self { left: Cell::new(bytes), is_exceeded: Cell::new(false) }
    }

    /// Counts the most that serde_json's buffer can take, while it grows: it holds each text with an escape, and a byte for each level of a value
    /// that is skipped. Texts with an escape that are not part of an object are copied.
    pub(super) fn charge_scratch(&self, body: &[u8]) -> Result<(), BoundedJsonError> {
        // Counting a small body takes longer than it is worth.
        let bytes = if body.len() <= SMALL_BODY || body.contains(&b'\\') {
            3 * body.len()
        } else {
            2 * body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count()
        };
        self.charge(bytes).map_err(|error| self.error(error))
    }

    /// Parses an object of the review.
    pub(super) fn parse(&self, object: &[u8]) -> Result<Value, BoundedJsonError> {
        let mut json = serde_json::Deserializer::from_slice(object);
        let parsed = Seed { budget: self, place: Place::Object }.deserialize(&mut json);
        parsed.and_then(|value| json.end().map(|()| value)).map_err(|error| self.error(error))
    }

    fn error(&self, error: serde_json::Error) -> BoundedJsonError {
        if self.is_exceeded.get() { BoundedJsonError::TooCostly } else { BoundedJsonError::Json(error) }
    }

    fn charge<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let Some(left) = self.left.get().checked_sub(bytes) else {
            self.is_exceeded.set(true);
            return Err(E::custom("too costly"));
        };
        self.left.set(left);
        Ok(())
    }

    fn refund(&self, bytes: usize) {
        self.left.set(self.left.get() + bytes);
    }

    /// A text, and the copy that a verdict may decode. Allocators round sizes up: to 8 bytes, and by at most an eighth.
    fn text<E: Error>(&self, text: &str) -> Result<String, E> {
        if !text.is_empty() {
            self.charge(2 * (text.len() + text.len() / 8) + 8)?;
        }
        Ok(text.to_owned())
    }
}

/// The memory of a list or a map. Its items are moved to a larger allocation when it grows.
struct Room<'b> {
    budget: &'b Budget,
    /// Bytes of an item.
    item: usize,
    length: usize,
    capacity: usize,
}

impl<'b> Room<'b> {
    fn new(budget: &'b Budget, item: usize) -> Self {
        Self { budget, item, length: 0, capacity: 0 }
    }

    /// Counts an item before it is added. `grown` is the next capacity.
    fn add<E: Error>(&mut self, grown: fn(usize) -> usize) -> Result<(), E> {
        if self.length == self.capacity {
            let old = self.counted();
            self.capacity = grown(self.capacity);
            // Both allocations exist while the items are moved.
            self.budget.charge(self.counted())?;
            self.budget.refund(old);
        }
        let old = self.counted();
        self.length += 1;
        self.budget.charge(self.counted() - old)
    }

    /// The bytes of the allocation that count.
    fn counted(&self) -> usize {
        let all = self.capacity * self.item;
        if all <= WHOLE { all } else { self.length * self.item }
    }
}

/// The next capacity of a `Vec` that begins with one item.
fn list_capacity(capacity: usize) -> usize {
    if capacity == 0 { 1 } else { (2 * capacity).max(4) }
}

/// The next capacity of an indexmap that begins with one entry: hashbrown fills 7 of 8 buckets, and its smallest table has 4.
fn map_capacity(capacity: usize) -> usize {
    match capacity {
        0 => 1,
        1 => 3,
        3 => 7,
        more => 2 * more,
    }
}

/// Where a value is, as far as that says which fields are kept, and what a verdict copies of them.
#[derive(Clone, Copy)]
enum Place {
    Object,
    Metadata,
    Owners,
    /// Maps of texts: `data`, labels, annotations.
    Texts,
    /// All other fields of an object: a pod template is copied, a spec is converted.
    Fields,
}

impl Place {
    /// Where the value of a field is; `None` if no decision needs it.
    fn field(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Object, "metadata") => Some(Self::Metadata),
            (Self::Object, "data" | "binaryData" | "stringData") => Some(Self::Texts),
            (Self::Metadata, "ownerReferences") => Some(Self::Owners),
            (Self::Metadata, "managedFields" | "finalizers") => None,
            (Self::Owners, _) => (key == "uid").then_some(Self::Texts),
            (Self::Metadata | Self::Texts, _) => Some(Self::Texts),
            (Self::Object | Self::Fields, _) => Some(Self::Fields),
        }
    }

    /// How often the lists and maps are in memory at once. Texts are there twice everywhere: a verdict decodes them.
    fn copies(self) -> usize {
        if matches!(self, Self::Fields) { 2 } else { 1 }
    }

    /// Bytes that a verdict takes for a map with fields, at most: a renamed reference is an operation of a patch, which is encoded twice.
    fn work(self) -> usize {
        if matches!(self, Self::Fields) { 300 } else { 0 }
    }
}

/// Reads a value.
#[derive(Clone, Copy)]
struct Seed<'b> {
    budget: &'b Budget,
    place: Place,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.budget.text(text).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut room = Room::new(self.budget, self.place.copies() * size_of::<Value>());
        let mut list = Vec::new();
        while let Some(value) = items.next_element_seed(self)? {
            room.add(list_capacity)?;
            if list.is_empty() {
                list.reserve_exact(1);
            }
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut room = Room::new(self.budget, self.place.copies() * (ENTRY + INDEX));
        let mut map = Map::new();
        while let Some(field) = fields.next_key_seed(Key(self))? {
            let Some((key, seed)) = field else {
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            if map.is_empty() {
                self.budget.charge(self.place.copies() * SMALLEST_INDEX + self.place.work())?;
                map = Map::with_capacity(1);
            }
            room.add(map_capacity)?;
            map.insert(key, fields.next_value_seed(seed)?);
        }
        Ok(map.into())
    }
}

/// Reads the key of a field, and says how to read its value; `None` if it is skipped.
struct Key<'b>(Seed<'b>);

impl<'de, 'b> DeserializeSeed<'de> for Key<'b> {
    type Value = Option<(String, Seed<'b>)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'b> Visitor<'_> for Key<'b> {
    type Value = Option<(String, Seed<'b>)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        let Self(Seed { budget, place }) = self;
        let Some(place) = place.field(key) else { return Ok(None) };
        Ok(Some((budget.text(key)?, Seed { budget, place })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::Limits;
    use crate::webhook::review::{Review, ReviewError};

    /// Bytes of an object that etcd stores: `--max-request-bytes`.
    const STORED: usize = 1536 * 1024;

    /// The review of an UPDATE from an object to itself.
    fn update(object: &str) -> String {
        format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"UPDATE",
            "kind":{{"group":"","version":"v1","kind":"Secret"}},"object":{object},"oldObject":{object}}}}}"#
        )
    }

    fn is_parsed(body: &str) -> bool {
        match Review::parse(body.as_bytes(), Limits::default().review) {
            Ok(_) => true,
            Err(ReviewError::TooCostly(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Entries of a map, as many as fit into an object with so many bytes for each of them in protobuf.
    fn entries(stored: usize, entry: impl Fn(String) -> String) -> String {
        const DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
        let digit = |n: usize| char::from(DIGITS[n % DIGITS.len()]);
        let key = |n: usize| [n, n / 65, n / 65 / 65].map(digit).iter().collect::<String>();
        let all: Vec<_> = (0..STORED / stored).map(|n| entry(key(n))).collect();
        all.join(",")
    }

    #[test]
    fn whatever_etcd_stores_of_a_secret_or_config_map_is_parsed() {
        let text = |field: &str| {
            format!(r#"{{"metadata":{{"name":"n"}},"{field}":{{"ca.crt":"{}"}}}}"#, "A".repeat(2 * STORED))
        };
        // Sizes in protobuf: two tags and two lengths of an entry, a tag and a length of its key of three bytes.
        let keys = entries(9, |key| format!(r#""{key}":"""#));
        let fields = entries(14, |key| format!(r#""f:{key}":{{"f:a":{{}}}}"#));
        let owners = entries(14, |key| format!(r#"{{"apiVersion":"v","kind":"k","name":"n","uid":"{key}"}}"#));
        for (name, object) in [
            ("a long text", text("data")),
            ("keys of a Secret", format!(r#"{{"data":{{{keys}}}}}"#)),
            ("keys of a ConfigMap", format!(r#"{{"binaryData":{{{keys}}}}}"#)),
            ("labels", format!(r#"{{"metadata":{{"labels":{{{keys}}}}}}}"#)),
            ("managed fields", format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{{{fields}}}}}]}}}}"#)),
            ("finalizers", format!(r#"{{"metadata":{{"finalizers":[{}0]}}}}"#, r#""a/a","#.repeat(STORED / 5))),
            ("owners", format!(r#"{{"metadata":{{"ownerReferences":[{owners}]}}}}"#)),
        ] {
            assert!(is_parsed(&update(&object)), "{name}");
        }
    }

    #[test]
    fn a_custom_resource_definition_of_a_mebibyte_is_parsed() {
        let field = r#""clientTrust":{"description":"What a person reads of a field in its schema.","type":"object","properties":{"name":{"type":"string"}}},"#;
        let schema = field.repeat((1 << 20) / field.len());
        // Each field has another name, or the map would have only one.
        let mut number = 0;
        let schema = schema.split("clientTrust").fold(String::new(), |all, part| {
            number += 1;
            if all.is_empty() { format!("{part} ") } else { format!("{all}field{number}{part}") }
        });
        let object = format!(r#"{{"spec":{{{}}}}}"#, schema.trim().trim_end_matches(','));
        assert!(is_parsed(&update(&object)));
    }

    #[test]
    fn stops_before_a_tree_is_larger_than_the_limit() {
        for unit in [r#"{"":0},"#, r#"{"":[0]},"#, "0,", "[],", "[[0]],", r#""a","#, r#"{"":{"":{"":{}}}},"#] {
            let body = format!("[{}0]", unit.repeat((8 << 20) / unit.len()));
            assert!(!is_parsed(&update(&body)), "{unit}");
        }
        // A text with an escape is in a buffer first.
        assert!(!is_parsed(&update(&format!(r#"{{"data":{{"k":"\n{}"}}}}"#, "a".repeat(10 << 20)))));
        // A skipped value takes a byte for each level.
        assert!(!is_parsed(&"[".repeat(40 << 20)));
    }

    #[test]
    fn reads_the_same_values_as_serde_json() {
        let object = r#"{"a":[1,-1,1.5,true,null,"é\n",{}],"b":{"c":{"d":[]}},"data":{"k":"v","k":"w"}}"#;
        let own = Budget::new(1 << 20).parse(object.as_bytes()).unwrap();
        let other: Value = serde_json::from_str(object).unwrap();
        assert_eq!(own, other);
        assert_eq!(own.to_string(), other.to_string());
    }
}
