//! `trustspan status`.

mod draw;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::inputs::unless_closed;
use super::state_args::StateArgs;
use crate::registry::Entry;
use crate::rotation::StatusSummary;

/// Between two updates of --watch.
const WATCH: Duration = Duration::from_secs(2);

/// Show rotation status.
///
/// The status says what is going on, what it waits for, whether you have to act, and which CA is used by what.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GatewaySecrets to show. Default: all.
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    source: ClusterArgs,

    #[command(flatten)]
    state: StateArgs,

    /// Watch for changes.
    #[arg(long)]
    watch: bool,

    /// Output format.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Runs the subcommand.
///
/// # Errors
/// When the cluster or the manifests cannot be read, or a GatewaySecret does not exist.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    loop {
        let entries = args.source.read_with(&args.state, &args.names)?;
        let printed = unless_closed(print(&entries, args.output, args.watch).map(|()| ExitCode::SUCCESS))?;
        if !args.watch || printed != ExitCode::SUCCESS {
            return Ok(printed);
        }
        std::thread::sleep(WATCH);
    }
}

fn print(entries: &[Entry], output: Output, is_update: bool) -> Result<(), Failure> {
    let now = Timestamp::now();
    let summaries: Vec<_> = entries.iter().map(|entry| StatusSummary::of(entry, now)).collect();
    let mut out = io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&summaries).map_err(io::Error::from)?)?,
        Output::Text => {
            if is_update && out.is_terminal() {
                // Cursor to the top left, and clear the screen below.
                write!(out, "\x1b[H\x1b[J")?;
            }
            if summaries.is_empty() {
                writeln!(out, "no GatewaySecret found")?;
            }
            for (number, summary) in summaries.iter().enumerate() {
                let gap = if number > 0 { "\n" } else { "" };
                write!(out, "{gap}{}", draw::draw(summary, now))?;
            }
        }
    }
    Ok(out.flush()?)
}
