//! The vocabulary that users meet: the [`GatewaySecret`](gateway_secret) resource, labels and annotations.

mod gateway_secret;
pub mod names;

pub use gateway_secret::*;

/// The API group of every trustspan resource.
pub const GROUP: &str = "trustspan.dev";
/// The served and stored version.
pub const VERSION: &str = "v1alpha1";
