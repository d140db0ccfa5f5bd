//! docs/reference/cli.md: what `--help` of each command prints.

use std::process::Command;

const HEAD: &str = "<!-- Generated: TRUSTSPAN_WRITE=1 cargo test --test reference -->
# Commands

What `trustspan COMMAND --help` prints. Durations are written as `30s`, `2m` or `1h30m`.
";

pub(crate) fn markdown() -> String {
    let overview = help(&[]);
    let listed = overview.split_once("\nCommands:\n").unwrap().1.lines().take_while(|line| !line.is_empty());
    let names = listed.map(|line| line.split_whitespace().next().unwrap()).filter(|name| *name != "help");
    let mut page = format!("{HEAD}\n```text\n{overview}```\n");
    for name in names {
        page += &format!("\n## trustspan {name}\n\n```text\n{}```\n", help(&[name]));
    }
    page
}

fn help(command: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_trustspan")).args(command).arg("--help").env_clear().output().unwrap();
    assert!(output.status.success(), "{command:?}");
    // A blank line between paragraphs is indented.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
