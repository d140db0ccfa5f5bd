//! The two ways to write a managed Secret.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the managed Secret is written from the source Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Mode {
    /// It holds the new and the old CA until the old one is no longer needed.
    #[default]
    Bundle,
    /// It is a plain copy of the source Secret.
    Copy,
}
