//! `trustspan check`.

mod report;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use jiff::Timestamp;

use super::inputs::{tell, unless_closed};
use super::severity::SeverityArgs;
use super::{Failure, Inputs};
use crate::admission::{self, Context};
use crate::rotation::Outlook;
use crate::store::directory;
use crate::store::manifest::{Chunk, ManifestError, Source};
use crate::trust::Verdict;
use report::{Judged, Reporter};

/// Judges manifests as the validating webhook would: Secrets, what Gateways and GatewaySecrets among them name, and CA
/// bundles elsewhere.
///
/// Exit code: 0 when nothing is denied, 1 when something is, 2 when an input cannot be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// What to print: text for people, or a JSON array with an element for each object judged.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,

    #[command(flatten)]
    severity: SeverityArgs,

    /// Judge as for somebody with the right to break glass: annotations with a reason override denials.
    #[arg(long)]
    break_glass: bool,

    /// The instant to judge at (RFC 3339). Default: now.
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

/// Runs it.
///
/// # Errors
/// When stdout cannot be written. An input or a document that cannot be read is told on stderr, and the others are judged.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = args.now.unwrap_or_else(Timestamp::now);
    let namespace = args.inputs.namespace.as_str();
    let inputs = args.inputs.open_each();
    // What cannot be read is told when its turn comes.
    let sources = inputs.iter().flatten();
    let mut context = directory::collect(sources, namespace, Outlook::Whole, &args.severity.severities(), now).context;
    context.may_break_glass = args.break_glass;
    let stdout = anstream::AutoStream::auto(io::stdout().lock());
    let reporter = match args.output {
        Format::Text => Reporter::text(BufWriter::new(stdout)),
        Format::Json => Reporter::json(BufWriter::new(stdout)),
    };
    let checker = Checker { context, namespace, now };
    unless_closed(checker.judge_all(&inputs, reporter))
}

struct Checker<'a> {
    context: Context,
    namespace: &'a str,
    now: Timestamp,
}

impl Checker<'_> {
    fn judge_all<W: Write>(
        &self,
        inputs: &[Result<Source, ManifestError>],
        mut reporter: Reporter<W>,
    ) -> Result<ExitCode, Failure> {
        let mut unreadable = false;
        for input in inputs {
            unreadable |= self.judge_input(input, &mut reporter)?;
        }
        let denied = reporter.finish()?;
        Ok(ExitCode::from(if unreadable { 2 } else { u8::from(denied) }))
    }

    /// Returns whether something of it is unreadable.
    fn judge_input<W: Write>(
        &self,
        input: &Result<Source, ManifestError>,
        reporter: &mut Reporter<W>,
    ) -> Result<bool, Failure> {
        let chunks = match input.as_ref().map(Source::chunks) {
            Ok(Ok(chunks)) => chunks,
            Ok(Err(error)) => return Ok(tell(&error)),
            Err(error) => return Ok(tell(error)),
        };
        let mut unreadable = false;
        for chunk in chunks {
            unreadable |= match chunk {
                Ok(chunk) => self.judge_chunk(&chunk, reporter)?,
                Err(error) => tell(&error),
            };
        }
        Ok(unreadable)
    }

    /// Returns whether the chunk is unreadable.
    fn judge_chunk<W: Write>(&self, chunk: &Chunk, reporter: &mut Reporter<W>) -> Result<bool, Failure> {
        let document = match chunk.parse() {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(false),
            Err(error) => return Ok(tell(&error)),
        };
        for object in document.objects() {
            if let Some(findings) = admission::check(&object.value, self.namespace, &self.context, self.now) {
                let verdict = Verdict::of(&findings);
                reporter.judged(&Judged::new(&object.value, self.namespace, object.source(), verdict, findings))?;
            }
        }
        Ok(false)
    }
}
