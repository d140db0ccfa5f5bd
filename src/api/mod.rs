//! The API: the [`GatewaySecret`] resource and its policies, [`TrustConsumer`], [`MirroredFile`], [`ClientIdentity`], labels and annotations.

mod client_identity;
mod clients;
mod gateway_secret;
mod mirrored_file;
mod mode;
pub mod names;
mod period;
mod rotation_policy;
mod schema;
mod secret_ref;
mod shortened;
mod source_kind;
mod status;
mod trust_bundle_target;
mod trust_consumer;
mod window;
mod workload_kind;

pub use crate::trust::{GatewayUse, Level};
pub use client_identity::*;
pub use clients::Clients;
pub use gateway_secret::*;
pub use mirrored_file::*;
pub use mode::Mode;
pub use period::Period;
pub use rotation_policy::*;
pub use secret_ref::SecretRef;
use serde_json::Value;
pub(crate) use shortened::{shortened, with_short_quotes};
pub use source_kind::{AdditionalTrust, SourceKind};
pub use status::*;
pub use trust_bundle_target::{TrustBundleTarget, TrustBundleTargetKind};
pub use trust_consumer::*;
pub use window::{ChangeWindow, Day, TimeOfDay, UnknownZone, WindowState};
pub use workload_kind::WorkloadKind;

use crate::json::Json;

/// The API group of every trustspan resource.
pub const GROUP: &str = "trustspan.dev";
/// The served and stored version.
pub const VERSION: &str = "v1alpha1";

/// Group, version and kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind<'a> {
    /// API group, empty for core.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Kind.
    pub kind: &'a str,
}

impl<'a> Kind<'a> {
    /// The kind of an object.
    pub fn of(object: &'a Json<'a>) -> Self {
        Self::parse(object["apiVersion"].as_str(), object["kind"].as_str())
    }

    /// The kind of an object that was read from a manifest or from the API server.
    pub fn of_value(object: &'a Value) -> Self {
        Self::parse(object["apiVersion"].as_str(), object["kind"].as_str())
    }

    fn parse(api_version: Option<&'a str>, kind: Option<&'a str>) -> Self {
        let api_version = api_version.unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Self { group, version, kind: kind.unwrap_or_default() }
    }
}
