//! Names that follow from the name of a ClientIdentity. They cannot be chosen.

use std::fmt;
use std::str::FromStr;

use crate::trust::fingerprint_of;

/// Prefix of the user names.
const USER_PREFIX: &str = "trustspan.dev:client-identity:";

/// Namespace and name of a ClientIdentity, written as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdentityName {
    /// Its namespace.
    pub namespace: String,
    /// Its name, a DNS label.
    pub name: String,
}

impl IdentityName {
    /// The identity with this namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The identity of a user name.
    pub fn of_user(user: &str) -> Option<Self> {
        let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
        (is_label(namespace) && is_label(name)).then(|| Self::new(namespace, name))
    }

    /// The user name: the common name of its certificates.
    pub fn user(&self) -> String {
        format!("{USER_PREFIX}{}", self.resource_name())
    }

    /// The group of its bootstrap tokens.
    pub fn bootstrap_group(&self) -> String {
        format!("system:bootstrappers:trustspan:{}", self.resource_name())
    }

    /// The name for which `create` on the [subresource](super::SUBRESOURCE) is granted.
    pub fn resource_name(&self) -> String {
        format!("{}:{}", self.namespace, self.name)
    }

    /// Name of its ClusterRole and ClusterRoleBinding.
    pub fn cluster_role_name(&self) -> String {
        format!("{USER_PREFIX}{}", self.resource_name())
    }

    /// Name of its Role and RoleBinding.
    pub fn role_name(&self) -> String {
        format!("{USER_PREFIX}{}", self.name)
    }

    /// Name of the CertificateSigningRequest for a public key (SubjectPublicKeyInfo, DER). A client that is started again finds the request
    /// that it sent before.
    pub fn request_name(&self, public_key: &[u8]) -> String {
        let hash = fingerprint_of(&[self.user().as_bytes(), b"\0", public_key].concat());
        format!("client-identity-{}", &hash[..40])
    }
}

impl fmt::Display for IdentityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for IdentityName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('/').filter(|(namespace, name)| is_label(namespace) && is_label(name));
        parts.map(|(namespace, name)| Self::new(namespace, name)).ok_or("expected NAMESPACE/NAME of a ClientIdentity")
    }
}

/// Whether a subject attribute names a client of this or another version of trustspan, well-formed or not.
pub(super) fn is_ours(attribute: &str) -> bool {
    attribute.starts_with("trustspan.dev:client-identit")
}

/// A DNS label (RFC 1123).
fn is_label(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
        && [bytes.first(), bytes.last()].into_iter().flatten().all(is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_name_belongs_to_one_identity() {
        let identity = IdentityName::new("shop", "payments");
        assert_eq!(identity.user(), "trustspan.dev:client-identity:shop:payments");
        assert_eq!(IdentityName::of_user(&identity.user()), Some(identity.clone()));
        assert_eq!("shop/payments".parse(), Ok(identity));
        for user in ["trustspan.dev:client-identity:shop", "trustspan.dev:client-identity:shop:a:b", "admin", ""] {
            assert_eq!(IdentityName::of_user(user), None, "{user}");
        }
        for text in ["shop", "shop/", "/payments", "shop/pay/ments", "Shop/payments", "shop/a.b", "shop/-a"] {
            assert!(text.parse::<IdentityName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_request_is_named_after_identity_and_key() {
        let (one, other) = (IdentityName::new("shop", "payments"), IdentityName::new("shop", "checkout"));
        assert_eq!(one.request_name(b"key"), one.request_name(b"key"));
        assert_ne!(one.request_name(b"key"), other.request_name(b"key"));
        assert_ne!(one.request_name(b"key"), one.request_name(b"another"));
    }
}
