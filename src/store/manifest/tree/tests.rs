use super::*;
use serde_json::json;

fn value(text: &str) -> Value {
    compose(text).unwrap_or_else(|e| panic!("{text:?}: {}: {}", e.line, e.found)).map_or(Value::Null, |tree| tree.value)
}

fn error(text: &str) -> (usize, String) {
    compose(text).map(drop).map_err(|e| (e.line, e.found)).expect_err("an error")
}

#[test]
fn composes_values() {
    assert_eq!(
        value("a: &x {k: [1, yes, ~]}\nb: *x\n'c': \"\\u00e9\"\nd: |\n  l\n1: !!str 2\n"),
        json!({
            "a": {"k": [1, true, null]}, "b": {"k": [1, true, null]}, "c": "é", "d": "l\n", "1": "2",
        })
    );
    assert_eq!(value("{\"s\": \"\\ud83d\\ude00\\/\",\t\"n\": -1.5E3}"), json!({"s": "😀/", "n": -1500.0}));
    assert_eq!(value("a: &x {k: 1, l: 2}\nb:\n  <<: *x\n  l: 3\n")["b"], json!({"k": 1, "l": 3}));
    assert_eq!(value("b:\n  <<: [{k: 1}, {k: 2, m: 3}]\n")["b"], json!({"k": 1, "m": 3}));
}

#[test]
fn empty_documents_have_no_value() {
    for text in ["", "\n", "...\n", "---\r\n\r\n...\r\n", "# c\n", "---\n", "--- # c\n...\n", "%YAML 1.2\n---\n"] {
        assert!(compose(text).unwrap_or_else(|e| panic!("{text:?}: {}", e.found)).is_none(), "{text:?}");
    }
    assert_eq!(value("--- ~\n"), Value::Null);
}

#[test]
fn errors_name_line_and_cause() {
    assert_eq!(error("a: 1\nb: 2\na: 3\n"), (3, "a second key \"a\" in the same map".to_owned()));
    assert_eq!(error("a:\n- {b: .inf}\n").0, 2);
    assert_eq!(error("a: &x [*x]\n"), (1, "an alias inside the node that it refers to".to_owned()));
    assert_eq!(error("{\"a\": 1} {\"b\": 2}").0, 1);
    assert_eq!(error("? [a]\n: b\n").1, "a key that is not a scalar; expected a name");
    assert!(!error("a: [1\nb: 2").1.is_empty());
    let no_sequence = (1, "a List whose items are not a sequence".to_owned());
    assert_eq!(error("kind: List\napiVersion: v1\nitems: {a: {kind: Secret}}\n"), no_sequence);
    assert_eq!(error("{items: 1, kind: SecretList, apiVersion: v1}"), no_sequence);
    assert_eq!(value("kind: List\napiVersion: v1\nitems:\n")["items"], Value::Null);
    assert_eq!(value("kind: AllowList\napiVersion: x/v1\nitems: {}\n")["items"], json!({}));
}

#[test]
fn errors_shorten_what_could_be_a_private_key() {
    let key = "MC4CAQAwBQYDK2VwBCIEIPublic";
    assert_eq!(error(&format!("{key}: 1\n{key}: 2\n")).1, "a second key \"MC4CAQAwBQYDK2VwBCI…\" in the same map");
    assert_eq!(error(&format!("a: !!int {key}\n")).1, "\"MC4CAQAwBQYDK2VwBCI…\" under the tag !!int");
}

#[test]
fn keys_and_values_are_limited_by_the_size_of_the_text() {
    let list = |item: &str, count| format!("a: [{}]", vec![item; count].join(","));
    assert!(compose(&list("1", 20_000)).is_ok());
    assert!(compose(&list("1234567", 50_000)).is_ok());
    assert!(error(&list("1", 40_000)).1.contains("more keys and values than one in 6 bytes"));
}

#[test]
fn keys_and_values_of_each_object_are_limited() {
    let object = |entries| (0..entries).map(|n| format!("key-{n}: value,")).collect::<String>();
    let list = |kind: &str, objects: &[usize]| {
        let items = objects.iter().map(|entries| format!("{{{}}},", object(*entries))).collect::<String>();
        [format!("{{items: [{items}], kind: {kind}}}"), format!("{{kind: {kind}, items: [{items}]}}")]
    };
    let message = "more than 60000 keys and values in one object; split it";
    assert!(compose(&format!("{{{}}}", object(29_999))).is_ok());
    assert_eq!(error(&format!("{{{}}}", object(30_000))).1, message);
    for two in list("SecretList", &[20_000, 20_000]) {
        assert!(compose(&two).is_ok());
    }
    for text in list("SecretList", &[1, 30_000]).into_iter().chain(list("Secret", &[20_000, 20_000])) {
        assert_eq!(error(&text).1, message);
    }
}

#[test]
fn depth_and_aliases_are_limited() {
    assert!(compose(&format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))).is_ok());
    assert_eq!(error(&"[".repeat(10_000)).0, 1);
    assert_eq!(error(&"{\"a\":".repeat(10_000)).0, 1);
    assert_eq!(error(&"- ".repeat(10_000)).0, 1);
    let mut bomb = "a0: &a0 [x]\n".to_owned();
    for i in 1..20 {
        let alias = format!("*a{},", i - 1).repeat(10);
        bomb.push_str(&format!("a{i}: &a{i} [{alias}]\n"));
    }
    assert!(error(&bomb).1.contains("aliases"), "{:?}", error(&bomb));
    let mut deep = "a0: &a0 [x]\n".to_owned();
    for i in 1..200 {
        deep.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1));
    }
    assert!(error(&deep).1.contains("nested deeper"), "{:?}", error(&deep));
}
