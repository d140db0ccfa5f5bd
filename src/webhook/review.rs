//! Parses an `admission.k8s.io/v1` AdmissionReview.
//!
//! Any caller that reaches the port may send one, so it is hostile until proven otherwise. Only the fields that decisions need are parsed;
//! `object` and `oldObject` stay untyped, so that unknown fields and number formats are preserved.

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;

use crate::admission::{Kind, Operation, Request};

/// The only supported `apiVersion`.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The `kind` of a review.
pub const KIND: &str = "AdmissionReview";

/// A valid review. Has no `Debug`: the objects may contain private keys.
pub struct Review {
    /// `request.uid`; the response repeats it.
    pub uid: String,
    operation: Operation,
    request: ReviewRequest,
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
    /// `apiVersion` and `kind` are not those of a review.
    #[error("the body is {found}, expected {API_VERSION} {KIND}")]
    NotAReview {
        /// The `apiVersion` and `kind` of the body.
        found: String,
    },
    /// A required field is missing or empty.
    #[error("the AdmissionReview has no {0}")]
    Missing(&'static str),
    /// `request.operation` is not a known operation.
    #[error("request.operation is not CREATE, UPDATE, DELETE or CONNECT")]
    Operation,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    api_version: Option<String>,
    kind: Option<String>,
    request: Option<ReviewRequest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ReviewRequest {
    uid: Option<String>,
    kind: Option<GroupVersionKind>,
    operation: Option<String>,
    sub_resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    user_info: Option<UserInfo>,
    dry_run: Option<bool>,
    object: Option<Value>,
    old_object: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupVersionKind {
    group: String,
    version: String,
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: Option<String>,
}

impl Review {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// If the body is not JSON, not a review of the supported version, or has no request, uid, kind or operation.
    pub fn parse(body: &[u8]) -> Result<Self, ReviewError> {
        // serde_json rejects more than 128 levels, so neither parsing nor dropping a value can exhaust the stack.
        let envelope: Envelope = serde_json::from_slice(body).map_err(|e| ReviewError::json(&e))?;
        let (version, kind) = (envelope.api_version.unwrap_or_default(), envelope.kind.unwrap_or_default());
        if version != API_VERSION || kind != KIND {
            return Err(ReviewError::NotAReview { found: found(&version, &kind) });
        }
        let request = envelope.request.ok_or(ReviewError::Missing("request"))?;
        let uid = request.uid.clone().filter(|uid| !uid.is_empty()).ok_or(ReviewError::Missing("request.uid"))?;
        if request.kind.is_none() {
            return Err(ReviewError::Missing("request.kind"));
        }
        let operation = match request.operation.as_deref() {
            Some("CREATE") => Operation::Create,
            Some("UPDATE") => Operation::Update,
            Some("DELETE") => Operation::Delete,
            Some("CONNECT") => Operation::Connect,
            Some(_) => return Err(ReviewError::Operation),
            None => return Err(ReviewError::Missing("request.operation")),
        };
        Ok(Self { uid, operation, request })
    }

    /// Whether nothing is stored, whatever the response.
    pub fn is_dry_run(&self) -> bool {
        self.request.dry_run == Some(true)
    }

    /// The request to decide on. `agent` is the username of trustspan's agent.
    pub fn request(&self, agent: &str) -> Request<'_> {
        fn text(field: &Option<String>) -> &str {
            field.as_deref().unwrap_or_default()
        }
        let r = &self.request;
        let username = r.user_info.as_ref().map_or("", |u| text(&u.username));
        Request {
            operation: self.operation,
            kind: r.kind.as_ref().map_or(Kind { group: "", version: "", kind: "" }, |k| Kind {
                group: &k.group,
                version: &k.version,
                kind: &k.kind,
            }),
            sub_resource: text(&r.sub_resource),
            namespace: text(&r.namespace),
            name: text(&r.name),
            username,
            by_agent: username == agent,
            may_break_glass: false,
            in_guarded_namespace: false,
            decides_trust: false,
            object: r.object.as_ref(),
            old_object: r.old_object.as_ref(),
        }
    }
}

impl ReviewError {
    fn json(error: &serde_json::Error) -> Self {
        let what = match error.classify() {
            // The message of serde_json may quote a value of the object; these do not.
            Category::Data => "a field of the wrong type for an AdmissionReview",
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

    fn error(body: &str) -> String {
        Review::parse(body.as_bytes()).err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn parses_a_review() {
        let body = br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","extra":[1],
            "kind":{"group":"apps","version":"v1","kind":"Deployment"},"operation":"UPDATE","subResource":"scale",
            "namespace":"ns","name":"n","userInfo":{"username":"me","groups":["a"]},"object":{"x":1.0},"oldObject":null}}"#;
        let review = Review::parse(body).ok().unwrap();
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
        assert!(Review::parse(dry.as_bytes()).ok().unwrap().is_dry_run());
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
