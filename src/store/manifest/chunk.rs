//! Splits a stream into the texts of its documents, without parsing them. The concatenated texts are the stream.

use std::cell::OnceCell;
use std::io::{self, BufRead, Read};
use std::sync::Arc;

use super::ManifestError;
use super::tree::Composed;

/// The text of one document, with its markers, comments and line ends.
#[derive(Debug)]
pub struct Chunk {
    /// Name of the source.
    pub source_name: Arc<str>,
    /// Index of the document in its source, from 1.
    pub number: usize,
    /// First line of the text in its source, from 1.
    pub line: usize,
    /// The text, without a byte order mark.
    pub text: String,
    /// Whether a byte order mark precedes the text.
    pub bom: bool,
    /// The parsed text, once it was needed.
    pub(super) composed: OnceCell<Composed>,
}

/// Reads a stream chunk by chunk, and continues after a chunk that is not UTF-8.
#[derive(Debug)]
pub struct Chunks<R> {
    source_name: Arc<str>,
    reader: R,
    /// A piece that belongs to the next chunk, and whether it begins a line.
    pending: Option<(Vec<u8>, bool)>,
    at_line_start: bool,
    line: usize,
    number: usize,
    done: bool,
}

/// Lines are read in pieces of this size, so that JSON documents on one long line need no more memory than others.
const PIECE_SIZE: u64 = 64 * 1024;

impl<R: BufRead> Chunks<R> {
    /// Reads from `reader`; `source_name` appears in errors.
    pub fn new(source_name: Arc<str>, reader: R) -> Self {
        Self { source_name, reader, pending: None, at_line_start: true, line: 1, number: 0, done: false }
    }

    fn piece(&mut self) -> io::Result<Option<(Vec<u8>, bool)>> {
        if let Some(pending) = self.pending.take() {
            return Ok(Some(pending));
        }
        let at_line_start = self.at_line_start;
        let mut piece = Vec::new();
        self.reader.by_ref().take(PIECE_SIZE).read_until(b'\n', &mut piece)?;
        self.at_line_start = piece.ends_with(b"\n");
        Ok((!piece.is_empty()).then_some((piece, at_line_start)))
    }

    fn next_text(&mut self) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut state = State::default();
        while let Some((mut piece, at_line_start)) = self.piece()? {
            match state.take(&piece, at_line_start) {
                Extent::All => text.append(&mut piece),
                Extent::AllAndEnd => {
                    text.append(&mut piece);
                    break;
                }
                Extent::UpTo(0) => {
                    self.pending = Some((piece, at_line_start));
                    break;
                }
                Extent::UpTo(end) => {
                    self.pending = Some((piece.split_off(end), false));
                    text.append(&mut piece);
                    break;
                }
            }
        }
        self.number += usize::from(state.content);
        Ok(text)
    }
}

impl<R: BufRead> Iterator for Chunks<R> {
    type Item = Result<Chunk, ManifestError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let source_name = self.source_name.clone();
        let line = self.line;
        let mut text = match self.next_text() {
            Ok(text) => text,
            Err(cause) => {
                self.done = true;
                return Some(Err(ManifestError::Read { source_name: source_name.to_string(), cause }));
            }
        };
        if text.is_empty() {
            self.done = true;
            return None;
        }
        self.line += text.iter().filter(|&&b| b == b'\n').count();
        let bom = line == 1 && self.number <= 1 && text.starts_with(BOM);
        if bom {
            text.drain(..BOM.len());
        }
        Some(match String::from_utf8(text) {
            Ok(text) => Ok(Chunk { source_name, number: self.number, line, text, bom, composed: OnceCell::new() }),
            Err(error) => {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                Err(ManifestError::Syntax {
                    source_name: source_name.to_string(),
                    line: line + good.iter().filter(|&&b| b == b'\n').count(),
                    found: "bytes that are not UTF-8; expected YAML or JSON text in UTF-8".to_owned(),
                })
            }
        })
    }
}

const BOM: &[u8] = "\u{feff}".as_bytes();

/// How many bytes of a piece belong to the document.
enum Extent {
    All,
    AllAndEnd,
    UpTo(usize),
}

#[derive(Default)]
struct State {
    /// Whether a `---` line was read.
    marked: bool,
    /// Whether anything but blanks, comments and directives was read.
    content: bool,
    json: Json,
}

