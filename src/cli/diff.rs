//! Unified diffs of streams, one document at a time, with the line numbers of the whole file.

use std::io::{self, Write};

use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::{ChangeTag, DiffOp};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;

/// The diff of one file. Text is pushed in pieces and dropped once it is printed.
pub(super) struct FileDiff<'n> {
    name: &'n str,
    has_header: bool,
    old: String,
    new: String,
    old_lines: usize,
    new_lines: usize,
}

impl<'n> FileDiff<'n> {
    pub(super) fn new(name: &'n str) -> Self {
        Self { name, has_header: false, old: String::new(), new: String::new(), old_lines: 0, new_lines: 0 }
    }

    /// Adds the next piece of the file, before and after the change.
    pub(super) fn push(&mut self, old: &str, new: &str, out: &mut impl Write) -> io::Result<()> {
        self.old.push_str(old);
        self.new.push_str(new);
        // Several JSON documents may be on one line.
        if old.ends_with('\n') { self.flush(out) } else { Ok(()) }
    }

    /// Prints the rest.
    pub(super) fn finish(mut self, out: &mut impl Write) -> io::Result<()> {
        self.flush(out)
    }

    fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        let (old, new) = (std::mem::take(&mut self.old), std::mem::take(&mut self.new));
        if old != new {
            if !self.has_header {
                self.has_header = true;
                write!(out, "--- {0}\n+++ {0}\n", self.name)?;
            }
            let (old, new): (Vec<_>, Vec<_>) =
                (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
            for group in changes(&old, &new) {
                self.hunk(&old, &new, &group, out)?;
            }
        }
        self.old_lines += lines(&old);
        self.new_lines += lines(&new);
        Ok(())
    }

    fn hunk(&self, old_text: &[&str], new_text: &[&str], group: &[DiffOp], out: &mut impl Write) -> io::Result<()> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let range = |start: usize, end: usize, before: usize| match end - start {
            // The position of an empty range is the line before it.
            0 => format!("{},0", before + start),
            1 => format!("{}", before + start + 1),
            length => format!("{},{length}", before + start + 1),
        };
        let old = range(first.old_range().start, last.old_range().end, self.old_lines);
        let new = range(first.new_range().start, last.new_range().end, self.new_lines);
        writeln!(out, "@@ -{old} +{new} @@")?;
        for change in group.iter().flat_map(|op| op.iter_changes(old_text, new_text)) {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            write!(out, "{sign}{}", change.value())?;
            if !change.value().ends_with('\n') {
                write!(out, "\n\\ No newline at end of file\n")?;
            }
        }
        Ok(())
    }
}

/// The changes between two sequences of lines, in groups with `CONTEXT`. The constructors of `TextDiff` would bring all algorithms into the binary.
fn changes(old: &[&str], new: &[&str]) -> Vec<Vec<DiffOp>> {
    let mut hook = Compact::new(Replace::new(Capture::new()), old, new);
    let Ok(()) = myers::diff(&mut hook, old, 0..old.len(), new, 0..new.len());
    hook.into_inner().into_inner().into_grouped_ops(CONTEXT)
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|&b| b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_have_line_numbers_of_the_file() {
        let mut out = Vec::new();
        let mut diff = FileDiff::new("f.yaml");
        for (old, new) in [
            ("a: 1\n", "a: 1\n"),
            ("---\nb: 1\n", "---\nb: 1\n"),
            ("---\nc: 1\n", "---\nnew: 1\nc: 1\n"),
            ("---\nd: 1", "---\nd: 2"),
        ] {
            diff.push(old, new, &mut out).expect("memory");
        }
        diff.finish(&mut out).expect("memory");
        insta::assert_snapshot!(String::from_utf8_lossy(&out), @r"
        --- f.yaml
        +++ f.yaml
        @@ -4,2 +4,3 @@
         ---
        +new: 1
         c: 1
        @@ -6,2 +7,2 @@
         ---
        -d: 1
        \ No newline at end of file
        +d: 2
        \ No newline at end of file
        ");
    }
}
