//! A Secret, decoded.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::engine::{Engine, Simd, general_purpose::PAD};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::json::Json;

/// Label that every managed Secret carries, with the value `"true"`. The webhook configuration selects on it
/// (`objectSelector` is matched against `object` and `oldObject`), so its removal is judged, too.
pub const MANAGED_LABEL: &str = "trustspan.dev/managed";

/// Label of a Secret that holds a client's certificate for gateways: the name of their GatewaySecret where that is in the same
/// namespace, `NAMESPACE_NAME` where it is in another one, which has to list the client's (`spec.clients.namespaces`).
pub const CLIENT_LABEL: &str = "trustspan.dev/client";

/// The label of a Secret in which cert-manager stores the key of an issuance in progress; no gateway uses it.
pub(super) const NEXT_PRIVATE_KEY: &str = "cert-manager.io/next-private-key";

/// Base64 as in the data of a Secret and the patch of a review (RFC 4648 §4), with the vector instructions of the CPU.
pub(crate) static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::standard(PAD));

/// A Secret's identity and bytes. Has no `Debug`, and wipes its bytes when dropped: it may contain private keys.
#[derive(Clone, Default)]
pub struct Secret {
    /// Namespace; empty if the manifest has none.
    pub namespace: String,
    /// Name; empty for `generateName`.
    pub name: String,
    /// `type`, empty when absent.
    pub type_: String,
    /// The labels that verdicts use; hostile Secrets have a hundred thousand others.
    pub labels: BTreeMap<String, String>,
    /// `immutable`: the API server rejects every change of its content.
    pub immutable: bool,
    /// `data`, decoded, overwritten by `stringData` as in the API server.
    pub data: BTreeMap<String, Zeroizing<Vec<u8>>>,
}

/// Why an object cannot be read as a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// A field has the wrong JSON type.
    #[error("{field}: not {expected}")]
    Shape {
        /// The field.
        field: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A value under `data` is not base64 (RFC 4648 §4).
    #[error("data[{key}]: not base64; put plain text under stringData")]
    Base64 {
        /// The key under `data`.
        key: String,
    },
}

impl Secret {
    /// A Secret with a CA bundle under a key, and nothing else.
    pub(crate) fn of_bundle(key: &str, pem: &[u8]) -> Self {
        Self {
            namespace: String::new(),
            name: String::new(),
            type_: String::new(),
            labels: BTreeMap::new(),
            immutable: false,
            data: BTreeMap::from([(key.to_owned(), Zeroizing::new(pem.to_vec()))]),
        }
    }

    /// Reads a `v1` Secret object.
    ///
    /// # Errors
    /// When a field has a wrong type, or a value is not base64. The error names the field, but not its content.
    pub fn from_value(object: &Value) -> Result<Self, SecretError> {
        Self::from_json(&Json::from(object))
    }

    /// Reads a `v1` Secret object of a review.
    ///
    /// # Errors
    /// As for [`from_value`](Self::from_value).
    pub fn from_json(object: &Json<'_>) -> Result<Self, SecretError> {
        let metadata = &object["metadata"];
        let text = |v: &Json<'_>| v.as_str().unwrap_or_default().to_owned();
        let decode = |(key, value): (&str, &Json<'_>)| {
            let value = string(value, "data", key)?;
            let bytes = decoded(value).ok_or_else(|| SecretError::Base64 { key: key.to_owned() })?;
            Ok((key.to_owned(), Zeroizing::new(bytes)))
        };
        let mut data: BTreeMap<_, _> = entries(object, "data")?.map(decode).collect::<Result<_, _>>()?;
        for (key, value) in entries(object, "stringData")? {
            let value = string(value, "stringData", key)?;
            data.insert(key.to_owned(), Zeroizing::new(value.as_bytes().to_vec()));
        }
        let label = |key: &str| Some((key.to_owned(), text(metadata["labels"].get(key)?)));
        let labels = [CLIENT_LABEL, MANAGED_LABEL, NEXT_PRIVATE_KEY].into_iter().filter_map(label).collect();
        Ok(Self {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            type_: text(&object["type"]),
            labels,
            immutable: object["immutable"] == true,
            data,
        })
    }
}

/// A key under `data`, as users write it.
pub(crate) fn field(key: &str) -> String {
    format!("data[{key}]")
}

/// Decodes base64; `None` if it is malformed. Line ends are skipped, as by Kubernetes' decoder (Go encoding/base64).
pub(crate) fn decoded(value: &str) -> Option<Vec<u8>> {
    let bytes = value.as_bytes();
    if !bytes.contains(&b'\r') && !bytes.contains(&b'\n') {
        return BASE64.decode(value).ok();
    }
    let compact = Zeroizing::new(value.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect::<Vec<_>>());
    BASE64.decode(&*compact).ok()
}

fn entries<'a>(
    object: &'a Json<'a>,
    field: &'static str,
) -> Result<impl Iterator<Item = (&'a str, &'a Json<'a>)>, SecretError> {
    match &object[field] {
        Json::Null => Ok(None),
        Json::Object(map) => Ok(Some(map)),
        _ => Err(SecretError::Shape { field: field.to_owned(), expected: "a map" }),
    }
    .map(|map| map.into_iter().flatten())
}

fn string<'a>(value: &'a Json<'a>, field: &'static str, key: &str) -> Result<&'a str, SecretError> {
    match value {
        Json::Null => Ok(""),
        Json::Text(text) => Ok(text),
        _ => Err(SecretError::Shape { field: format!("{field}[{key}]"), expected: "a string" }),
    }
}
