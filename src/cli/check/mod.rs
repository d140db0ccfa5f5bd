//! `trustspan check`.

mod pem;
mod placeholder;
mod report;
mod schema;

use std::io::{self, BufWriter};
use std::process::ExitCode;

use jiff::Timestamp;

use super::inputs::unless_closed;
use super::severity::SeverityArgs;
use super::{Failure, Inputs};
use crate::admission::{self, Context};
use crate::api::Kind;
use crate::json::Json;
use crate::rotation::Outlook;
use crate::store::directory;
use crate::store::manifest::{Chunk, Files, ManifestError, Object, Source};
use pem::PemFile;
use placeholder::{is_template, without_placeholders};
use report::{FindingLocation, JudgedObject, ReportFormat, Reporter};
use schema::Schemas;

/// Check manifests like the validating webhook.
///
/// The command checks Secrets, Gateways, GatewaySecrets, and CA bundles in other objects. PEM files (*.pem, *.crt and *.cer in a directory, and any input that begins with -----BEGIN) are checked as CA bundles.
/// Encrypted values and templates are reported as not judged.
///
/// Exit code: 0 when nothing is denied, 1 when something is denied, 2 when an input cannot be read, or with --fail-on-empty
/// when nothing was judged.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    inputs: Inputs,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: ReportFormat,

    /// Fail when no object was judged, for example because a glob matches nothing.
    #[arg(long)]
    fail_on_empty: bool,

    #[command(flatten)]
    severity: SeverityArgs,

    /// Let break-glass annotations override denials, as for a user with the right to break glass.
    #[arg(long)]
    break_glass: bool,

    /// Time to evaluate validity at (RFC 3339). Default: now.
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,
}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written. An input or document that cannot be read is reported on stderr, and the others are judged.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = args.now.unwrap_or_else(Timestamp::now);
    let namespace = args.inputs.namespace.as_str();
    let inputs: Vec<_> = args.inputs.open_each(Files::ManifestsAndPem).into_iter().map(Input::new).collect();
    // Unreadable inputs are reported in order, in `judge_input`.
    let manifests = inputs.iter().filter_map(|input| match input {
        Ok(Input::Manifest(source)) => Some(source),
        _ => None,
    });
    let collected = directory::collect(manifests, namespace, &args.severity.severities(), now);
    let mut context = Context::new(collected.inventory, Outlook::Whole, now);
    context.may_break_glass = args.break_glass;
    let stdout = anstream::AutoStream::auto(io::stdout().lock());
    let mut reporter = Reporter::new(args.output, BufWriter::new(stdout));
    let checker = Checker { context, schemas: Schemas::new()?, namespace, now };
    let judged = inputs.iter().try_for_each(|input| checker.judge_input(input, &mut reporter));
    unless_closed(judged.and_then(|()| {
        let totals = reporter.finish()?;
        if args.fail_on_empty && totals.judged == 0 {
            return Err(Failure::Impossible(
                "nothing was judged: the inputs contain no Secret, Gateway, GatewaySecret or CA bundle".to_owned(),
            ));
        }
        Ok(ExitCode::from(if totals.unreadable > 0 { 2 } else { u8::from(totals.denied > 0) }))
    }))
}

enum Input {
    Manifest(Source),
    Pem(Source),
}

impl Input {
    fn new(source: Result<Source, ManifestError>) -> Result<Self, ManifestError> {
        let source = source?;
        Ok(if source.is_pem()? { Self::Pem(source) } else { Self::Manifest(source) })
    }
}

struct Checker<'a> {
    context: Context,
    schemas: Schemas,
    namespace: &'a str,
    now: Timestamp,
}

impl Checker<'_> {
    fn judge_input(&self, input: &Result<Input, ManifestError>, reporter: &mut Reporter) -> Result<(), Failure> {
        let source = match input {
            Ok(Input::Manifest(source)) => source,
            Ok(Input::Pem(source)) => return self.judge_pem(source, reporter),
            Err(error) => return Ok(reporter.unreadable(error)?),
        };
        match source.chunks() {
            Ok(mut chunks) => chunks.try_for_each(|chunk| match chunk {
                Ok(chunk) => self.judge_chunk(&chunk, reporter),
                Err(error) => Ok(reporter.unreadable(&error)?),
            }),
            Err(error) => Ok(reporter.unreadable(&error)?),
        }
    }

    fn judge_pem(&self, source: &Source, reporter: &mut Reporter) -> Result<(), Failure> {
        let text = match source.bytes() {
            Ok(text) => text,
            Err(error) => return Ok(reporter.unreadable(&error)?),
        };
        let location = FindingLocation { file: source.name().to_owned(), line: 1 };
        let (findings, not_judged) = match pem::judge(text, &self.context.severities, self.now) {
            PemFile::Bundle(findings) => (findings, Vec::new()),
            PemFile::Other(what) => (Vec::new(), vec![what.to_owned()]),
        };
        Ok(reporter.judged(&JudgedObject::file("PEM file", location, findings, not_judged))?)
    }

    fn judge_chunk(&self, chunk: &Chunk, reporter: &mut Reporter) -> Result<(), Failure> {
        let document = match chunk.parse() {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(()),
            Err(_) if is_template(&chunk.text) => {
                let location = FindingLocation { file: chunk.source_name.to_string(), line: chunk.line };
                let why = "a Helm or Go template: render it first (helm template CHART | trustspan check -f -)";
                return Ok(reporter.judged(&JudgedObject::file(
                    "document",
                    location,
                    Vec::new(),
                    vec![why.to_owned()],
                ))?);
            }
            Err(error) => return Ok(reporter.unreadable(&error)?),
        };
        let judged = document.objects().filter_map(|object| self.judge(&object));
        Ok({ judged }.try_for_each(|judged| reporter.judged(&judged))?)
    }

    /// `None` when no rule applies to objects of this kind.
    fn judge(&self, object: &Object<'_>) -> Option<JudgedObject> {
        let location = FindingLocation { file: object.file().to_owned(), line: object.line };
        let (value, mut not_judged) = without_placeholders(&object.value);
        if Kind::of_value(&value).kind.is_empty() {
            not_judged.push("an object without kind, which the API server rejects: add kind".to_owned());
        }
        // A Secret is judged as a whole: a pair with one encrypted half is not incomplete.
        let is_whole = not_judged.is_empty() || Kind::of_value(&value).kind != "Secret";
        let findings = match self.schemas.findings(&value) {
            _ if !is_whole => None,
            // The API server calls no webhook for an object that it rejects.
            rejected if !rejected.is_empty() => Some(rejected),
            _ => admission::check(&Json::from(&*value), self.namespace, &self.context, self.now),
        };
        if findings.is_none() && not_judged.is_empty() {
            return None;
        }
        Some(JudgedObject::object(&value, self.namespace, location, findings.unwrap_or_default(), not_judged))
    }
}
