//! Manifests, read in the way of `check` and `rewrite`.

use std::fs;

use super::{SIZE, certificates::texts, conclude, fill, trial};
use crate::manifest::{chunks, judge, judge_file, rewrite};

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn large_manifests() {
    let inputs = inputs();
    let cut = inputs.iter().map(|(name, text)| trial(name, || drop(chunks(text.as_bytes()))));
    let checked = documents(&inputs).map(|(name, text)| trial(name, || judge(&chunks(text.as_bytes()))));
    conclude("manifests checked", checked.collect());
    conclude("streams cut", cut.collect());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn large_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("manifests.yaml");
    let checked = |name: &str, text: &str| {
        fs::write(&file, text).expect("a file");
        trial(name, || judge_file(&file))
    };
    // Each document of a stream and each item of a List has a separate result. The time for the whole is printed, but
    // not limited.
    let (documents, streams): (Vec<_>, Vec<_>) =
        inputs().into_iter().partition(|(_, text)| chunks(text.as_bytes()).len() == 1);
    for (name, text) in streams.iter().chain(&lists()) {
        checked(&format!("{name}, all of them"), text);
    }
    // The limit is for the content of a Secret, which a YAML block indents, so the document is longer.
    let whole = documents.iter().filter(|(_, text)| text.len() < SIZE + SIZE / 4);
    conclude("files checked", whole.map(|(name, text)| checked(name, text)).collect());
}

#[test]
#[cfg_attr(debug_assertions, ignore = "measures a release build")]
fn large_manifests_rewritten() {
    let inputs = inputs();
    let rewritten =
        documents(&inputs).map(|(name, text)| trial(name, || chunks(text.as_bytes()).iter().for_each(rewrite)));
    conclude("manifests rewritten", rewritten.collect());
}

/// The longest document of each input. Each reader splits the input again, since a chunk caches its parsed value.
fn documents(inputs: &[Input]) -> impl Iterator<Item = (&str, String)> {
    let longest = |text: &str| chunks(text.as_bytes()).into_iter().map(|chunk| chunk.text).max_by_key(String::len);
    inputs.iter().filter_map(move |(name, text)| Some((name.as_str(), longest(text)?)))
}

/// A name and a text.
type Input = (String, String);

/// Lists, and objects that resemble a List.
fn lists() -> [Input; 5] {
    let list = |kind: &str, item| format!("kind: {kind}\napiVersion: v1\nitems:\n{}", fill(item));
    [
        ("items", list("List", "- {kind: Secret, apiVersion: v1}\n")),
        ("typed items", list("SecretList", "- {}\n")),
        ("typed items of a field", list("SecretList", "- {a: b}\n")),
        ("typed items of a name", list("SecretList", "- metadata: {name: gateway-root}\n")),
        (
            "items of what proves to be no List",
            format!("items:\n{}kind: Secret\n", fill("- metadata: {name: gateway-root}\n")),
        ),
    ]
    .map(|(name, text)| (name.to_owned(), text))
}