impl State {
    fn take(&mut self, piece: &[u8], at_line_start: bool) -> Extent {
        let piece_start = if at_line_start && piece.starts_with(BOM) { BOM.len() } else { 0 };
        let line = &piece[piece_start..];
        let mut from = piece_start;
        if at_line_start && is_marker(line, b"---") {
            if self.marked || self.content {
                return Extent::UpTo(0);
            }
            self.marked = true;
            from += 3;
        } else if at_line_start && is_marker(line, b"...") {
            return Extent::AllAndEnd;
        }
        let Some(first) = piece[from..].iter().position(|b| !b.is_ascii_whitespace()).map(|i| from + i) else {
            return Extent::All;
        };
        match piece[first] {
            b'#' if !self.content || matches!(self.json, Json::Closed) => return Extent::All,
            b'%' if !self.content && !self.marked && at_line_start => return Extent::All,
            b'{' if matches!(self.json, Json::Closed) => return Extent::UpTo(0),
            b'{' if !self.content => self.json = Json::Open { depth: 0, string: false, escape: false },
            _ => {}
        }
        self.content = true;
        let Some(end) = self.json.feed(&piece[from..]).map(|i| from + i) else { return Extent::All };
        match piece[end..].iter().position(|b| !b.is_ascii_whitespace()) {
            Some(next) if piece[end + next] == b'{' => Extent::UpTo(end + next),
            _ => Extent::All,
        }
    }
}

/// YAML 1.2.2 \[206\] c-forbidden: the marker, then a blank or the end of the line.
fn is_marker(line: &[u8], marker: &[u8]) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}

/// Tracks the braces of a JSON object, to find the next object of a stream without separators.
#[derive(Default)]
enum Json {
    /// The text is not JSON: only marker lines end the document.
    #[default]
    No,
    Open {
        depth: usize,
        string: bool,
        escape: bool,
    },
    Closed,
}

impl Json {
    /// Returns the offset after the brace that closes the object.
    fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let Self::Open { depth, string, escape } = self else { return None };
        for (i, byte) in bytes.iter().enumerate() {
            match byte {
                _ if *escape => *escape = false,
                b'\\' if *string => *escape = true,
                b'"' => *string = !*string,
                _ if *string => {}
                b'{' => *depth += 1,
                b'}' => {
                    *depth -= 1;
                    if *depth == 0 {
                        *self = Self::Closed;
                        return Some(i + 1);
                    }
                }
                // YAML in flow style: comments and other quotes may contain braces.
                b'#' | b'\'' => {
                    *self = Self::No;
                    return None;
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunks(text: &str) -> Vec<(usize, usize, String)> {
        Chunks::new("t".into(), text.as_bytes())
            .map(|c| c.expect("UTF-8"))
            .map(|c| (c.number, c.line, c.text))
            .collect()
    }

    fn texts(text: &str) -> Vec<String> {
        chunks(text).into_iter().map(|c| c.2).collect()
    }

    #[test]
    fn splits_at_markers() {
        assert_eq!(
            chunks("# lead\n---\na: 1\n---\n# none\n--- # two\nb: |\n  x\n ---\n...\n%YAML 1.2\n---\nc: 1"),
            [
                (1, 1, "# lead\n---\na: 1\n".to_owned()),
                (1, 4, "---\n# none\n".to_owned()),
                (2, 6, "--- # two\nb: |\n  x\n ---\n...\n".to_owned()),
                (3, 11, "%YAML 1.2\n---\nc: 1".to_owned()),
            ]
        );
        assert_eq!(texts("a: 1\r\n---\r\nb: 1\r\n"), ["a: 1\r\n", "---\r\nb: 1\r\n"]);
        assert_eq!(texts("a: --- b\n---x: 1\n"), ["a: --- b\n---x: 1\n"]);
        assert!(texts("").is_empty());
    }

    #[test]
    fn splits_after_json_objects() {
        assert_eq!(texts("{\"a\":\"}{\"}{\"b\":1}\n {\"c\":{}}\n"), ["{\"a\":\"}{\"}", "{\"b\":1}\n", " {\"c\":{}}\n"]);
        assert_eq!(texts("{\n\"a\": \"\\\"}\"\n}\n\n---\n{}"), ["{\n\"a\": \"\\\"}\"\n}\n\n", "---\n{}"]);
        // YAML in flow style, with an unmatched brace in quotes.
        assert_eq!(texts("{a: '}', b: c}\n"), ["{a: '}', b: c}\n"]);
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(PIECE_SIZE as usize));
        assert_eq!(texts(&format!("{long}{long}")), [long.as_str(), long.as_str()]);
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_text() {
        let chunks: Vec<_> = Chunks::new("t".into(), "\u{feff}---\na: 1\n".as_bytes()).flatten().collect();
        assert_eq!((chunks.len(), chunks[0].bom, chunks[0].text.as_str()), (1, true, "---\na: 1\n"));
    }

    #[test]
    fn continues_after_a_document_that_is_not_utf_8() {
        let mut chunks = Chunks::new("t".into(), &b"a: 1\nb: \xff\n---\nc: 1\n"[..]);
        let error = chunks.next().expect("a chunk").expect_err("not UTF-8").to_string();
        assert!(error.starts_with("t:2: bytes that are not UTF-8"), "{error}");
        assert_eq!(chunks.next().expect("a chunk").expect("UTF-8").line, 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn concatenated_chunks_are_the_stream(text in r#"([{}"'#%a\\ ]|---|\.\.\.|\r?\n){0,60}"#) {
            prop_assert_eq!(texts(&text).concat(), text);
        }
    }
}
