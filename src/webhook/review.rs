//! Parses an `admission.k8s.io/v1` AdmissionReview.
//!
//! Any caller that reaches the port may send one, so it is hostile until proven otherwise. Only the fields that decisions need are parsed;
//! `object` and `oldObject` stay untyped, so that unknown fields and number formats are preserved.

use serde_json::Value;
use serde_json::error::Category;

use super::bounded_json::{self, BoundedJsonError};
use crate::admission::{Kind, Operation, Request};

/// The only supported `apiVersion`.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The `kind` of a review.
pub const KIND: &str = "AdmissionReview";

/// Bytes of `request.uid`, which the response repeats. Kubernetes sends 36.
const UID_LIMIT: usize = 1024;

/// Fields of a review that are texts.
const TEXTS: [&str; 8] = [
    "request.subResource",
    "request.namespace",
    "request.name",
    "request.kind.group",
    "request.kind.version",
    "request.kind.kind",
    "request.operation",
    "request.userInfo.username",
];

/// A valid review. Has no `Debug`: the objects may contain private keys.
pub struct Review {
    /// `request.uid`; the response repeats it.
    pub uid: String,
    operation: Operation,
    review: Value,
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
    #[error("the body has a field of the wrong type for an AdmissionReview: {0:?}")]
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

impl Review {
    /// Parses the body of a request. `memory` is the limit in bytes for what is parsed.
    ///
    /// # Errors
    /// If the body is not JSON, takes too much memory, is not a review of the supported version, or has no request, uid, kind or operation.
    pub fn parse(body: &[u8], memory: usize) -> Result<Self, ReviewError> {
        // serde_json rejects more than 128 levels, so neither parsing nor dropping a value can exhaust the stack.
        let review = bounded_json::parse(body, memory).map_err(|error| match error {
            BoundedJsonError::Json(error) => ReviewError::json(&error),
            BoundedJsonError::TooCostly => ReviewError::TooCostly(memory),
        })?;
        for (field, is_right) in [
            ("", review.is_object()),
            ("request", review["request"].is_null() || review["request"].is_object()),
            ("request.kind", review["request"]["kind"].is_null() || review["request"]["kind"].is_object()),
            ("request.dryRun", review["request"]["dryRun"].is_null() || review["request"]["dryRun"].is_boolean()),
        ] {
            if !is_right {
                return Err(ReviewError::WrongType(field));
            }
        }
        let (version, kind) = (text(&review, "apiVersion")?, text(&review, "kind")?);
        if version != API_VERSION || kind != KIND {
            return Err(ReviewError::NotAReview { found: found(version, kind) });
        }
        if review["request"].is_null() {
            return Err(ReviewError::Missing("request"));
        }
        for field in TEXTS {
            text(&review, field)?;
        }
        let uid = match text(&review, "request.uid")? {
            "" => return Err(ReviewError::Missing("request.uid")),
            uid if uid.len() > UID_LIMIT => return Err(ReviewError::LongUid),
            uid => uid.to_owned(),
        };
        if review["request"]["kind"].is_null() {
            return Err(ReviewError::Missing("request.kind"));
        }
        let operation = match text(&review, "request.operation")? {
            "CREATE" => Operation::Create,
            "UPDATE" => Operation::Update,
            "DELETE" => Operation::Delete,
            "CONNECT" => Operation::Connect,
            "" => return Err(ReviewError::Missing("request.operation")),
            _ => return Err(ReviewError::Operation),
        };
        Ok(Self { uid, operation, review })
    }

    /// Whether nothing is stored, whatever the response.
    pub fn is_dry_run(&self) -> bool {
        self.review["request"]["dryRun"] == true
    }

    /// The request to decide on. `agent` is the username of trustspan's agent.
    pub fn request(&self, agent: &str) -> Request<'_> {
        // Their types were checked.
        let text = |field| text(&self.review, field).unwrap_or_default();
        let object = |field| Some(&self.review["request"][field]).filter(|object| !object.is_null());
        let username = text("request.userInfo.username");
        Request {
            operation: self.operation,
            kind: Kind {
                group: text("request.kind.group"),
                version: text("request.kind.version"),
                kind: text("request.kind.kind"),
            },
            sub_resource: text("request.subResource"),
            namespace: text("request.namespace"),
            name: text("request.name"),
            username,
            by_agent: username == agent,
            may_break_glass: false,
            in_guarded_namespace: false,
            decides_trust: false,
            object: object("object"),
            old_object: object("oldObject"),
        }
    }
}

/// A text; empty if the field is missing or null.
fn text<'r>(review: &'r Value, field: &'static str) -> Result<&'r str, ReviewError> {
    match field.split('.').try_fold(review, |value, name| value.get(name)) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(ReviewError::WrongType(field)),
    }
}

impl ReviewError {
    fn json(error: &serde_json::Error) -> Self {
        let what = match error.classify() {
            // The message of serde_json may quote a value of the object; these do not.
            Category::Data => "a value of an unknown type",
            Category::Eof => "an unexpected end",
            Category::Syntax if error.to_string().starts_with("recursion limit exceeded") => "more than 128 levels",
            Category::Syntax | Category::Io => "a syntax error",
        };
        Self::Json { what, line: error.line(), column: error.column() }
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
        assert_eq!(review.uid, "u");
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
            ("[]".to_owned(), "a field of the wrong type"),
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
            let body = format!(r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","request":{{"object":{deep}}}}}"#);
            assert!(error(&body).contains("more than 128 levels"));
            assert!(
                error(&deep).contains("not JSON that can be parsed") || error(&deep).contains("without apiVersion")
            );
        }
    }

    #[test]
    fn errors_do_not_quote_objects() {
        let message = error(r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":"hunter2"}"#);
        assert!(!message.contains("hunter2"), "{message}");
    }
}
