//! The generated pages of docs/reference are current.
//!
//! `TRUSTSPAN_WRITE=1 cargo test --test reference` writes them.

#![allow(clippy::unwrap_used)]

mod api;
mod cli;

use std::path::Path;

fn expect_current(page: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(page);
    if std::env::var_os("TRUSTSPAN_WRITE").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let advice = format!("docs/reference/{page} is stale: TRUSTSPAN_WRITE=1 cargo test --test reference");
    let different = committed.lines().zip(text.lines()).find(|(committed, text)| committed != text);
    assert_eq!(different, None, "{advice}");
    assert!(committed == text, "{advice}");
}

#[test]
fn the_api_page_is_current() {
    expect_current("api.md", &api::markdown());
}

#[test]
fn the_cli_page_is_current() {
    expect_current("cli.md", &cli::markdown());
}