fn inputs() -> Vec<Input> {
    let head = "apiVersion: v1\nkind: Secret\nmetadata: {name: public-gateway, namespace: istio-system}\n";
    let gateway =
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nspec:\n  selector: {istio: ingressgateway}\n  servers:\n";
    let server = r#"{"tls":{"credentialName":"gateway-root"}},"#;
    let json =
        r#"{"apiVersion":"networking.istio.io/v1","kind":"Gateway","spec":{"selector":{"istio":"ingressgateway"}"#;
    let annotations = r#"{"kind":"Secret","metadata":{"annotations":{"#;
    let laughs = |text: String, n: usize| format!("{text}a{n}: &a{n} [{}]\n", format!("*a{}, ", n - 1).repeat(9));
    let keys = |line: fn(usize) -> String, bytes: usize| (0..SIZE / bytes).map(line).collect::<String>();
    // As many keys and values as are read of an object.
    let most = |unit: fn(usize) -> String, of_each: usize| (0..59_900 / of_each).map(unit).collect::<String>();
    let mut inputs: Vec<Input> = [
        ("flow lists", fill("[")),
        ("flow maps", fill("{a: ")),
        ("block lists", fill("- ")),
        ("block maps", (0..SIZE.isqrt()).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
        ("keys", format!("{head}data:\n{}", keys(|n| format!("  k{n}: v\n"), 12))),
        ("keys in flow", format!("{head}data: {{{}}}", keys(|n| format!("k{n}: v, "), 12))),
        ("annotations of JSON", format!(r#"{annotations}{}"k":"v"}}}}}}"#, keys(|n| format!(r#""k{n}":"v","#), 14))),
        ("documents", fill("---\n")),
        ("documents with a kind", fill("kind: Secret\n---\n")),
        ("JSON documents", fill(r#"{"kind":"Secret"}"#)),
        ("servers", format!("{gateway}{}", fill("  - tls: {credentialName: gateway-root}\n"))),
        ("servers as JSON", format!(r#"{json},"servers":[{}{{}}]}}}}"#, fill(server))),
        (
            "one server of many hosts and names",
            format!(
                "{gateway}  - hosts:\n{}    tls:\n      credentialNames:\n{}",
                keys(|n| format!("    - h{n}.example\n"), 36),
                keys(|_| "      - gateway-root\n".to_owned(), 38),
            ),
        ),
        ("items of no List", format!("kind: Secret\nitems:\n{}", fill("- metadata: {name: gateway-root}\n"))),
        ("keys, as many as are read", format!("{head}data:\n{}", most(|n| format!("  key-{n}: value\n"), 2))),
        ("keys in flow, as many as are read", format!("{head}data: {{{}}}", most(|n| format!("key-{n}: value, "), 2))),
        (
            "annotations of JSON, as many as are read",
            format!(r#"{annotations}{}"k":"v"}}}}}}"#, most(|n| format!(r#""key-{n}":"value","#), 2)),
        ),
        (
            "servers, as many as are read",
            format!("{gateway}{}", most(|_| "  - tls: {credentialName: gateway-root}\n".to_owned(), 5)),
        ),
        (
            "servers as JSON, as many as are read",
            format!(
                r#"{json},"servers":[{}{{}}]}}}}"#,
                most(|_| r#"{"tls":{"credentialName":"gateway-root"}},"#.to_owned(), 5)
            ),
        ),
        ("anchors, as many as are read", format!("{head}data:\n{}", most(|n| format!("  key-{n}: &a{n} value\n"), 2))),
        (
            "merges, as many as are read",
            format!("a: &a {{b: c}}\nkind: Secret\nd:\n{}", most(|_| "- <<: *a\n".to_owned(), 3)),
        ),
        ("lists in lists", fill("{kind: List, items: [")),
        ("short values", format!("{head}data: [{}]", fill("1,"))),
        ("values", format!("{head}data: [{}]", fill("1234567,"))),
        ("comments", fill("# comment\n")),
        (
            "comments behind keys",
            format!("{gateway}{}", fill("  - tls: {credentialName: gateway-root} # why\n  # m\n")),
        ),
        ("anchors", format!("{head}data:\n{}", keys(|n| format!("  k{n}: &a{n} v\n"), 18))),
        ("aliases", format!("a: &a {{b: c}}\nkind: Secret\nd:\n{}", fill("- *a\n"))),
        ("merges", format!("a: &a {{b: c}}\nkind: Secret\nd:\n{}", fill("- <<: *a\n"))),
        ("laughs", (1..9).fold("kind: Secret\na0: &a0 [x]\n".to_owned(), laughs)),
        ("a literal", format!("{head}data:\n  k: |\n{}", fill("    line\n"))),
        ("a folded text", format!("{head}data:\n  k: >\n{}", fill("    line\n\n"))),
        ("a plain text of many lines", format!("{head}data:\n  k:\n{}", fill("    line\n"))),
        ("a quoted text", format!("{head}data:\n  k: \"{}\"\n", fill("\\u00e9"))),
        ("a text in quotes that do not end", fill("\"\n")),
        ("blanks", fill(" ")),
        ("tabs", fill("\t")),
        ("line ends", fill("\r\n")),
        ("directives", fill("%YAML 1.2\n")),
        ("question marks", fill("? ")),
        ("colons", fill(": ")),
        ("one line", fill("a")),
        ("tags", fill("!!str ")),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .into();
    for (name, text) in texts() {
        let block: String = text.split('\n').flat_map(|line| ["    ", line, "\n"]).collect();
        inputs.push((format!("a Secret with {name}"), format!("{head}stringData:\n  ca.crt: |\n{block}")));
    }
    inputs
}
