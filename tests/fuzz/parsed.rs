//! Target: the parser of the objects of a review, compared with serde_json.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::Value;
use trustspan::json::Json;
use trustspan::webhook::review::{Review, ReviewError};

use crate::{draw::Draw, json::object, mutate::mutate};

/// More than any input needs.
const ENOUGH: usize = 1 << 30;
/// Limits around what small inputs need, in bytes.
const LIMITS: [usize; 5] = [1 << 9, 1 << 10, 1 << 12, 1 << 14, 1 << 16];

pub(crate) fn case(draw: &mut Draw) {
    let text = if draw.one_in(8) { draw.rest() } else { changed(draw) };
    draw.show("object.json", &text);
    let Ok(text) = String::from_utf8(text) else { return };
    // Another text could end the object in the review.
    if serde_json::from_str::<IgnoredAny>(&text).is_err() {
        return;
    }
    let read = match (parsed(&text, ENOUGH), serde_json::from_str::<Value>(&text)) {
        (Ok((read, _)), Ok(other)) => {
            assert_eq!(read, kept(other, &[]));
            Some(read)
        }
        // What is skipped may be nested more deeply, and have larger numbers, than a tree can.
        (Ok((read, _)), Err(_)) => Some(read),
        (Err(ReviewError::Json { .. }), Err(_)) => None,
        // In the review, the object is two levels deeper.
        (Err(ReviewError::Json { what: "more than 128 levels", .. }), Ok(_)) => None,
        (Err(error), other) => panic!("{error}, and serde_json says: {other:?}"),
    };
    for limit in LIMITS {
        match (parsed(&text, limit), &read) {
            (Ok((small, least)), Some(read)) => {
                assert_eq!(small, *read, "another limit");
                assert!(least <= limit, "{least} bytes, {limit} allowed");
            }
            (Err(ReviewError::Json { .. }), None) | (Err(ReviewError::TooCostly(_)), _) => {}
            (small, _) => panic!("with a limit of {limit} bytes: {small:?}"),
        }
    }
}

/// The text of an object, with up to three changes.
fn changed(draw: &mut Draw) -> Vec<u8> {
    let mut text = object(draw).to_string().into_bytes();
    let count = draw.below(4);
    mutate(&mut text, count, draw);
    text
}

/// An object as the webhook parses it, and the least memory that its tree takes, in bytes.
fn parsed(object: &str, memory: usize) -> Result<(Value, usize), ReviewError> {
    let body = format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"CREATE","kind":{{}},"object":{object}}}}}"#
    );
    let review = Review::parse(body.as_bytes(), memory)?;
    let object = review.request("").object.unwrap_or(&Json::Null);
    Ok((object.into(), least(object)))
}

/// A value without the fields that no decision needs. `path` has the names of the fields above it.
fn kept(value: Value, path: &[&str]) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(|item| kept(item, path)).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, _)| is_kept(path, name));
            fields.map(|(name, value)| (name.clone(), kept(value, &[path, &[name.as_str()]].concat()))).collect()
        }
        other => other,
    }
}

fn is_kept(path: &[&str], name: &str) -> bool {
    match path {
        ["metadata"] => !["managedFields", "finalizers"].contains(&name),
        ["metadata", "ownerReferences"] => name == "uid",
        _ => true,
    }
}

/// The least memory that a tree takes without its texts, in bytes.
fn least(value: &Json<'_>) -> usize {
    match value {
        Json::List(items) => items.iter().map(|item| size_of::<Json<'_>>() + least(item)).sum(),
        Json::Object(fields) => {
            fields.iter().map(|(_, value)| size_of::<(Cow<'_, str>, Json<'_>)>() + least(value)).sum()
        }
        _ => 0,
    }
}
