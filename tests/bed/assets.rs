//! Paths of the programs that the set-up scripts in this directory install. Only the scripts know these paths; they
//! return at once when everything is in the cache.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow, ensure};

/// Environment variable with the path of a trustspan binary to run instead of the one under test.
const CONTROL: &str = "TRUSTSPAN_CONTROL";

/// The trustspan binary that the test bed runs.
pub(super) fn trustspan() -> PathBuf {
    env::var_os(CONTROL).map_or_else(|| env!("CARGO_BIN_EXE_trustspan").into(), PathBuf::from)
}

/// The trustspan-node binary, next to the trustspan binary.
pub(crate) fn trustspan_node() -> PathBuf {
    trustspan().with_file_name("trustspan-node")
}

/// Whether the test bed runs another trustspan binary than the one under test.
pub(crate) fn is_control() -> bool {
    env::var_os(CONTROL).is_some()
}

/// Runs a script, and returns the values of the variables that its output exports.
pub(crate) fn exported<const N: usize>(script: &str, args: &[&str], variables: [&str; N]) -> Result<[String; N]> {
    // bash evaluates the script's `export` lines, so that its quoting need not be parsed here.
    let shell = r#"
        set -e
        count=$1; shift
        names=("${@:1:count}"); shift "$count"
        printed=$("$@"); eval "$printed"
        for name in "${names[@]}"; do printf '%s\n' "${!name}"; done
    "#;
    let output = Command::new("bash")
        .args(["-c", shell, "bash", &N.to_string()])
        .args(variables)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bed").join(script))
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting bash")?;
    ensure!(output.status.success(), "tests/bed/{script}: {}", output.status);
    let printed = String::from_utf8(output.stdout)?;
    let values: Vec<_> = printed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    values.try_into().map_err(|seen| anyhow!("tests/bed/{script}: expected {variables:?}, saw {seen:?}"))
}
