//! Parses a review within a limit of memory.
//!
//! In a tree of [`Json`], seven bytes of text (`{"":0},`) take ninety bytes of memory. Each allocation is therefore counted before it is made,
//! and parsing stops at the limit. Fields that no decision needs are not kept: etcd stores a few bytes for an entry of `managedFields` or of
//! `ownerReferences` that would be the largest part of the tree.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::limits::SMALL_BODY;
use crate::json::{Field, Json, UNSORTED};

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
    /// that is skipped.
    pub(super) fn charge_scratch(&self, body: &[u8]) -> Result<(), BoundedJsonError> {
        // Counting a small body takes longer than it is worth.
        let bytes = if body.len() <= SMALL_BODY || body.contains(&b'\\') {
            3 * body.len()
        } else {
            2 * body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count()
        };
        self.charge(bytes).map_err(|error| self.error(error))
    }

    /// Parses a review.
    pub(super) fn parse<'b>(&self, review: &'b str) -> Result<Json<'b>, BoundedJsonError> {
        self.parse_at(Place::Review, review)
    }

    fn parse_at<'b>(&self, place: Place, text: &'b str) -> Result<Json<'b>, BoundedJsonError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let mut unfinished = Unfinished::default();
        let parsed = Seed { budget: self, unfinished: &mut unfinished, place }.deserialize(&mut json);
        self.refund(unfinished.items.counted() + unfinished.fields.counted());
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

    /// A text in the body: the copy that a verdict may decode.
    fn borrowed<'b, E: Error>(&self, text: &'b str) -> Result<Cow<'b, str>, E> {
        self.charge(copied(text))?;
        Ok(text.into())
    }

    /// A text with an escape, which is copied, and the copy that a verdict may decode.
    fn owned<'b, E: Error>(&self, text: &str) -> Result<Cow<'b, str>, E> {
        self.charge(2 * copied(text))?;
        Ok(text.to_owned().into())
    }

    /// The fields of an object. Sorting many of them takes a copy for a moment.
    fn object<'b, E: Error>(&self, fields: Vec<Field<'b>>) -> Result<Json<'b>, E> {
        let scratch = if fields.len() > UNSORTED { fields.len() * size_of::<Field<'_>>() } else { 0 };
        self.charge(scratch)?;
        let object = Json::Object(fields.into());
        self.refund(scratch);
        Ok(object)
    }
}

/// Bytes of a copy of a text, at most. Allocators round sizes up: to 8 bytes, and by at most an eighth.
fn copied(text: &str) -> usize {
    if text.is_empty() { 0 } else { text.len() + text.len() / 8 + 8 }
}

/// What was read of the lists and objects that are not finished. A finished one is moved to an allocation of its size.
#[derive(Default)]
struct Unfinished<'b> {
    items: Stack<Json<'b>>,
    fields: Stack<Field<'b>>,
}

/// Values of unfinished lists, or of unfinished objects. Those of the innermost one are last.
struct Stack<T> {
    values: Vec<T>,
    /// The most values that there were: the pages that were written.
    most: usize,
}

impl<T> Default for Stack<T> {
    fn default() -> Self {
        // More than most objects need at once.
        Self { values: Vec::with_capacity(32), most: 0 }
    }
}

impl<T> Stack<T> {
    fn counted(&self) -> usize {
        self.most * size_of::<T>()
    }

    /// Adds a value, which is counted first.
    fn push<E: Error>(&mut self, value: T, budget: &Budget) -> Result<(), E> {
        if self.values.len() == self.most {
            if self.values.len() == self.values.capacity() {
                // Both allocations exist while the values are moved to a larger one.
                budget.charge(self.counted())?;
                budget.refund(self.counted());
            }
            budget.charge(size_of::<T>())?;
            self.most += 1;
        }
        self.values.push(value);
        Ok(())
    }

