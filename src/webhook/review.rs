//! Parses an `admission.k8s.io/v1` AdmissionReview.
//!
//! Any caller that reaches the port may send one, so it is hostile until proven otherwise. Only the fields that decisions need are kept, and
//! their texts stay in the body. `object` and `oldObject` stay untyped, so that unknown fields and number formats are preserved.

use std::borrow::Cow;
use std::mem;

use serde_json::error::Category;

use super::bounded_json::{BoundedJsonError, Budget};
use crate::admission::{Kind, Operation, Request};
use crate::json::Json;

/// The only supported `apiVersion`.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The `kind` of a review.
pub const KIND: &str = "AdmissionReview";

/// Bytes of `request.uid`, which the response repeats. Kubernetes sends 36.
const UID_LIMIT: usize = 1024;

/// A valid review. Has no `Debug`: the objects may contain private keys.
pub struct Review<'b> {
    uid: Cow<'b, str>,
    operation: Operation,
    group: Cow<'b, str>,
    version: Cow<'b, str>,
    kind: Cow<'b, str>,
    sub_resource: Cow<'b, str>,
    namespace: Cow<'b, str>,
    name: Cow<'b, str>,
    username: Cow<'b, str>,
    is_dry_run: bool,
    object: Json<'b>,
    old_object: Json<'b>,
}

/// Why a body is not a valid review. Never quotes the objects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReviewError {
    /// Invalid JSON, or JSON that is incomplete or nested too deeply.
    #[error("the body is not JSON that can be parsed: {what} at line {line}, column {column}")]
    Json {
        /// The kind of error.
        what: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// Parsed, the body would take more memory than the limit.
    #[error("parsed, the review would take more than {0} bytes of memory")]
    TooCostly(usize),
    /// A field of the review has another type.
    #[error("{0} has the wrong type for an AdmissionReview")]
    WrongType(&'static str),
    /// `apiVersion` and `kind` are not those of a review.
    #[error("the body is {found}, expected {API_VERSION} {KIND}")]
    NotAReview {
        /// The `apiVersion` and `kind` of the body.
        found: String,
    },
    /// A required field is missing or empty.
    #[error("the AdmissionReview has no {0}")]
    Missing(&'static str),
    /// `request.uid` is longer than any of Kubernetes.
    #[error("request.uid has more than {UID_LIMIT} bytes")]
    LongUid,
    /// `request.operation` is not a known operation.
    #[error("request.operation is not CREATE, UPDATE, DELETE or CONNECT")]
    Operation,
}

impl<'b> Review<'b> {
    /// Parses the body of a request. `memory` is the limit in bytes for what is parsed.
    ///
    /// # Errors
    /// If the body is not JSON, takes too much memory, is not a review of the supported version, or has no request, uid, kind or operation.
    pub fn parse(body: &'b [u8], memory: usize) -> Result<Self, ReviewError> {
        let budget = Budget::new(memory);
        let error = |error| match error {
            BoundedJsonError::Json(error) => ReviewError::json(&error),
            BoundedJsonError::TooCostly => ReviewError::TooCostly(memory),
        };
        let body = std::str::from_utf8(body).map_err(|error| ReviewError::not_utf8(body, error.valid_up_to()))?;
        budget.charge_scratch(body.as_bytes()).map_err(error)?;
        // serde_json rejects more than 128 levels, so neither parsing nor dropping a value can exhaust the stack.
        let mut review = budget.parse(body).map_err(error)?;
        let version = text(take(&mut review, "apiVersion"), "apiVersion")?;
        let kind = text(take(&mut review, "kind"), "kind")?;
        if version != API_VERSION || kind != KIND {
            return Err(ReviewError::NotAReview { found: found(&version, &kind) });
        }
        let mut request = object(take(&mut review, "request"), "request")?;
        let uid = text(take(&mut request, "uid"), "request.uid")?;
        match &*uid {
            "" => return Err(ReviewError::Missing("request.uid")),
            uid if uid.len() > UID_LIMIT => return Err(ReviewError::LongUid),
            _ => {}
        }
        let mut kind = object(take(&mut request, "kind"), "request.kind")?;
        let operation = match &*text(take(&mut request, "operation"), "request.operation")? {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            "CONNECT" => Operation::Connect,
            "" => return Err(ReviewError::Missing("request.operation")),
            _ => return Err(ReviewError::Operation),
        };
        let is_dry_run = match take(&mut request, "dryRun") {
            Json::Null => false,
            Json::Bool(is_dry_run) => is_dry_run,
            _ => return Err(ReviewError::WrongType("request.dryRun")),
        };
        Ok(Self {
            uid,
            operation,
            group: text(take(&mut kind, "group"), "request.kind.group")?,
            version: text(take(&mut kind, "version"), "request.kind.version")?,
            kind: text(take(&mut kind, "kind"), "request.kind.kind")?,
            sub_resource: text(take(&mut request, "subResource"), "request.subResource")?,
            namespace: text(take(&mut request, "namespace"), "request.namespace")?,
            name: text(take(&mut request, "name"), "request.name")?,
            username: text(take(&mut take(&mut request, "userInfo"), "username"), "request.userInfo.username")?,
            is_dry_run,
            object: take(&mut request, "object"),
            old_object: take(&mut request, "oldObject"),
        })
    }

    /// `request.uid`; the response repeats it.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Whether nothing is stored, whatever the response.
    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    /// The request to decide on. `agent` is the username of trustspan's agent.
    pub fn request(&self, agent: &str) -> Request<'_> {
        Request {
            operation: self.operation,
            kind: Kind { group: &self.group, version: &self.version, kind: &self.kind },
            sub_resource: &self.sub_resource,
            namespace: &self.namespace,
            name: &self.name,
            username: &self.username,
            by_agent: self.username == agent,
            may_break_glass: false,
            in_guarded_namespace: false,
            decides_trust: false,
            object: Some(&self.object).filter(|object| !object.is_null()),
            old_object: Some(&self.old_object).filter(|object| !object.is_null()),
        }
    }
}

/// Takes the value of a field; null if it is absent.
fn take<'b>(object: &mut Json<'b>, key: &str) -> Json<'b> {
    object.as_object_mut().and_then(|fields| fields.get_mut(key)).map(mem::take).unwrap_or_default()
}

