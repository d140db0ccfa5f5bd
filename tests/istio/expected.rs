//! What must happen when the CA is rotated.

use anyhow::Result;

use crate::world::World;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) enum Expected {
    /// The rotation ends, and no handshake fails.
    Clean,
    /// The rotation holds, and no handshake fails: a wait and a condition name the object. After the operator's command it ends.
    HoldsUntil {
        /// The object.
        names: &'static str,
        /// The command.
        command: fn(&mut World<'_>) -> Result<()>,
    },
    /// Another rotation, which this does, ends, and no handshake fails.
    Otherwise(fn(&mut World<'_>) -> Result<()>),
    /// Admission denies an object, with these words.
    Denied(&'static str),
}
