//! `trustspan rewrite`.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use jiff::Timestamp;
use json_patch::Patch;

use super::diff::FileDiff;
use super::inputs::{create, print_error, title, unless_closed};
use super::severity::SeverityArgs;
use super::{Failure, Inputs};
use crate::admission;
use crate::api::names::UNDO;
use crate::json::Json;
use crate::registry::Registry;
use crate::rotation::Outlook;
use crate::store::directory;
use crate::store::manifest::{self, Chunk, Edited, Source};
use crate::text::printable;

/// Rewrite manifests like the mutating webhook.
///
/// The command prints the rewritten manifests. Comments, order and layout are kept.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Print a unified diff.
    #[arg(long)]
    diff: bool,

    /// Undo rewrites that are recorded in the annotation trustspan.dev/undo.
    #[arg(long)]
    undo: bool,

    #[command(flatten)]
    severity: SeverityArgs,

    /// Manifests with more GatewaySecrets; they are not printed. Repeatable.
    #[arg(long, value_name = "FILE|DIR")]
    context: Vec<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
/// When an input cannot be opened or is not UTF-8, or stdout cannot be written. A document that cannot be read is reported on stderr and
/// printed unchanged.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let sources = args.inputs.open()?;
    let mut rewriter = Rewriter {
        registry: Registry::default(),
        namespace: &args.inputs.namespace,
        undo: args.undo,
        unreadable: Cell::new(false),
    };
    if !args.undo {
        let context = manifest::open(&args.context)?;
        let (all, severities) = (context.iter().chain(&sources), args.severity.severities());
        let now = Timestamp::now();
        let collected = directory::collect(all, rewriter.namespace, &severities, now);
        if let Some(error) = collected.errors.into_iter().next() {
            return Err(error.into());
        }
        rewriter.registry = collected.inventory.into_registry(Outlook::Whole, now);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let result = match args.diff {
        true => rewriter.diff(&sources, &mut out),
        false => rewriter.print(&sources, &mut out),
    };
    // A closed pipe is an error here at the latest.
    let flushed = out.flush().map_err(Failure::from);
    let code = if rewriter.unreadable.get() { ExitCode::from(2) } else { ExitCode::SUCCESS };
    unless_closed(result.and(flushed).map(|()| code))
}

struct Rewriter<'a> {
    registry: Registry,
    namespace: &'a str,
    undo: bool,
    /// A document could not be read.
    unreadable: Cell<bool>,
}

impl Rewriter<'_> {
    fn print(&self, sources: &[Source], out: &mut impl Write) -> Result<(), Failure> {
        let mut separator = Separator::default();
        for source in sources {
            for (index, chunk) in source.chunks()?.enumerate() {
                let chunk = chunk?;
                let text = self.rewrite(&chunk)?;
                let bom = if chunk.bom { "\u{feff}" } else { "" };
                let before = if index == 0 { separator.between(&text) } else { "" };
                write!(out, "{before}{bom}{text}")?;
                separator.printed(&text);
            }
        }
        Ok(())
    }

    fn diff(&self, sources: &[Source], out: &mut impl Write) -> Result<(), Failure> {
        for source in sources {
            let mut diff = FileDiff::new(source.name());
            for chunk in source.chunks()? {
                let chunk = chunk?;
                diff.push(&chunk.text, &self.rewrite(&chunk)?, out)?;
            }
            diff.finish(out)?;
        }
        Ok(())
    }

    /// The rewritten text of a chunk. Errors and notes go to stderr.
    fn rewrite<'c>(&self, chunk: &'c Chunk) -> Result<Cow<'c, str>, Failure> {
        let document = match chunk.parse() {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(Cow::Borrowed(&chunk.text)),
            Err(error) => {
                print_error(&error);
                self.unreadable.set(true);
                return Ok(Cow::Borrowed(&chunk.text));
            }
        };
        let mut patches = Vec::new();
        for object in document.objects() {
            let json = Json::from(&*object.value);
            let (patch, notes) = self.decide(&json);
            let title = title(&create(&json, self.namespace));
            for note in notes {
                anstream::eprintln!("{}", printable(&format!("{}: {title}: {note}", object.source())));
            }
            if let Some(patch) = patch.filter(|patch| !patch.0.is_empty()) {
                patches.push((object.pointer(), patch));
            }
        }
        if patches.is_empty() {
            return Ok(Cow::Borrowed(&chunk.text));
        }
        Ok(Cow::Owned(match document.edit(patches.iter().map(|(pointer, patch)| (pointer.as_str(), patch)))? {
            Edited::InPlace(text) => text,
            Edited::Reserialized(text) => {
                let place = format!("{}:{}", chunk.source_name, document.line());
                let place = printable(&place);
                anstream::eprintln!("{place}: written anew, comments are lost: its text cannot be changed in place");
                text
            }
        }))
    }

    fn decide(&self, object: &Json<'_>) -> (Option<Patch>, Vec<String>) {
        if self.undo {
            let undo = crate::rewrite::undo(object);
            let passed_over = undo.as_ref().map_or(0, |undo| undo.passed_over);
            let note = match passed_over {
                0 => None,
                1 => Some(format!("{UNDO}: 1 recorded change no longer applies to the object and was skipped")),
                count => {
                    Some(format!("{UNDO}: {count} recorded changes no longer apply to the object and were skipped"))
                }
            };
            let notes = note.into_iter().collect();
            return (undo.map(|undo| undo.patch), notes);
        }
        let decision = admission::mutate(&create(object, self.namespace), &self.registry, Timestamp::now());
        let findings = decision.findings.into_iter().map(|f| format!("{}: {}", f.field, f.message));
        (Some(decision.patch.parse()), findings.chain(decision.notes).collect())
    }
}

/// Separates documents of different files.
#[derive(Default)]
struct Separator {
    last: Option<Printed>,
}

/// How the text that was printed last ends.
#[derive(Clone, Copy)]
struct Printed {
    json: bool,
    ends_line: bool,
}

impl Separator {
    fn printed(&mut self, text: &str) {
        let json = text.trim_start().starts_with('{');
        self.last = Some(Printed { json, ends_line: text.ends_with('\n') });
    }

    /// The separator before the first text of another file.
    fn between(&self, text: &str) -> &'static str {
        let Some(last) = self.last else { return "" };
        let is_separate = text.starts_with("---") || (last.json && text.trim_start().starts_with('{'));
        match (is_separate, last.ends_line) {
            (true, true) => "",
            (true, false) => "\n",
            (false, true) => "---\n",
            (false, false) => "\n---\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(texts: &[&str]) -> String {
        let (mut separator, mut out) = (Separator::default(), String::new());
        for text in texts {
            out.push_str(separator.between(text));
            out.push_str(text);
            separator.printed(text);
        }
        out
    }

    #[test]
    fn separates_files() {
        assert_eq!(joined(&["a: 1\n", "b: 1", "---\nc: 1\n"]), "a: 1\n---\nb: 1\n---\nc: 1\n");
        assert_eq!(joined(&["{\"a\":1}", "{\"b\":1}\n", "c: 1\n"]), "{\"a\":1}\n{\"b\":1}\n---\nc: 1\n");
    }
}
