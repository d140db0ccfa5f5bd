//! The state directory, to which the controller writes its objects when GatewaySecrets come from a directory of
//! manifests. It is separate, so that these objects are not applied or committed with the manifests.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The length in bytes of the hash in a default state directory's name.
const HASH: usize = 6;

/// A directory of manifests, which the controller only reads, and its state directory, which the controller also writes.
#[derive(Clone, Debug)]
pub struct Directories {
    manifests: PathBuf,
    state: PathBuf,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateDirectoryError {
    /// The user has no home directory.
    #[error(
        "there is no default state directory, since neither XDG_STATE_HOME nor HOME is an absolute path: set --state-dir"
    )]
    NoDefault,
    /// One directory contains the other, so files would be read twice.
    #[error("state directory {} and manifests {} contain each other, expected two separate directories: set --state-dir to another one", state.display(), manifests.display())]
    Nested {
        /// The state directory.
        state: PathBuf,
        /// The directory of manifests.
        manifests: PathBuf,
    },
    /// Another process uses it.
    #[error("state directory {} is in use by another process: stop that process, or set --state-dir to another directory", path.display())]
    InUse {
        /// The state directory.
        path: PathBuf,
    },
    /// It cannot be created or written.
    #[error("state directory {} cannot be written: {source}; set --state-dir to another directory", path.display())]
    Unwritable {
        /// The state directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A lock on the state directory. While the value exists, no other process can lock the directory; the operating system
/// releases the lock when the process ends.
#[derive(Debug)]
pub struct StateLock(#[expect(dead_code, reason = "dropping the file releases the lock")] File);

impl Directories {
    /// Sets the directories. `state` defaults to a directory for these manifests in `$XDG_STATE_HOME/trustspan`, or in
    /// `~/.local/state/trustspan`. Nothing is created.
    ///
    /// # Errors
    /// When there is no default, when one directory contains the other, or when the state directory is a file.
    pub fn new(manifests: &Path, state: Option<&Path>) -> Result<Self, StateDirectoryError> {
        let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|base| base.is_absolute());
        let home = || std::env::home_dir().map(|home| home.join(".local/state"));
        let default = || base.or_else(home).map(|base| default_state(&base, manifests));
        let state = state.map(Path::to_owned).or_else(default).filter(|state| !state.as_os_str().is_empty());
        let state = absolute(&state.ok_or(StateDirectoryError::NoDefault)?);
        let real = absolute(manifests);
        if state.starts_with(&real) || real.starts_with(&state) {
            return Err(StateDirectoryError::Nested { state, manifests: manifests.to_owned() });
        }
        if state.exists() && !state.is_dir() {
            return Err(StateDirectoryError::Unwritable { path: state, source: ErrorKind::NotADirectory.into() });
        }
        Ok(Self { manifests: manifests.to_owned(), state })
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The directories to read. The state directory is not among them before the first reconcile has created it.
    pub fn readable(&self) -> Vec<PathBuf> {
        let state = self.state.is_dir().then(|| self.state.clone());
        std::iter::once(self.manifests.clone()).chain(state).collect()
    }

    /// Both directories, to be watched.
    pub fn all(&self) -> Vec<PathBuf> {
        vec![self.manifests.clone(), self.state.clone()]
    }

    /// Creates the state directory and locks it for this process. Fails at start, rather than at the first write, if it cannot be written.
    ///
    /// # Errors
    /// When it cannot be created or written, or another process has locked it.
    pub fn lock(&self) -> Result<StateLock, StateDirectoryError> {
        let path = &self.state;
        let failed = |source| StateDirectoryError::Unwritable { path: path.clone(), source };
        let opened = self.create().and_then(|()| File::open(path)).map_err(failed)?;
        match opened.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateDirectoryError::InUse { path: path.clone() }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // tempfile's own message names a temporary file that users never see.
        tempfile::tempfile_in(path).map_err(|error| failed(error.kind().into()))?;
        Ok(StateLock(opened))
    }

    /// Creates the state directory if it is missing. Only its owner can enter it, since it contains private keys.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(super) fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.state)
    }
}

/// The default state directory of manifests: the name of their directory, and a hash of its path, so that no two share
/// one.
fn default_state(base: &Path, manifests: &Path) -> PathBuf {
    let path = absolute(manifests);
    let hash = Sha256::digest(path.as_os_str().as_bytes());
    let hash: String = hash.iter().take(HASH).map(|byte| format!("{byte:02x}")).collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    base.join("trustspan").join(format!("{name}-{hash}"))
}

/// The path without symbolic links. Parts that do not exist stay as they are.
fn absolute(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    match (path.parent().filter(|parent| !parent.as_os_str().is_empty()), path.file_name()) {
        (Some(parent), Some(name)) => absolute(parent).join(name),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}
