//! What long-running subcommands write to stderr.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// kube tells of each request that is refused, and its watches do so with a dump of the answer; whoever asks tells of it in a sentence.
/// A filter that names them wins over this.
const OTHERS: &str = "kube_client::client::builder=off,kube_runtime=error";

/// How to log.
#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// Format of the log, on stderr.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// error, warn, info, debug or trace; or a tracing filter such as "info,trustspan=debug".
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = filter)]
    log_level: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogArgs {
    /// Logs from now on.
    pub(super) fn start(&self) {
        let logger = tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .with_env_filter(EnvFilter::new(format!("{OTHERS},{}", self.log_level)));
        // Fails only when there is a logger already.
        let _ = match self.log_format {
            LogFormat::Text => logger.with_target(false).try_init(),
            LogFormat::Json => logger.json().flatten_event(true).try_init(),
        };
        // The default hook prints the panic's message, which may quote an object.
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!("fault in trustspan at {place}: please report it");
        }));
    }
}

fn filter(text: &str) -> Result<String, String> {
    // A single word that is not a level would be read as a target, and disable everything else.
    let level = text.parse::<tracing::level_filters::LevelFilter>();
    if level.is_err() && !text.contains(['=', ',']) {
        return Err("not error, warn, info, debug, trace or off, nor a filter such as trustspan=debug".to_owned());
    }
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}