    /// The values from `start`, of which the tree and a verdict make so many copies.
    fn finish<E: Error>(&mut self, start: usize, copies: usize, budget: &Budget) -> Result<Vec<T>, E> {
        budget.charge(copies * (self.values.len() - start) * size_of::<T>())?;
        Ok(self.values.drain(start..).collect())
    }
}

/// Where a value is, as far as that says which fields are kept, and what a verdict copies of them.
#[derive(Clone, Copy)]
enum Place {
    Review,
    Request,
    User,
    Object,
    Metadata,
    Owners,
    /// Texts, and maps of texts: `data`, labels, annotations.
    Texts,
    /// All other fields of an object: a pod template is copied, a spec is converted.
    Fields,
}

impl Place {
    /// Where the value of a field is; `None` if no decision needs it.
    fn field(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::Review, "request") => Some(Self::Request),
            (Self::Review, "apiVersion" | "kind") => Some(Self::Texts),
            (Self::Request, "object" | "oldObject") => Some(Self::Object),
            (Self::Request, "userInfo") => Some(Self::User),
            (Self::Request, "uid" | "kind" | "subResource" | "namespace" | "name" | "operation" | "dryRun") => {
                Some(Self::Texts)
            }
            (Self::User, "username") => Some(Self::Texts),
            (Self::Review | Self::Request | Self::User, _) => None,
            (Self::Object, "metadata") => Some(Self::Metadata),
            (Self::Object, "data" | "binaryData" | "stringData") => Some(Self::Texts),
            (Self::Metadata, "ownerReferences") => Some(Self::Owners),
            (Self::Metadata, "managedFields" | "finalizers") => None,
            (Self::Owners, _) => (key == "uid").then_some(Self::Texts),
            (Self::Metadata | Self::Texts, _) => Some(Self::Texts),
            (Self::Object | Self::Fields, _) => Some(Self::Fields),
        }
    }

    /// How often the lists and objects are in memory at once. Texts are copied everywhere: a verdict decodes them.
    fn copies(self) -> usize {
        if matches!(self, Self::Fields) { 2 } else { 1 }
    }

    /// Bytes that a verdict takes for an object with fields, at most: a renamed reference is an operation of a patch, which is encoded twice.
    fn work(self) -> usize {
        if matches!(self, Self::Fields) { 300 } else { 0 }
    }
}

/// Reads a value.
struct Seed<'s, 'b> {
    budget: &'s Budget,
    unfinished: &'s mut Unfinished<'b>,
    place: Place,
}

