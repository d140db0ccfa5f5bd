//! `trustspan verify`.

use std::fmt;
use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::ArgPredicate;
use jiff::Timestamp;
use serde::Serialize;

use super::Failure;
use super::inputs::unless_closed;
use super::sanitize::printable;
use crate::trust::bundle::{self, Bundle};
use crate::trust::chain::{Accepted, Purpose, Refused, horizon, verify};

/// Tells whether a gateway (or a client) with a CA bundle would accept a client's (or a server's) certificate chain.
///
/// Exit code: 0 when it is accepted, 1 when it is refused, 2 when an input cannot be read. With --list the worst of all.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The CA bundle in PEM; revocation lists may stand in it.
    #[arg(long, value_name = "FILE", required_unless_present = "list", conflicts_with = "list")]
    bundle: Option<PathBuf>,

    /// The chain in PEM: the leaf first, its intermediates after it.
    #[arg(long, value_name = "FILE", required_unless_present = "list", conflicts_with = "list")]
    chain: Option<PathBuf>,

    /// Who presents the chain: a client to a gateway, or a server to its clients. Default: client, and server with --host.
    #[arg(long, value_enum, default_value = "client", default_value_if("hosts", ArgPredicate::IsPresent, "server"))]
    purpose: Role,

    /// A host name or address that the server is called by; may be repeated.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,

    /// Revocation lists in PEM (ca.crl).
    #[arg(long, value_name = "FILE")]
    crl: Option<PathBuf>,

    /// The instant to judge at (RFC 3339). Default: now.
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,

    /// What to print: a line of text, or a JSON object on a line.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: VerifyFormat,

    /// Many at once: a file (or - for stdin) with a line `BUNDLE CHAIN [client|server] [HOST]` for each.
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Role {
    #[default]
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum VerifyFormat {
    #[default]
    Text,
    Json,
}

/// One question.
struct VerifyQuery {
    bundle: PathBuf,
    chain: PathBuf,
    role: Role,
    hosts: Vec<String>,
}

impl VerifyQuery {
    fn sensible(self) -> Result<Self, String> {
        match (self.role, self.hosts.as_slice()) {
            (Role::Client, [host, ..]) => {
                Err(format!("a client is not called by a host name; expected purpose server with {host}, or no host"))
            }
            _ => Ok(self),
        }
    }
}

/// Where a question came from.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ChainLocation {
    /// The chain's file.
    Chain(String),
    /// A line of the list, from 1.
    Line(usize),
}

impl fmt::Display for ChainLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(name) => f.write_str(&printable(name)),
            Self::Line(number) => write!(f, "line {number}"),
        }
    }
}

/// A line of JSON.
#[derive(Serialize)]
struct Answered<'a> {
    #[serde(flatten)]
    place: &'a ChainLocation,
    #[serde(flatten)]
    answer: &'a VerifyAnswer,
}

/// One answer, as it is printed in JSON.
#[derive(Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
enum VerifyAnswer {
    Accepted {
        #[serde(flatten)]
        accepted: Accepted,
        #[serde(skip_serializing_if = "Option::is_none")]
        breaks: Option<Reason>,
    },
    Refused(Reason),
    Unreadable {
        message: String,
    },
}

#[derive(Serialize)]
struct Reason {
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Timestamp>,
    reason: &'static str,
    message: String,
}

/// Runs it.
///
/// # Errors
/// When the list cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = args.now.unwrap_or_else(Timestamp::now);
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    let mut worst = 0;
    for (place, question) in questions(&args)? {
        let answer = match &question {
            Ok(question) => answer(question, args.crl.as_deref(), now),
            Err(message) => VerifyAnswer::Unreadable { message: message.clone() },
        };
        worst = worst.max(answer.code());
        if let Err(error) = print(&mut out, args.output, &place, &answer) {
            return unless_closed(Err(error.into()));
        }
    }
    unless_closed(out.flush().map(|()| ExitCode::from(worst)).map_err(Failure::from))
}

type Placed = (ChainLocation, Result<VerifyQuery, String>);

fn questions(args: &Args) -> Result<Vec<Placed>, Failure> {
    if let (Some(bundle), Some(chain)) = (&args.bundle, &args.chain) {
        let question =
            VerifyQuery { bundle: bundle.clone(), chain: chain.clone(), role: args.purpose, hosts: args.hosts.clone() };
        return Ok(vec![(ChainLocation::Chain(chain.display().to_string()), question.sensible())]);
    }
    let path = args.list.clone().unwrap_or_else(|| PathBuf::from("-"));
    let text = String::from_utf8_lossy(&read(&path).map_err(Failure::Unreadable)?).into_owned();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(|(n, line)| (ChainLocation::Line(n + 1), question(line, args))).collect())
}

