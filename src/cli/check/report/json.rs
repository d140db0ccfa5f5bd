//! A JSON array, streamed.

use std::io::{self, Write};

use super::{JudgedObject, Printer, Totals};

pub(super) struct Json<W> {
    out: W,
    has_elements: bool,
}

impl<W> Json<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, has_elements: false }
    }
}

impl<W: Write> Printer for Json<W> {
    fn judged(&mut self, judged: &JudgedObject) -> io::Result<()> {
        self.out.write_all(if self.has_elements { b",\n" } else { b"[\n" })?;
        self.has_elements = true;
        Ok(serde_json::to_writer(&mut self.out, judged)?)
    }

    fn finish(&mut self, _totals: &Totals) -> io::Result<()> {
        self.out.write_all(if self.has_elements { b"\n]\n" } else { b"[]\n" })?;
        self.out.flush()
    }
}