/// The text of the field with this name; empty if it is missing or null.
fn text<'b>(value: Json<'b>, name: &'static str) -> Result<Cow<'b, str>, ReviewError> {
    match value {
        Json::Null => Ok("".into()),
        Json::Text(text) => Ok(text),
        _ => Err(ReviewError::WrongType(name)),
    }
}

/// The object that the field with this name has to be.
fn object<'b>(value: Json<'b>, name: &'static str) -> Result<Json<'b>, ReviewError> {
    match value {
        Json::Null => Err(ReviewError::Missing(name)),
        Json::Object(_) => Ok(value),
        _ => Err(ReviewError::WrongType(name)),
    }
}

impl ReviewError {
    fn json(error: &serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        // The message of serde_json may quote a value; these do not.
        let what = match error.classify() {
            Category::Eof => "an unexpected end",
            Category::Syntax if error.to_string().starts_with("recursion limit exceeded") => "more than 128 levels",
            Category::Syntax | Category::Data | Category::Io => "a syntax error",
        };
        Self::Json { what, line, column }
    }

    fn not_utf8(body: &[u8], valid: usize) -> Self {
        let lines = body[..valid].split(|byte| *byte == b'\n');
        let (line, column) = lines.enumerate().last().map_or((1, 1), |(line, text)| (line + 1, text.len() + 1));
        Self::Json { what: "not UTF-8", line, column }
    }
}

