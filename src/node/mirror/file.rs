//! The file on disk: reads it, and carries out a decision.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use super::decision::{self, Cause, Content, Decision, Disk, Memory, Source};
use super::metrics::MirrorMetrics;
use super::source::{Stored, WatchedSource};
use crate::health::CheckResult;
use crate::store::{atomic_file, signers};

/// A mirrored file.
pub(super) struct MirroredPath {
    pub(super) path: PathBuf,
    new_mode: u32,
    bootstrap: Option<PathBuf>,
    /// Without a file every CA of the source is written.
    signers: Option<PathBuf>,
    memory: Memory,
    last_drift: Option<Timestamp>,
    metrics: Arc<MirrorMetrics>,
}

/// What a file holds after a decision was carried out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FileState {
    /// What is on disk.
    pub(super) disk: Disk,
    /// When something else changed or removed the file last, and that was put back.
    pub(super) last_drift: Option<Timestamp>,
    /// Whether the file holds what the source has.
    pub(super) result: FileResult,
}

/// Whether the file holds what the source has.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FileResult {
    Current,
    /// The source was not read yet.
    Pending,
    /// The object or its key does not exist.
    SourceMissing(String),
    SourceUnreadable(CheckResult),
    /// The content of the source would break trust.
    Refused(String),
    /// The file cannot be written.
    NotWritten(CheckResult),
}

impl MirroredPath {
    pub(super) fn new(
        path: PathBuf,
        new_mode: u32,
        bootstrap: Option<PathBuf>,
        signers: Option<PathBuf>,
        metrics: Arc<MirrorMetrics>,
    ) -> Self {
        Self { path, new_mode, bootstrap, signers, memory: Memory::default(), last_drift: None, metrics }
    }

    /// Compares the file with the source, and writes it if necessary.
    pub(super) fn reconcile(&mut self, watched: &WatchedSource, now: Timestamp) -> FileState {
        let disk = read_disk(&self.path, now);
        let source = match (&watched.failure, &watched.stored) {
            (Some(failure), _) => Source::Unreadable(failure.clone()),
            (None, Stored::Pending) => Source::Pending,
            (None, Stored::Missing(which)) => Source::Missing(which.clone()),
            (None, Stored::Holds(bytes)) => {
                decision::judge(bytes, &disk, &signers::read(self.signers.as_deref(), now), now)
            }
        };
        // Read each time, and only if it may be needed: it can appear later.
        let bootstrap = match disk {
            Disk::Holds(_) => None,
            Disk::Absent | Disk::Unusable(_) => self.bootstrap(now),
        };
        let decision = decision::decide(&disk, &source, &self.memory, bootstrap.as_ref());
        let (disk, written) = match decision {
            Decision::Keep => (disk, Ok(())),
            Decision::Write(content, cause) => match self.write(&content, cause, &disk) {
                Ok(()) => {
                    if cause == Cause::Drift {
                        self.last_drift = Some(now);
                    }
                    (Disk::Holds(content), Ok(()))
                }
                Err(failure) => (read_disk(&self.path, now), Err(failure)),
            },
        };
        self.remember(&disk, &source);
        let expiry = if let Disk::Holds(content) = &disk { content.first_expiry(now) } else { None };
        self.metrics.first_expiry.set(expiry.map_or(0, Timestamp::as_second));
        let result = match (written, source) {
            (Err(failure), _) => FileResult::NotWritten(failure),
            (Ok(()), Source::Holds(_)) => FileResult::Current,
            (Ok(()), Source::Pending) => FileResult::Pending,
            (Ok(()), Source::Refused(why)) => FileResult::Refused(why),
            (Ok(()), Source::Missing(which)) => FileResult::SourceMissing(which),
            (Ok(()), Source::Unreadable(failure)) => FileResult::SourceUnreadable(failure),
        };
        FileState { disk, last_drift: self.last_drift, result }
    }

    fn remember(&mut self, disk: &Disk, source: &Source) {
        if let Source::Holds(content) = source {
            self.memory.accepted = Some(content.clone());
        }
        if let Disk::Holds(content) = disk {
            self.memory.last = Some(content.clone());
        }
        self.memory.is_current = self.memory.accepted.is_some() && self.memory.accepted == self.memory.last;
    }

    fn bootstrap(&self, now: Timestamp) -> Option<Content> {
        let path = self.bootstrap.as_ref()?;
        match read_disk(path, now) {
            Disk::Holds(content) => Some(content),
            Disk::Absent => None,
            Disk::Unusable(why) => {
                tracing::warn!("bootstrap file {} is not used: {why}", path.display());
                None
            }
        }
    }

    fn write(&self, content: &Content, cause: Cause, before: &Disk) -> Result<(), CheckResult> {
        let path = self.path.display();
        match cause {
            Cause::Drift => {
                let what = match before {
                    Disk::Absent => "was removed".to_owned(),
                    Disk::Holds(_) => "was changed".to_owned(),
                    Disk::Unusable(why) => format!("was damaged ({why})"),
                };
                tracing::warn!(file = %path, "file {what} by something else, writing it again");
            }
            Cause::Bootstrap => tracing::info!(file = %path, "writing the bootstrap content"),
            Cause::Update => tracing::info!(file = %path, hash = content.hash(), "writing the source's content"),
        }
        match atomic_file::replace(&self.path, content.pem().as_bytes(), self.new_mode) {
            Ok(()) => {
                self.metrics.wrote(cause);
                Ok(())
            }
            Err(error) => {
                self.metrics.failures.inc();
                Err(write_failure(&self.path, &error))
            }
        }
    }
}

/// A full disk may have space again; a directory that is read-only needs a person.
fn write_failure(path: &Path, error: &io::Error) -> CheckResult {
    let text = format!("cannot write {}, its content stays: {error}", path.display());
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::Interrupted | ErrorKind::NotFound => {
            CheckResult::Unreachable(text)
        }
        _ => CheckResult::Misconfigured(text),
    }
}

fn read_disk(path: &Path, now: Timestamp) -> Disk {
    match atomic_file::read(path) {
        Ok(bytes) => decision::read(&bytes, now),
        Err(error) if error.kind() == ErrorKind::NotFound => Disk::Absent,
        Err(error) => Disk::Unusable(error.to_string()),
    }
}

impl FileResult {
    /// The result of the file's health check.
    pub(super) fn health(&self) -> CheckResult {
        match self {
            Self::Current => CheckResult::Ok,
            Self::Pending => CheckResult::Unreachable("the API server has not answered yet".to_owned()),
            Self::SourceMissing(which) => CheckResult::Misconfigured(format!("{which}; the file stays as it is")),
            Self::Refused(why) => {
                CheckResult::Misconfigured(format!("content refused, the file stays as it is: {why}"))
            }
            Self::SourceUnreadable(failure) | Self::NotWritten(failure) => failure.clone(),
        }
    }
}
