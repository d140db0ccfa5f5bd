//! The pages of docs/reference and the generated parts of the chart are current, and the pages for operators complete.
//!
//! `TRUSTSPAN_WRITE=1 cargo test --test reference` writes the generated ones.

#![allow(clippy::unwrap_used)]

mod api;
mod chart;
mod cli;

use std::path::Path;

fn expect_current(page: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os("TRUSTSPAN_WRITE").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let advice = format!("{page} is stale: TRUSTSPAN_WRITE=1 cargo test --test reference");
    let different = committed.lines().zip(text.lines()).find(|(committed, text)| committed != text);
    assert_eq!(different, None, "{advice}");
    assert!(committed == text, "{advice}");
}

#[test]
fn the_api_page_is_current() {
    expect_current("docs/reference/api.md", &api::markdown());
}

#[test]
fn the_cli_page_is_current() {
    expect_current("docs/reference/cli.md", &cli::markdown());
}

#[test]
fn the_chart_has_what_the_manifests_have() {
    let read = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    // A template is made of it.
    expect_current("manifests/base/crd.yaml", &api::definitions());
    let mut manifests = String::new();
    for (name, manifest, condition) in chart::TEMPLATES {
        let text = read(&format!("manifests/{manifest}.yaml"));
        expect_current(
            &format!("charts/trustspan/templates/{name}.yaml"),
            &chart::template(manifest, &text, condition),
        );
        manifests += &text;
    }
    for (lines, _) in chart::REPLACED {
        assert!(manifests.contains(&format!("{lines}\n")), "no manifest has the lines that a value replaces:\n{lines}");
    }
    expect_current("charts/trustspan/files/dashboard.json", &read("manifests/monitoring/dashboard.json"));
    let profile = chart::profile(&read("src/certgen/trustspan-webhook.yaml"));
    expect_current("charts/trustspan/files/serving-certificate.yaml", &profile);
    let schema = "charts/trustspan/values.schema.json";
    expect_current(schema, &chart::values_schema(&read(schema)));
}

#[test]
fn the_page_of_the_charts_values_is_current() {
    let yaml = include_str!("../../charts/trustspan/values.yaml");
    let page = chart::values_page(yaml);
    expect_current("docs/reference/values.md", &page);
    let undescribed = chart::undescribed(&page, &serde_saphyr::from_str(yaml).unwrap(), "");
    assert!(undescribed.is_empty(), "charts/trustspan/values.yaml has no comment on {undescribed:?}");
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = include_str!("../../charts/trustspan/Chart.yaml");
    for field in ["version", "appVersion"] {
        assert!(chart.contains(&format!("\n{field}: {}\n", env!("CARGO_PKG_VERSION"))), "Chart.yaml: {field}");
    }
}

#[test]
fn the_dependencies_page_has_every_dependency() {
    let page = include_str!("../../docs/reference/dependencies.md");
    let manifest = include_str!("../../Cargo.toml");
    let sections = manifest.split("\n[").filter_map(|section| section.split_once("dependencies]\n"));
    let lines = sections.flat_map(|(_, section)| section.lines()).filter(|line| !line.starts_with('#'));
    let names: Vec<_> = lines.filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    assert!(names.contains(&"serde") && names.contains(&"proptest"), "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/reference/dependencies.md lacks {missing:?}");
}

/// Each step that can be waited for has a section, and each condition a row.
#[test]
fn troubleshooting_has_every_step_and_condition() {
    let page = include_str!("../../docs/troubleshooting.md");
    let monitoring = include_str!("../../docs/operations.md");
    let api = api::markdown();
    let steps =
        api.lines().find(|line| line.starts_with("| `status.waits[].step`")).unwrap().split('|').nth(2).unwrap();
    let steps: Vec<_> = steps.split('`').skip(1).step_by(2).collect();
    assert!(steps.len() > 5, "{steps:?}");
    for step in steps {
        assert!(page.contains(&format!("\n### {step}\n")), "docs/troubleshooting.md lacks {step}");
    }
    let (_, conditions) =
        monitoring.split_once("| condition | `True` | `False` or `Unknown` |\n|---|---|---|\n").unwrap();
    let conditions = conditions.lines().map_while(|line| line.strip_prefix("| `")?.split_once('`'));
    let conditions: Vec<_> = conditions.map(|(condition, _)| condition).collect();
    assert!(conditions.len() > 10, "{conditions:?}");
    for condition in conditions {
        assert!(page.contains(&format!("\n| `{condition}` | ")), "docs/troubleshooting.md lacks {condition}");
    }
}

#[test]
fn the_index_of_decisions_has_every_title() {
    let index = include_str!("../../docs/adr/README.md");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/adr");
    for page in std::fs::read_dir(dir).unwrap().map(|page| page.unwrap().path()) {
        let name = page.file_name().unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        let Some((number, title)) = text.lines().next().unwrap().strip_prefix("# ").unwrap().split_once(": ") else {
            assert_eq!(name, "README.md", "the title is a number, a colon and the decision");
            continue;
        };
        let row = format!("| [{number}]({name}) | {title} |\n");
        assert!(name.starts_with(number) && index.contains(&row), "docs/adr/README.md lacks {row}");
    }
}
