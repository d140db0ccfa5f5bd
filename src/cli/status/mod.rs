//! `trustspan status`.

mod draw;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

use super::Failure;
use super::cluster_args::ClusterArgs;
use super::inputs::unless_closed;
use super::state_args::StateArgs;
use crate::consumer::ConsumerSummary;
use crate::rotation::StatusSummary;

/// Between two updates of --watch.
const WATCH: Duration = Duration::from_secs(2);

/// Show rotation status.
///
/// The status says what is going on, what it waits for, whether you have to act, and which CA is used by what. Of TrustConsumers it says whether
/// the workloads have loaded the content; in a directory (-f) there are none, since no agent restarts workloads there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GatewaySecrets and TrustConsumers to show. Default: all.
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
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// What is shown, with its kind.
#[derive(Serialize)]
#[serde(tag = "kind")]
enum Summary {
    GatewaySecret(Box<StatusSummary>),
    TrustConsumer(Box<ConsumerSummary>),
}

/// Runs the subcommand.
///
/// # Errors
/// When the cluster or the manifests cannot be read, or nothing has one of the names.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    loop {
        let now = Timestamp::now();
        let consumers = args.source.trust_consumers(&args.names)?;
        let known: Vec<_> = consumers.iter().map(|consumer| consumer.name.as_str()).collect();
        let entries = args.source.read_unless_known(&args.state, &args.names, &known)?;
        let entries = entries.iter().map(|entry| Summary::GatewaySecret(Box::new(StatusSummary::of(entry, now))));
        let consumers = consumers.iter().map(|one| Summary::TrustConsumer(Box::new(one.clone())));
        let summaries: Vec<_> = entries.chain(consumers).collect();
        let printed = unless_closed(print(&summaries, now, args.output, args.watch).map(|()| ExitCode::SUCCESS))?;
        if !args.watch || printed != ExitCode::SUCCESS {
            return Ok(printed);
        }
        std::thread::sleep(WATCH);
    }
}

fn print(summaries: &[Summary], now: Timestamp, output: Output, is_update: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(summaries).map_err(io::Error::from)?)?,
        Output::Text => {
            if is_update && out.is_terminal() {
                // Cursor to the top left, and clear the screen below.
                write!(out, "\x1b[H\x1b[J")?;
            }
            if summaries.is_empty() {
                writeln!(out, "no GatewaySecret or TrustConsumer found")?;
            }
            for (number, summary) in summaries.iter().enumerate() {
                let gap = if number > 0 { "\n" } else { "" };
                let text = match summary {
                    Summary::GatewaySecret(summary) => draw::draw(summary, now),
                    Summary::TrustConsumer(summary) => draw::draw_consumer(summary, now),
                };
                write!(out, "{gap}{text}")?;
            }
        }
    }
    Ok(out.flush()?)
}
