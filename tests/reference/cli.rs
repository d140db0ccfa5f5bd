//! docs/reference/cli.md: what `--help` of each command prints.

use std::path::Path;
use std::process::Command;

const HEAD: &str = "<!-- Generated: TRUSTSPAN_WRITE=1 cargo test --test reference -->
# Commands

What `trustspan COMMAND --help` and `trustspan-node COMMAND --help` print. Durations are written as `30s`, `2m` or `1h30m`.
";

pub(crate) fn markdown() -> String {
    let binaries = [env!("CARGO_BIN_EXE_trustspan"), env!("CARGO_BIN_EXE_trustspan-node")];
    HEAD.to_owned() + &binaries.map(commands).concat()
}

/// The commands of one binary.
fn commands(binary: &str) -> String {
    let program = Path::new(binary).file_name().unwrap().to_str().unwrap();
    let help = |command: &[&str]| help(binary, command);
    let overview = help(&[]);
    let listed = overview.split_once("\nCommands:\n").unwrap().1.lines().take_while(|line| !line.is_empty());
    let names = listed.map(|line| line.split_whitespace().next().unwrap()).filter(|name| *name != "help");
    let mut page = format!("\n```text\n{overview}```\n");
    for name in names {
        page += &format!("\n## {program} {name}\n\n```text\n{}```\n", help(&[name]));
    }
    page
}

fn help(binary: &str, command: &[&str]) -> String {
    let output = Command::new(binary).args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{command:?}");
    // A blank line between paragraphs is indented.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