fn found(version: &str, kind: &str) -> String {
    if version.is_empty() && kind.is_empty() {
        return "without apiVersion and kind".to_owned();
    }
    format!("{version} {kind}").trim().chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 1 << 20;

    fn error(body: &str) -> String {
        Review::parse(body.as_bytes(), MEMORY).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn parses_a_review() {
        let body = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","extra":[1],
            "kind":{"group":"apps","version":"v1","kind":"Deployment"},"operation":"UPDATE","subResource":"scale",
            "namespace":"ns","name":"n","userInfo":{"username":"me","groups":["a"]},"object":{"x":1.0},"oldObject":null}}"#;
        let review = Review::parse(body, MEMORY).ok().unwrap();
        let request = review.request("agent");
        assert_eq!(review.uid(), "u");
        assert_eq!(request.operation, Operation::Update);
        assert_eq!(request.kind, Kind { group: "apps", version: "v1", kind: "Deployment" });
        assert_eq!(
            (request.sub_resource, request.namespace, request.name, request.username),
            ("scale", "ns", "n", "me")
        );
        assert!(request.object.is_some() && request.old_object.is_none());
        assert!(!review.is_dry_run());
        let dry = String::from_utf8_lossy(body).replace(r#""uid":"u""#, r#""uid":"u","dryRun":true"#);
        assert!(Review::parse(dry.as_bytes(), MEMORY).ok().unwrap().is_dry_run());
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let review = |rest: &str| format!(r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}"{rest}}}"#);
        let kind = r#""kind":{"kind":"Secret","version":"v1"}"#;
        for (body, expected) in [
            (String::new(), "not JSON that can be parsed: an unexpected end at line 1, column 0"),
            ("7".to_owned(), "the body is without apiVersion and kind, expected admission.k8s.io/v1 AdmissionReview"),
            (review(r#","request":7"#), "request has the wrong type for an AdmissionReview"),
            (review(r#","request":{"uid":{}}"#), "request.uid has the wrong type"),
            (review(r#","request":{"uid":"u","kind":"Secret"}"#), "request.kind has the wrong type"),
            (
                review(&format!(r#","request":{{"uid":"u",{kind},"operation":"UPDATE","name":7}}"#)),
                "request.name has the wrong type",
            ),
            (
                review(&format!(r#","request":{{"uid":"u",{kind},"operation":"UPDATE","dryRun":"true"}}"#)),
                "request.dryRun has",
            ),
            ("{}".to_owned(), "the body is without apiVersion and kind, expected admission.k8s.io/v1 AdmissionReview"),
            (
                review("").replace("/v1", "/v1beta1"),
                "the body is admission.k8s.io/v1beta1 AdmissionReview, expected admission.k8s.io/v1 AdmissionReview",
            ),
            (review(""), "has no request"),
            (review(r#","request":{}"#), "has no request.uid"),
            (review(r#","request":{"uid":""}"#), "has no request.uid"),
            (review(r#","request":{"uid":"u"}"#), "has no request.kind"),
            (review(&format!(r#","request":{{"uid":"u",{kind}}}"#)), "has no request.operation"),
            (review(&format!(r#","request":{{"uid":"u",{kind},"operation":"PATCH"}}"#)), "request.operation is not"),
        ] {
            let message = error(&body);
            assert!(message.contains(expected), "{body}: {message}");
        }
    }

    #[test]
    fn limits_the_depth() {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let deep = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
            let review = |field: &str| {
                format!(
                    r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","request":{{"uid":"u","kind":{{"kind":"Secret"}},"operation":"CREATE",
                    "{field}":{deep}}}}}"#
                )
            };
            assert!(error(&review("object")).contains("more than 128 levels"));
            // A field that is skipped takes a byte for each level.
            assert_eq!(error(&review("other")), "");
            assert!(!error(&deep).is_empty());
        }
    }

    #[test]
    fn rejects_a_body_that_is_not_utf_8() {
        for (body, line, column) in [(&b"\xff"[..], 1, 1), (b"{\"a\":\n\"b\xc3\"}", 2, 3), (b"{}\n\x80", 2, 1)] {
            let error = Review::parse(body, MEMORY).err().unwrap();
            assert_eq!(error, ReviewError::Json { what: "not UTF-8", line, column });
        }
    }

    #[test]
    fn errors_do_not_quote_objects() {
        let message = error(r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":"hunter2"}"#);
        assert!(!message.contains("hunter2"), "{message}");
    }
}
