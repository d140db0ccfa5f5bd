//! `trustspan verify`.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::ArgPredicate;
use jiff::Timestamp;
use serde::Serialize;
use zeroize::Zeroizing;

use super::Failure;
use super::inputs::unless_closed;
use crate::store::manifest;
use crate::text::printable;
use crate::trust::bundle::{self, Bundle};
use crate::trust::chain::{Accepted, Purpose, Refused, horizon, verify};

/// Verify a certificate chain like a gateway or a client.
///
/// Exit code: 0 when the chain is accepted, 1 when it is refused, 2 when an input cannot be read. With --list the highest of all.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// CA bundle in PEM. It may include revocation lists.
    #[arg(long, value_name = "FILE", required_unless_present = "list", conflicts_with = "list")]
    bundle: Option<PathBuf>,

    /// Certificate chain in PEM: the leaf, then its intermediates.
    #[arg(long, value_name = "FILE", required_unless_present = "list", conflicts_with = "list")]
    chain: Option<PathBuf>,

    /// Role of the certificate: a client of a gateway, or a server. Default: client, or server with --host.
    #[arg(long, value_enum, default_value = "client", default_value_if("hosts", ArgPredicate::IsPresent, "server"))]
    purpose: Role,

    /// Host name or IP address of the server. Repeatable.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,

    /// Revocation lists in PEM (ca.crl).
    #[arg(long, value_name = "FILE")]
    crl: Option<PathBuf>,

    /// Time to evaluate validity at (RFC 3339). Default: now.
    #[arg(long, value_name = "RFC3339")]
    now: Option<Timestamp>,

    /// Output format: text, or one JSON object per line.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: VerifyFormat,

    /// Verify many chains: a file (or - for stdin) with lines `BUNDLE CHAIN [client|server] [HOST]`.
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

/// A bundle and a chain to verify.
struct VerifyQuery {
    bundle: PathBuf,
    chain: PathBuf,
    role: Role,
    hosts: Vec<String>,
}

impl VerifyQuery {
    fn validated(self) -> Result<Self, String> {
        match (self.role, self.hosts.as_slice()) {
            (Role::Client, [host, ..]) => {
                Err(format!("a client has no host name; expected purpose server with {host}, or no host"))
            }
            _ => Ok(self),
        }
    }
}

/// The input that a query came from.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ChainLocation {
    /// The file of the chain.
    Chain(String),
    /// A line of the list, starting with 1.
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

/// A line of JSON output.
#[derive(Serialize)]
struct LocatedResult<'a> {
    #[serde(flatten)]
    location: &'a ChainLocation,
    #[serde(flatten)]
    result: &'a VerifyResult,
}

/// The result of a query, as it is printed in JSON.
#[derive(Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
enum VerifyResult {
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

/// Runs the subcommand.
///
/// # Errors
/// When the list cannot be read, or stdout cannot be written.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let now = args.now.unwrap_or_else(Timestamp::now);
    let mut out = BufWriter::new(anstream::AutoStream::auto(io::stdout().lock()));
    let mut worst = 0;
    for (location, query) in queries(&args)? {
        let result = match &query {
            Ok(query) => verify_query(query, args.crl.as_deref(), now),
            Err(message) => VerifyResult::Unreadable { message: message.clone() },
        };
        worst = worst.max(result.code());
        if let Err(error) = print(&mut out, args.output, &location, &result) {
            return unless_closed(Err(error.into()));
        }
    }
    unless_closed(out.flush().map(|()| ExitCode::from(worst)).map_err(Failure::from))
}

type LocatedQuery = (ChainLocation, Result<VerifyQuery, String>);

fn queries(args: &Args) -> Result<Vec<LocatedQuery>, Failure> {
    if let (Some(bundle), Some(chain)) = (&args.bundle, &args.chain) {
        let query =
            VerifyQuery { bundle: bundle.clone(), chain: chain.clone(), role: args.purpose, hosts: args.hosts.clone() };
        return Ok(vec![(ChainLocation::Chain(chain.display().to_string()), query.validated())]);
    }
    let path = args.list.clone().unwrap_or_else(|| PathBuf::from("-"));
    let text = String::from_utf8_lossy(&read(&path).map_err(Failure::Unreadable)?).into_owned();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    Ok(lines.map(|(n, line)| (ChainLocation::Line(n + 1), query(line, args))).collect())
}

