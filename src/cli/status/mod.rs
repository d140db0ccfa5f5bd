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
use crate::registry::Entry;
use crate::rotation::StatusSummary;

/// Between two looks of --watch.
const WATCH: Duration = Duration::from_secs(2);

/// Show rotation status.
///
/// The status consists of the phase, blocked steps, the CA bundle, the users of each CA, and a timeline.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GatewaySecrets to show. Default: all.
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    #[command(flatten)]
    source: ClusterArgs,

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
/// When the cluster or the manifests cannot be read, or a name is not there.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    loop {
        let entries = args.source.read(&args.names)?;
        let printed = unless_closed(print(&entries, args.output, args.watch).map(|()| ExitCode::SUCCESS))?;
        if !args.watch || printed != ExitCode::SUCCESS {
            return Ok(printed);
        }
        std::thread::sleep(WATCH);
    }
}

fn print(entries: &[Entry], output: Output, again: bool) -> Result<(), Failure> {
    let now = Timestamp::now();
    let stories: Vec<_> = entries.iter().map(|entry| StatusSummary::of(entry, now)).collect();
    let mut out = io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&stories).map_err(io::Error::from)?)?,
        Output::Text => {
            if again && out.is_terminal() {
                // Home, and clear what is below.
                write!(out, "\x1b[H\x1b[J")?;
            }
            if stories.is_empty() {
                writeln!(out, "no GatewaySecret")?;
            }
            for (number, story) in stories.iter().enumerate() {
                let gap = if number > 0 { "\n" } else { "" };
                write!(out, "{gap}{}", draw::draw(story, now))?;
            }
        }
    }
    Ok(out.flush()?)
}
