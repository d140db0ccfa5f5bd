//! Reads the file of `--signers`.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use jiff::Timestamp;

use crate::trust::{Signers, loadable};

/// The most bytes that are read: more than a Secret can hold.
const MAX_BYTES: u64 = 4 << 20;

/// The signers, read each time: the file changes when one is added. Without a file every CA is accepted.
pub(crate) fn read(path: Option<&Path>, now: Timestamp) -> Signers {
    let Some(path) = path else { return Signers::Any };
    let text = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = text().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    });
    let certificates = text.and_then(|text| loadable::certificates(&text, now));
    match certificates {
        Ok(certificates) => Signers::Of(certificates),
        Err(why) => Signers::Unusable(format!("--signers {}: {why}", path.display())),
    }
}
