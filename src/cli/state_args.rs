//! The flag of the state directory, for commands that take a directory of manifests in place of a cluster.

use std::path::{Path, PathBuf};

use crate::agent::state_directory::{Directories, StateDirectoryError};

/// Where the state directory is.
#[derive(Debug, clap::Args)]
pub(super) struct StateArgs {
    /// With -f: directory of what the rotation controller makes of the manifests. It contains private keys.
    ///
    /// It has the managed Secrets, managed ConfigMaps and journals, and must be outside of the manifests. Default: a directory
    /// in $XDG_STATE_HOME/trustspan (~/.local/state/trustspan) that is named after the path of the manifests.
    #[arg(long, value_name = "DIR", requires = "directory")]
    state_dir: Option<PathBuf>,
}

impl StateArgs {
    /// The manifests with their state directory.
    ///
    /// # Errors
    /// When the state directory cannot be used.
    pub(super) fn with(&self, manifests: &Path) -> Result<Directories, StateDirectoryError> {
        Directories::new(manifests, self.state_dir.as_deref())
    }
}