impl<'b> Seed<'_, 'b> {
    /// Reads a value in a list or an object.
    fn inner(&mut self, place: Place) -> Seed<'_, 'b> {
        Seed { budget: self.budget, unfinished: self.unfinished, place }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, 'de> {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, 'de> {
    type Value = Json<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Json<'de>, E> {
        self.budget.borrowed(text).map(Json::Text)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json<'de>, E> {
        self.budget.owned(text).map(Json::Text)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Json<'de>, A::Error> {
        let start = self.unfinished.items.values.len();
        while let Some(value) = items.next_element_seed(self.inner(self.place))? {
            self.unfinished.items.push(value, self.budget)?;
        }
        self.unfinished.items.finish(start, self.place.copies(), self.budget).map(Json::List)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Json<'de>, A::Error> {
        let start = self.unfinished.fields.values.len();
        while let Some(field) = fields.next_key_seed(Key { budget: self.budget, place: self.place })? {
            let Some((key, place)) = field else {
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = fields.next_value_seed(self.inner(place))?;
            self.unfinished.fields.push((key, value), self.budget)?;
        }
        let fields = self.unfinished.fields.finish(start, self.place.copies(), self.budget)?;
        if !fields.is_empty() {
            self.budget.charge(self.place.work())?;
        }
        self.budget.object(fields)
    }
}

/// Reads the key of a field, and says where its value is; `None` if it is skipped.
struct Key<'s> {
    budget: &'s Budget,
    place: Place,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Option<(Cow<'de, str>, Place)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key<'_> {
    type Value = Option<(Cow<'de, str>, Place)>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        self.place.field(key).map(|place| Ok((self.budget.borrowed(key)?, place))).transpose()
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        self.place.field(key).map(|place| Ok((self.budget.owned(key)?, place))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::seed::Seed;
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
        // Each field has another name, or the object would have only one.
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

    /// A random text of JSON. Some texts are the same with and without an escape, and there are few keys, so that some occur twice in an object.
    fn random(seed: &mut Seed, depth: u64) -> String {
        const TEXTS: [&str; 8] =
            [r#""""#, r#""a""#, r#""é""#, r#""\u00e9""#, r#""\n""#, r#""\"""#, r#""data""#, r#""metadata""#];
        const NUMBERS: [&str; 6] = ["0", "-1", "18446744073709551615", "1.5", "-0.0", "1e300"];
        let item = |seed: &mut Seed, from: &[&str]| from[seed.below(from.len() as u64) as usize].to_owned();
        match seed.below(if depth == 0 { 4 } else { 8 }) {
            0 => item(seed, &["null", "true", "false"]),
            1 => item(seed, &NUMBERS),
            2 | 3 => item(seed, &TEXTS),
            4 => {
                let items: Vec<_> = (0..seed.below(5)).map(|_| random(seed, depth - 1)).collect();
                format!("[{}]", items.join(", "))
            }
            _ => {
                let count = if seed.below(8) == 0 { 40 } else { seed.below(6) };
                let field = |_| {
                    let key =
                        if seed.below(3) == 0 { item(seed, &TEXTS) } else { format!(r#""key-{}""#, seed.below(50)) };
                    format!("{key}:{}", random(seed, depth - 1))
                };
                format!("{{{}}}", (0..count).map(field).collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn reads_the_same_values_as_serde_json() {
        let mut seed = Seed::of_run("bounded JSON");
        let mut objects = vec![
            r#"{"a":[1,-1,1.5,true,null,"é\n",{}],"b":{"c":{"d":[]}},"data":{"k":"v","k":"w"}}"#.to_owned(),
            format!(r#"{{"spec":{{"a":1,{}"a":2,"\u0061":3}}}}"#, r#""b":0,"c":0,"#.repeat(20)),
        ];
        objects.extend((0..2_000).map(|_| random(&mut seed, 4)));
        for object in objects {
            let own = Value::from(&Budget::new(1 << 24).parse_at(Place::Object, &object).unwrap());
            assert_eq!(own, serde_json::from_str::<Value>(&object).unwrap(), "{object}");
        }
    }

    #[test]
    fn only_texts_with_an_escape_are_copied() {
        let object = r#"{"spec":{"plain":"text","esc\u0061ped":"te\u0078t"}}"#;
        let Json::Object(spec) = &Budget::new(1 << 20).parse_at(Place::Object, object).unwrap()["spec"] else {
            panic!("no object")
        };
        assert!(matches!(&spec.get("plain"), Some(Json::Text(Cow::Borrowed("text")))));
        assert!(matches!(&spec.get("escaped"), Some(Json::Text(Cow::Owned(text))) if text == "text"));
    }

    #[test]
    fn sorting_a_large_object_is_within_the_limit() {
        let fields: Vec<_> = (0..1_000).map(|number| format!(r#""{number}":0"#)).collect();
        let object = format!(r#"{{"data":{{{}}}}}"#, fields.join(","));
        let size = fields.len() * size_of::<Field<'_>>();
        // The unfinished object, the finished one and its keys fit into the first limit, but not the copy that sorting takes.
        assert!(matches!(Budget::new(5 * size / 2).parse_at(Place::Object, &object), Err(BoundedJsonError::TooCostly)));
        assert!(Budget::new(7 * size / 2).parse_at(Place::Object, &object).is_ok());
    }
}