fn query(line: &str, args: &Args) -> Result<VerifyQuery, String> {
    // Fields that are separated by tabs may contain blanks.
    let fields: Vec<_> =
        if line.contains('\t') { line.split('\t').collect() } else { line.split_whitespace().collect() };
    let [bundle, chain, rest @ ..] = fields.as_slice() else {
        return Err("expected BUNDLE CHAIN [client|server] [HOST]".to_owned());
    };
    let role = match rest.first().copied() {
        None => args.purpose,
        Some("client") => Role::Client,
        Some("server") => Role::Server,
        Some(other) => return Err(format!("unknown purpose {other:?}; expected client or server")),
    };
    let hosts = rest.iter().skip(1).map(|host| (*host).to_owned());
    let hosts: Vec<_> = match role {
        Role::Server if rest.len() < 2 => args.hosts.clone(),
        _ => hosts.collect(),
    };
    VerifyQuery { bundle: PathBuf::from(bundle), chain: PathBuf::from(chain), role, hosts }.validated()
}

fn verify_query(query: &VerifyQuery, crl: Option<&Path>, now: Timestamp) -> VerifyResult {
    let inputs = certificates(&query.bundle, "bundle", bundle::read).and_then(|bundle| {
        let chain = certificates(&query.chain, "chain", bundle::read_chain)?;
        let lists = crl.map(|path| load(path, "crl", bundle::read)).transpose()?;
        Ok((bundle, chain, lists))
    });
    let (mut bundle, chain, lists) = match inputs {
        Ok(inputs) => inputs,
        Err(message) => return VerifyResult::Unreadable { message },
    };
    // Envoy checks revocation as soon as it has a list, or any text for lists.
    let checks = lists.is_some() || !bundle.crls.is_empty();
    let mut crls = std::mem::take(&mut bundle.crls);
    crls.extend(lists.into_iter().flat_map(|lists| lists.crls));
    let (crls, bundle, chain) =
        (checks.then_some(crls.as_slice()), bundle.into_certificates(), chain.into_certificates());
    let purpose = match query.role {
        Role::Client => Purpose::Client,
        Role::Server => Purpose::Server { hosts: &query.hosts },
    };
    match verify(&bundle, crls, &chain, purpose, now) {
        Ok(accepted) => {
            let future = horizon(&bundle, crls, &chain, purpose, now);
            VerifyResult::Accepted {
                accepted,
                breaks: future.map(|future| Reason::new(Some(future.at), &future.refused)),
            }
        }
        Err(refused) => VerifyResult::Refused(Reason::new(None, &refused)),
    }
}

/// Reads a file with at least one certificate.
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

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    manifest::read(path).map_err(|error| error.to_string())
}

impl Reason {
    fn new(at: Option<Timestamp>, refused: &Refused) -> Self {
        Self { at, reason: refused.id(), message: refused.to_string() }
    }
}

impl VerifyResult {
    fn code(&self) -> u8 {
        match self {
            Self::Accepted { .. } => 0,
            Self::Refused(_) => 1,
            Self::Unreadable { .. } => 2,
        }
    }
}

fn print(
    out: &mut impl Write,
    format: VerifyFormat,
    location: &ChainLocation,
    result: &VerifyResult,
) -> io::Result<()> {
    if matches!(format, VerifyFormat::Json) {
        serde_json::to_writer(&mut *out, &LocatedResult { location, result })?;
        return writeln!(out);
    }
    match result {
        VerifyResult::Accepted { accepted, breaks } => {
            write!(out, "{location}: accepted until {}: {}", accepted.until, printable(&accepted.path.join(" < ")))?;
            match breaks {
                Some(Reason { at: Some(at), message, .. }) => writeln!(out, "; from {at} on: {}", printable(message)),
                _ => writeln!(out),
            }
        }
        VerifyResult::Refused(why) => writeln!(out, "{location}: refused: {}: {}", why.reason, printable(&why.message)),
        VerifyResult::Unreadable { message } => writeln!(out, "{location}: unreadable: {}", printable(message)),
    }
}
