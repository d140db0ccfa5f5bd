//! Logs of long-running subcommands.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::text::printable;

/// kube logs each rejected request, and the whole response of one that it cannot decode, which may be a Secret; the callers here log one
/// sentence instead. A filter that names these targets overrides this one.
const OTHERS: &str = "kube_client::client=off,kube_runtime=error";

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
        let has_colors = io::stderr().is_terminal();
        let logger = tracing_subscriber::fmt()
            .with_writer(move || OneLine { writer: io::stderr(), has_colors })
            .with_ansi(has_colors)
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

/// Writes each event as one line: a text of others in it cannot pass for a further event. The subscriber writes an event at once. With
/// colors it escapes the sequences of a terminal in texts itself.
struct OneLine<W> {
    writer: W,
    has_colors: bool,
}

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(event.strip_suffix(b"\n").unwrap_or(event));
        let line = match self.has_colors {
            true => line.split('\u{1b}').map(printable).collect::<Vec<_>>().join("\u{1b}"),
            false => printable(&line),
        };
        self.writer.write_all((line + "\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(log: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || OneLine { writer: writer.clone(), has_colors: false })
            .with_ansi(false)
            .with_env_filter(EnvFilter::new(format!("{OTHERS},info")))
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_text_of_others_forges_no_line() {
        let forged = "x\n2026-01-01T00:00:00Z  INFO forged\r\u{1b}[2J";
        let log = logged(|| tracing::warn!(name = forged, namespace = %forged, "failed: {forged}"));
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.ends_with('\n') && !log.trim_end_matches('\n').contains(char::is_control), "{log:?}");
    }

    #[test]
    fn a_response_that_kube_cannot_decode_is_not_logged() {
        let log = logged(|| tracing::warn!(target: "kube_client::client", "the body of a Secret"));
        assert_eq!(log, "");
    }
}
