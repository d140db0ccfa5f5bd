//! Reads the file of `--signers`.

use std::io::ErrorKind;
use std::path::Path;

use jiff::Timestamp;

use super::atomic_file;
use crate::trust::{Signers, loadable};

/// The signers, read each time: the file changes when one is added. Without a file every CA is accepted.
pub(crate) fn read(path: Option<&Path>, now: Timestamp) -> Signers {
    let Some(path) = path else { return Signers::Any };
    let text = atomic_file::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    });
    let certificates = text.and_then(|text| loadable::certificates(&text, now));
    match certificates {
        Ok(certificates) => Signers::Of(certificates),
        Err(why) => Signers::Unusable(format!("--signers {}: {why}", path.display())),
    }
}
