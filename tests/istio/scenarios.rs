//! The table of scenarios.

use anyhow::Result;
use serde_json::json;

use crate::{
    expected::Expected,
    issuer::SERVER,
    objects::{gateway, route},
    world::World,
};

/// The host that every scenario serves.
pub(crate) const SHOP: &str = "shop.example.com";

/// A way in which Gateways get their clients' CAs.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// The hosts that clients ask for.
    pub(crate) hosts: &'static [&'static str],
    /// What users apply before the rotation.
    pub(crate) apply: fn(&mut World<'_>) -> Result<()>,
    pub(crate) expected: Expected,
}

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario { name: "credential_name", hosts: &[SHOP], apply: credential_name, expected: Expected::Clean }];

/// A Gateway that names the source Secret; the webhook rewrites it.
fn credential_name(world: &mut World<'_>) -> Result<()> {
    let tls = json!({ "mode": "MUTUAL", "credentialName": SERVER });
    world.apply(&[gateway(&world.ns, "shop", SHOP, &tls), route("shop", SHOP)])
}
