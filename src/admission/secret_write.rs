//! A write of a Secret. Both versions are decoded and parsed once, and every check takes the same [`SecretWrite`].

use jiff::Timestamp;

use super::{Operation, Request};
use crate::json::Json;
use crate::registry::{Entry, Registry, Role};
use crate::trust::{ParsedSecret, Secret, SecretError, Severities, TlsConsumer};

/// The old and the new Secret of an admission request, decoded.
pub(super) struct DecodedWrite<'r> {
    object: &'r Json<'r>,
    new: Result<Secret, SecretError>,
    old: Option<Secret>,
}

/// A write of a Secret, with everything that the checks need.
pub(super) struct SecretWrite<'r> {
    pub(super) request: &'r Request<'r>,
    pub(super) registry: &'r Registry,
    pub(super) now: Timestamp,
    /// The GatewaySecret that names this Secret, and the Secret's role for it.
    pub(super) claim: Option<(&'r Entry, Role)>,
    /// The severities for this Secret.
    pub(super) severities: Severities,
    pub(super) object: &'r Json<'r>,
    pub(super) new: Result<ParsedSecret<'r>, &'r SecretError>,
    /// The stored version, on an update.
    pub(super) old: Option<ParsedSecret<'r>>,
}

impl<'r> DecodedWrite<'r> {
    /// `None` if the request stores nothing.
    pub(super) fn new(request: &Request<'r>) -> Option<Self> {
        let object = request.stored_object()?;
        let old = request.old_object.filter(|_| request.operation == Operation::Update);
        Some(Self { object, new: Secret::from_json(object), old: old.and_then(|old| Secret::from_json(old).ok()) })
    }
}

impl<'r> SecretWrite<'r> {
    /// `severities` are the cluster-wide ones. Those of the GatewaySecret that names the Secret override them.
    pub(super) fn new(
        request: &'r Request<'r>,
        decoded: &'r DecodedWrite<'r>,
        registry: &'r Registry,
        severities: &Severities,
        now: Timestamp,
    ) -> Self {
        let claim = registry.role(request.namespace, request.name);
        let severities = match claim {
            Some((entry, _)) => severities.under(&entry.policy.severities),
            None => severities.clone(),
        };
        let parsed = |secret: &'r Secret| ParsedSecret::new(secret, TlsConsumer::Envoy);
        let (new, old) = (decoded.new.as_ref().map(parsed), decoded.old.as_ref().map(parsed));
        Self { request, registry, now, claim, severities, object: decoded.object, new, old }
    }
}
