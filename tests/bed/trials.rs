//! How a test binary runs its trials: on one bed, started when a trial is wanted.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};

/// Runs the trials, which are made without a bed to be listed, and then with it to be run. `after` is asked once they have
/// ended; its error fails the run, too.
pub(crate) fn run<B>(
    args: &Arguments,
    start: impl FnOnce() -> Result<B>,
    trials: impl Fn(Option<&Arc<B>>) -> Vec<Trial>,
    after: impl FnOnce(&B) -> Result<()>,
) -> ExitCode {
    // Starting a bed for nothing would make `cargo test some_unit_test` slow.
    let wanted = trials(None).iter().any(|trial| !args.is_filtered_out(trial));
    if args.list || !wanted {
        return libtest_mimic::run(args, trials(None)).exit_code();
    }
    // A test bed that does not start is a failure. Skipping the tests would pass as success.
    let bed = match start() {
        Ok(bed) => Arc::new(bed),
        Err(error) => {
            eprintln!("the test bed does not start: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let conclusion = libtest_mimic::run(args, trials(Some(&bed)));
    if let Err(error) = after(&bed) {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    drop(bed);
    conclusion.exit_code()
}
