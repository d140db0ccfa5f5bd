//! What must happen when the CA is rotated.

use anyhow::Result;

use crate::world::World;

/// The expected result of a scenario.
#[derive(Clone, Copy)]
pub(crate) enum Expected {
    /// The rotation completes, and no handshake fails.
    Clean,
    /// The rotation is blocked, and no handshake fails. A wait and a condition name the object; after the
    /// administrator's command the rotation completes.
    HoldsUntil {
        /// The object that is named.
        names: &'static str,
        /// The administrator's command.
        command: fn(&mut World<'_>) -> Result<()>,
    },
    /// The function makes another rotation, which completes without a failed handshake.
    Otherwise(fn(&mut World<'_>) -> Result<()>),
    /// Admission denies an object, with these words.
    Denied(&'static str),
}
