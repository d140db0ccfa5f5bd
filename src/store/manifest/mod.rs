//! Manifests: files, directories and streams of YAML and JSON documents.
//!
//! ```text
//!  paths ──► Source ──► Chunk (one document's text) ──► Document (value + span of each node)     ──► Object
//!                                                          │
//!                                                          └─ edit(patches) ──► the same text, changed in place
//! ```
//!
//! One document is in memory at a time. A stream is split at lines that begin with `---` or `...` before anything is
//! parsed: YAML 1.2.2 §9.1.4 forbids such a line inside a document, so the split is exact.

mod chunk;
mod document;
mod edit;
mod scalar;
mod source;
mod tree;

pub use chunk::{Chunk, Chunks};
pub use document::{Document, Object};
pub use edit::Edited;
pub use source::{Files, Source, open, open_each, read};

/// Why a manifest cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// A file cannot be read.
    #[error("{source_name}: cannot be read: {cause}")]
    Read {
        /// Path as given, or `stdin`.
        source_name: String,
        /// The cause.
        #[source]
        cause: std::io::Error,
    },
    /// Neither YAML nor JSON.
    #[error("{source_name}:{line}: {found}")]
    Syntax {
        /// Path as given, or `stdin`.
        source_name: String,
        /// Line in the source, from 1.
        line: usize,
        /// What was found and what was expected.
        found: String,
    },
    /// A patch names a field that the document does not have.
    #[error("{source_name}:{line}: patch does not apply: {cause}")]
    Patch {
        /// Path as given, or `stdin`.
        source_name: String,
        /// Line of the object.
        line: usize,
        /// The operation that failed.
        #[source]
        cause: json_patch::PatchError,
    },
}

impl ManifestError {
    /// Path of the manifest as given, or `stdin`.
    pub fn source_name(&self) -> &str {
        let (Self::Read { source_name, .. } | Self::Syntax { source_name, .. } | Self::Patch { source_name, .. }) =
            self;
        source_name
    }

    /// Line of the manifest, from 1; `None` if it could not be read at all.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Read { .. } => None,
            Self::Syntax { line, .. } | Self::Patch { line, .. } => Some(*line),
        }
    }
}
