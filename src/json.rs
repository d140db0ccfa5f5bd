//! A JSON value whose texts are borrowed from the text that it was parsed from.
//!
//! The objects of a review are parsed, read once and dropped. With a tree of [`serde_json::Value`]s, which has a copy of each text and a hash
//! table for each object, the answer about a Deployment took twice as many instructions. The methods have the names that they have there.

use std::borrow::Cow;
use std::ops::Index;
use std::slice;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Number, Value};

/// Fields of an object up to which a key is found by comparing it with each of them. A larger object is sorted, so that a hostile one
/// does not take quadratic time.
pub(crate) const UNSORTED: usize = 16;

/// A field of an object.
pub(crate) type Field<'a> = (Cow<'a, str>, Json<'a>);

/// A JSON value (RFC 8259).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Json<'a> {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    Text(Cow<'a, str>),
    /// An array.
    List(Vec<Json<'a>>),
    /// An object.
    Object(Object<'a>),
}

impl<'a> Json<'a> {
    /// The value of a field; `None` if it is absent, or if this is not an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_object()?.get(key)
    }

    /// The value at a JSON Pointer (RFC 6901).
    pub fn pointer(&self, pointer: &str) -> Option<&Self> {
        if pointer.is_empty() {
            return Some(self);
        }
        pointer.strip_prefix('/')?.split('/').try_fold(self, |value, step| match value {
            Self::Object(fields) if step.contains('~') => fields.get(&step.replace("~1", "/").replace("~0", "~")),
            Self::Object(fields) => fields.get(step),
            Self::List(items) if step == "0" || !step.starts_with(['0', '+']) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// A whole number within the range of the type.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Number(number) => number.as_i64(),
            _ => None,
        }
    }

    /// The items of an array.
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The items of an array, to change them.
    pub(crate) fn as_array_mut(&mut self) -> Option<&mut [Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The fields of an object.
    pub fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// The fields of an object, to change their values.
    pub(crate) fn as_object_mut(&mut self) -> Option<&mut Object<'a>> {
        match self {
            Self::Object(fields) => Some(fields),
            _ => None,
        }
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether this is a string.
    pub fn is_string(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Whether this is an object.
    pub fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }
}

/// The value of a field; `null` if it is absent.
impl<'a> Index<&str> for Json<'a> {
    type Output = Json<'a>;

    fn index(&self, key: &str) -> &Json<'a> {
        self.get(key).unwrap_or(&Json::Null)
    }
}

/// An item of an array; `null` if it is absent.
impl<'a> Index<usize> for Json<'a> {
    type Output = Json<'a>;

    fn index(&self, index: usize) -> &Json<'a> {
        self.as_array().and_then(|items| items.get(index)).unwrap_or(&Json::Null)
    }
}

impl PartialEq<&str> for Json<'_> {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == Some(*text)
    }
}

impl PartialEq<bool> for Json<'_> {
    fn eq(&self, value: &bool) -> bool {
        self.as_bool() == Some(*value)
    }
}

/// The fields of an object, each key once. Two objects are equal in any order of their fields.
#[derive(Clone, Debug, Eq)]
pub struct Object<'a> {
    /// Sorted by key if there are more than [`UNSORTED`].
    fields: Vec<Field<'a>>,
}

impl<'a> Object<'a> {
    /// The value of a field.
    pub fn get(&self, key: &str) -> Option<&Json<'a>> {
        self.position(key).map(|at| &self.fields[at].1)
    }

    /// The value of a field, to change it.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Json<'a>> {
        self.position(key).map(|at| &mut self.fields[at].1)
    }

    /// Removes a field.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Some(at) = self.position(key) {
            self.fields.remove(at);
        }
    }

    /// Whether there is a field with this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.position(key).is_some()
    }

    /// The keys and values.
    pub fn iter(&self) -> Fields<'_, 'a> {
        self.into_iter()
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    fn position(&self, key: &str) -> Option<usize> {
        if self.fields.len() <= UNSORTED {
            self.fields.iter().position(|(name, _)| name == key)
        } else {
            self.fields.binary_search_by(|(name, _)| (**name).cmp(key)).ok()
        }
    }
}