fn question(line: &str, args: &Args) -> Result<VerifyQuery, String> {
    // With a tab in it, paths may hold blanks.
    let words: Vec<_> =
        if line.contains('\t') { line.split('\t').collect() } else { line.split_whitespace().collect() };
    let [bundle, chain, rest @ ..] = words.as_slice() else {
        return Err("expected BUNDLE CHAIN [client|server] [HOST]".to_owned());
    };
    let role = match rest.first().copied() {
        None => args.purpose,
        Some("client") => Role::Client,
        Some("server") => Role::Server,
        Some(other) => return Err(format!("{other:?} is no purpose; expected client or server")),
    };
    let hosts = rest.iter().skip(1).map(|host| (*host).to_owned());
    let hosts: Vec<_> = match role {
        Role::Server if rest.len() < 2 => args.hosts.clone(),
        _ => hosts.collect(),
    };
    VerifyQuery { bundle: PathBuf::from(bundle), chain: PathBuf::from(chain), role, hosts }.sensible()
}

fn answer(question: &VerifyQuery, crl: Option<&Path>, now: Timestamp) -> VerifyAnswer {
    let inputs = certificates(&question.bundle, "bundle", bundle::read).and_then(|bundle| {
        let chain = certificates(&question.chain, "chain", bundle::read_chain)?;
        let lists = crl.map(|path| load(path, "crl", bundle::read)).transpose()?;
        Ok((bundle, chain, lists))
    });
    let (mut bundle, chain, lists) = match inputs {
        Ok(inputs) => inputs,
        Err(message) => return VerifyAnswer::Unreadable { message },
    };
    // Envoy checks revocation as soon as it has a list, or any text for lists.
    let checks = lists.is_some() || !bundle.crls.is_empty();
    let mut crls = std::mem::take(&mut bundle.crls);
    crls.extend(lists.into_iter().flat_map(|lists| lists.crls));
    let (crls, bundle, chain) =
        (checks.then_some(crls.as_slice()), bundle.into_certificates(), chain.into_certificates());
    let purpose = match question.role {
        Role::Client => Purpose::Client,
        Role::Server => Purpose::Server { hosts: &question.hosts },
    };
    match verify(&bundle, crls, &chain, purpose, now) {
        Ok(accepted) => {
            let ahead = horizon(&bundle, crls, &chain, purpose, now);
            VerifyAnswer::Accepted { accepted, breaks: ahead.map(|ahead| Reason::new(Some(ahead.at), &ahead.refused)) }
        }
        Err(refused) => VerifyAnswer::Refused(Reason::new(None, &refused)),
    }
}

/// A file without any certificate answers no question.
fn certificates(path: &Path, what: &str, reader: impl Fn(&[u8]) -> Bundle) -> Result<Bundle, String> {
    let bundle = load(path, what, reader)?;
    if bundle.entries.is_empty() {
        return Err(format!("{what} {}: no certificate in it; expected PEM", path.display()));
    }
    Ok(bundle)
}

fn load(path: &Path, what: &str, reader: impl Fn(&[u8]) -> Bundle) -> Result<Bundle, String> {
    let bundle = reader(&read(path)?);
    if let Some(rejection) = &bundle.rejected {
        return Err(format!("{what} {}: the proxy rejects it: {rejection}", path.display()));
    }
    if bundle.is_too_long {
        return Err(format!("{what} {}: more than {} certificates", path.display(), bundle::MAX_CERTIFICATES));
    }
    Ok(bundle)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    if path == Path::new("-") {
        let mut text = Vec::new();
        io::stdin().lock().read_to_end(&mut text).map_err(|error| format!("stdin: {error}"))?;
        return Ok(text);
    }
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Reason {
    fn new(at: Option<Timestamp>, refused: &Refused) -> Self {
        Self { at, reason: refused.id(), message: refused.to_string() }
    }
}

impl VerifyAnswer {
    fn code(&self) -> u8 {
        match self {
            Self::Accepted { .. } => 0,
            Self::Refused(_) => 1,
            Self::Unreadable { .. } => 2,
        }
    }
}

fn print(out: &mut impl Write, format: VerifyFormat, place: &ChainLocation, answer: &VerifyAnswer) -> io::Result<()> {
    if matches!(format, VerifyFormat::Json) {
        serde_json::to_writer(&mut *out, &Answered { place, answer })?;
        return writeln!(out);
    }
    match answer {
        VerifyAnswer::Accepted { accepted, breaks } => {
            write!(out, "{place}: accepted until {}: {}", accepted.until, printable(&accepted.path.join(" < ")))?;
            match breaks {
                Some(Reason { at: Some(at), message, .. }) => writeln!(out, "; from {at} on: {}", printable(message)),
                _ => writeln!(out),
            }
        }
        VerifyAnswer::Refused(why) => writeln!(out, "{place}: refused: {}: {}", why.reason, printable(&why.message)),
        VerifyAnswer::Unreadable { message } => writeln!(out, "{place}: unreadable: {}", printable(message)),
    }
}
