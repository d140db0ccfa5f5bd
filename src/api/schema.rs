//! Parts of the CRDs' schemas that several types need.

pub(super) const DNS_SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";

pub(super) const DNS_LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Removes the default from a schema: the API server would store it, and a client-side apply that sets other labels later would keep it.
pub(super) fn without_default(schema: &mut schemars::Schema) {
    schema.remove("default");
}
