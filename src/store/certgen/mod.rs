//! Carries out the steps of [`crate::certgen`] in a cluster: reads and writes the objects of a profile, and generates keys.

mod keys;
mod objects;

use jiff::Timestamp;

use crate::certgen::{Blocked, Change, Next, Objects, Options, Profile, hmac_secret, next, pending_secret};

pub use keys::{KeyGenerationError, generate};
pub use objects::{RequestError, Written, api, read, write};

/// The next step of a run, with the keys that it needs. Has no `Debug`, since it may hold private keys.
pub enum CertgenStep {
    /// Make a change.
    Write {
        /// What the change does, for the log.
        what: String,
        /// The change.
        change: Change,
    },
    /// Compute the next step again at a time, or, without one, when a rollout may have progressed.
    Wait {
        /// The time.
        until: Option<Timestamp>,
        /// What is waited for.
        why: String,
    },
    /// There is nothing to do.
    Done(String),
}

/// Why there is no next step.
#[derive(Debug, thiserror::Error)]
pub enum CertgenError {
    /// A person has to act first.
    #[error(transparent)]
    Blocked(#[from] Blocked),
    /// No key or certificate can be generated.
    #[error(transparent)]
    Keys(#[from] KeyGenerationError),
}

/// The next step of a run.
///
/// # Errors
/// When a person has to act first, or no key can be generated.
pub fn next_step(
    profile: &Profile,
    objects: &Objects,
    options: Options,
    now: Timestamp,
) -> Result<CertgenStep, CertgenError> {
    Ok(match next(profile, objects, options, now)? {
        Next::Done(what) => CertgenStep::Done(what),
        Next::Wait { until, why } => CertgenStep::Wait { until, why },
        Next::Write { what, change } => CertgenStep::Write { what, change },
        Next::GenerateHmac(hmac) => {
            let change = hmac_secret(profile, hmac, &keys::random(hmac.bytes)?);
            CertgenStep::Write { what: format!("create Secret {}", hmac.secret_name), change }
        }
        Next::Begin(begin) => {
            let generated = keys::generate(profile, now)?;
            let change = pending_secret(profile, begin.kind, &begin.previous, &generated);
            let what = format!("create Secret {} with a new CA and its certificates", change.target.name);
            CertgenStep::Write { what, change }
        }
    })
}