impl<'a> From<Vec<Field<'a>>> for Object<'a> {
    /// The last field with a key counts, as for serde_json.
    fn from(mut fields: Vec<Field<'a>>) -> Self {
        if fields.len() <= UNSORTED {
            let mut at = 0;
            while let Some(((key, _), later)) = fields[at..].split_first() {
                if later.iter().any(|(other, _)| other == key) {
                    fields.remove(at);
                } else {
                    at += 1;
                }
            }
        } else {
            // Stable, so the last field with a key is the last of its neighbours.
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            fields.dedup_by(|later, kept| {
                let is_same = later.0 == kept.0;
                if is_same {
                    std::mem::swap(later, kept);
                }
                is_same
            });
        }
        Self { fields }
    }
}

impl PartialEq for Object<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl<'o, 'a> IntoIterator for &'o Object<'a> {
    type Item = (&'o str, &'o Json<'a>);
    type IntoIter = Fields<'o, 'a>;

    fn into_iter(self) -> Fields<'o, 'a> {
        Fields(self.fields.iter())
    }
}

/// The keys and values of an object.
#[derive(Clone, Debug)]
pub struct Fields<'o, 'a>(slice::Iter<'o, Field<'a>>);

impl<'o, 'a> Iterator for Fields<'o, 'a> {
    type Item = (&'o str, &'o Json<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (&**key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Fields<'_, '_> {}

/// Borrows the texts.
impl<'a> From<&'a Value> for Json<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::Text(Cow::Borrowed(text)),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| (Cow::Borrowed(key.as_str()), Self::from(value)));
                Self::Object(fields.collect::<Vec<_>>().into())
            }
        }
    }
}

impl From<&Json<'_>> for Value {
    fn from(json: &Json<'_>) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => Self::Number(number.clone()),
            Json::Text(text) => Self::String(text.clone().into_owned()),
            Json::List(items) => Self::Array(items.iter().map(Self::from).collect()),
            Json::Object(fields) => {
                Self::Object(fields.iter().map(|(key, value)| (key.to_owned(), Self::from(value))).collect())
            }
        }
    }
}

/// Reads a typed value, such as a spec.
impl<'de> Deserializer<'de> for &'de Json<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Null => visitor.visit_unit(),
            Json::Bool(value) => visitor.visit_bool(*value),
            Json::Number(number) => number.deserialize_any(visitor),
            Json::Text(text) => visitor.visit_borrowed_str(text),
            Json::List(items) => SeqDeserializer::new(items.iter()).deserialize_any(visitor),
            Json::Object(fields) => MapDeserializer::new(fields.iter()).deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// Only enums whose variants have no fields: a string.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Json::Text(text) => visitor.visit_enum((**text).into_deserializer()),
            other => other.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map
        struct identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Json<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
