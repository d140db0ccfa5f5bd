//! Logs of long-running subcommands.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// kube logs each rejected request, and its watches log the whole response; the callers here log one sentence instead.
/// A filter that names these targets overrides this one.
const OTHERS: &str = "kube_client::client::builder=off,kube_runtime=error";

/// Log settings.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Log format, on stderr.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, help_heading = "Logging")]
    log_format: LogFormat,

    /// Log level (error, warn, info, debug or trace), or a tracing filter such as "info,trustspan=debug".
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = filter, help_heading = "Logging")]
    log_level: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

impl LogArgs {
    /// Installs the logger.
    pub(crate) fn start(&self) {
        let logger = tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .with_env_filter(EnvFilter::new(format!("{OTHERS},{}", self.log_level)));
        // Fails only when a logger is already installed.
        let _ = match self.log_format {
            LogFormat::Text => logger.with_target(false).try_init(),
            LogFormat::Json => logger.json().flatten_event(true).try_init(),
        };
        // The default hook prints the message of the panic, which may quote an object.
        std::panic::set_hook(Box::new(|panic| {
            let location = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!("bug in trustspan at {location}: please report it");
        }));
    }
}

fn filter(text: &str) -> Result<String, String> {
    // A single word that is not a level would be read as a target, and disable everything else.
    let level = text.parse::<tracing::level_filters::LevelFilter>();
    if level.is_err() && !text.contains(['=', ',']) {
        return Err("expected error, warn, info, debug, trace or off, or a filter such as trustspan=debug".to_owned());
    }
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}
