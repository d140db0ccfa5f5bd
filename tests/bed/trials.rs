//! Runs the trials of a test binary on one test bed, which is started only when a trial is selected.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use libtest_mimic::{Arguments, Trial};

/// A trial on the bed.
pub(crate) fn trial<B: Send + Sync + 'static>(
    bed: Option<&Arc<B>>,
    name: &str,
    run: impl FnOnce(&B) -> Result<()> + Send + 'static,
) -> Trial {
    let bed = bed.cloned();
    Trial::test(name, move || {
        let bed = bed.ok_or("no test bed")?;
        run(&bed).map_err(|error| format!("{error:#}").into())
    })
}

/// Runs the trials. They are built twice: without a bed to list their names, and with it to run. `after` is called when
/// they have ended; an error of it fails the run.
pub(crate) fn run<B>(
    args: &Arguments,
    start: impl FnOnce() -> Result<B>,
    trials: impl Fn(Option<&Arc<B>>) -> Vec<Trial>,
    after: impl FnOnce(&B) -> Result<()>,
) -> ExitCode {
    // A bed that no trial needs would make `cargo test some_unit_test` slow.
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