pub(crate) use tests::json;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde::Deserialize;

    use super::*;
    use crate::api::GatewaySecretSpec;

    /// As `serde_json::json!`.
    macro_rules! json {
        ($($json:tt)+) => { $crate::json::Json::from(serde_json::json!($($json)+)) };
    }
    pub(crate) use json;

    impl From<Value> for Json<'static> {
        fn from(value: Value) -> Self {
            match value {
                Value::Null => Self::Null,
                Value::Bool(value) => Self::Bool(value),
                Value::Number(number) => Self::Number(number),
                Value::String(text) => Self::Text(Cow::Owned(text)),
                Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
                Value::Object(fields) => {
                    let fields = fields.into_iter().map(|(key, value)| (Cow::Owned(key), Self::from(value)));
                    Self::Object(fields.collect::<Vec<_>>().into())
                }
            }
        }
    }

    impl std::fmt::Display for Json<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            Value::from(self).fmt(f)
        }
    }

    /// Adds the field if it is absent, as for `Value`.
    impl std::ops::IndexMut<&str> for Json<'_> {
        fn index_mut(&mut self, key: &str) -> &mut Self {
            if self.is_null() {
                *self = Self::Object(Vec::new().into());
            }
            let object = self.as_object_mut().unwrap();
            if !object.contains_key(key) {
                object.fields.push((Cow::Owned(key.to_owned()), Json::Null));
                *object = std::mem::take(&mut object.fields).into();
            }
            object.get_mut(key).unwrap()
        }
    }

    /// So that one `json!` can be part of another.
    impl serde::Serialize for Json<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            Value::from(self).serialize(serializer)
        }
    }

    /// An object whose fields have the numbers below `count` as values, in another order than their keys.
    fn object(count: usize) -> Json<'static> {
        let field = |at: usize| (format!("key-{}", at * 7 % count).into(), json!(at));
        Json::Object((0..count).map(field).collect::<Vec<_>>().into())
    }

    #[test]
    fn a_field_is_found_by_its_key_in_small_and_large_objects() {
        for count in [1, UNSORTED, UNSORTED + 1, 1_000] {
            let object = object(count);
            let fields = object.as_object().unwrap();
            assert_eq!(fields.len(), count);
            for at in 0..count {
                assert_eq!(
                    object[format!("key-{}", at * 7 % count).as_str()].as_i64(),
                    Some(at as i64),
                    "{at} of {count}"
                );
            }
            assert!(!fields.contains_key("key") && !fields.contains_key("key-1001") && object.get("").is_none());
        }
    }

    #[test]
    fn the_last_field_with_a_key_counts() {
        for others in [0, 3, 40] {
            let field = |key: String, value: usize| (Cow::Owned(key), json!(value));
            let mut fields: Vec<_> = (0..others).map(|at| field(format!("other-{at}"), at)).collect();
            for value in 1..=3 {
                fields.insert(fields.len() / value, field("twice".to_owned(), 0));
                fields.push(field("twice".to_owned(), value));
            }
            let object = Object::from(fields);
            assert_eq!(object.len(), others + 1);
            assert_eq!(object.keys().filter(|key| *key == "twice").count(), 1);
            assert_eq!(object.get("twice"), Some(&json!(3)));
        }
    }

    #[test]
    fn objects_are_equal_in_any_order_of_their_fields() {
        assert_eq!(json!({"a": 1, "b": [2]}), json!({"b": [2], "a": 1}));
        for other in [json!({"a": 1}), json!({"a": 1, "b": [3]}), json!({"a": 1, "b": [2], "c": 3})] {
            assert_ne!(json!({"a": 1, "b": [2]}), other);
        }
    }

    #[test]
    fn a_pointer_names_fields_and_items() {
        let json = json!({"a/b": {"m~n": [10, 11]}, "0": "zero"});
        assert_eq!(json.pointer(""), Some(&json));
        assert_eq!(json.pointer("/a~1b/m~0n/1"), Some(&json!(11)));
        assert_eq!(json.pointer("/0"), Some(&json!("zero")));
        for absent in ["0", "/a", "/a~1b/m~0n/2", "/a~1b/m~0n/01", "/a~1b/m~0n/+1", "/a~1b/m~0n/-", "/0/0"] {
            assert_eq!(json.pointer(absent), None, "{absent}");
        }
    }

    #[test]
    fn texts_of_a_value_are_borrowed() {
        let value = serde_json::json!({"key": ["text"]});
        let json = Json::from(&value);
        assert!(matches!(&json["key"][0], Json::Text(Cow::Borrowed("text"))));
        assert!(matches!(&json.as_object().unwrap().fields[0], (Cow::Borrowed("key"), _)));
    }

    #[test]
    fn a_typed_value_is_read_as_from_serde_json() {
        for value in [
            serde_json::json!({"sourceSecretName": "root", "mode": "Copy", "workloadLabels": {"istio": "gw"}, "clients": {"allDeclared": true}}),
            serde_json::json!({"certificateRef": {"name": "root"}, "trustBundleTargets": [{"kind": "Secret", "name": "x"}], "clients": null}),
            serde_json::json!({"sourceSecretName": "root", "mode": "Other"}),
            serde_json::json!({"sourceSecretName": 7}),
            serde_json::json!({"clients": []}),
            serde_json::json!([1, 2]),
            serde_json::json!(null),
        ] {
            let own = GatewaySecretSpec::deserialize(&Json::from(&value)).map_err(|error| error.to_string());
            assert_eq!(own, GatewaySecretSpec::deserialize(&value).map_err(|error| error.to_string()), "{value}");
        }
    }
}
