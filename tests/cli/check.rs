//! `trustspan check` in a pipeline: mistyped fields, PEM files, placeholders, and output formats for other programs.

use std::fs;
use std::path::PathBuf;
use std::process;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use serde_json::{Value, json};

use super::{BAD_SECRET, GATEWAY_SECRET, code, run, text, write};

/// A CA and a leaf of it, in PEM, with the leaf's key.
fn certificates() -> (String, String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new([]).expect("a CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.use_authority_key_identifier_extension = true;
    let ca = params.self_signed(&key).expect("a CA").pem();
    let leaf_key = KeyPair::generate().expect("a key");
    let mut leaf = CertificateParams::new(["shop.example.com".to_owned()]).expect("a leaf");
    leaf.distinguished_name.push(rcgen::DnType::CommonName, "shop");
    let leaf = leaf.signed_by(&leaf_key, &Issuer::from_params(&params, &key)).expect("a leaf").pem();
    (ca, leaf, leaf_key.serialize_pem())
}

#[test]
fn a_mistyped_field_is_denied() {
    let mistyped = GATEWAY_SECRET.replace("gw-root}", "gw-root, paussed: true, clints: {}}");
    let output = run(&["check", "-f", "-"], &mistyped);
    assert_eq!(code(&output), 1, "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("spec.paussed  unknown field"), "{said}");
    assert!(said.contains("did you mean paused?") && said.contains("did you mean clients?"), "{said}");
    assert_eq!(code(&run(&["check", "-f", "-"], &GATEWAY_SECRET.replace("GatewaySecret", "GatewaySecrets"))), 1);
    assert_eq!(code(&run(&["check", "-f", "manifests/example", "-f", "manifests/base"], "")), 0, "ours");
}

#[test]
fn pem_files_are_judged_as_ca_bundles() {
    let (ca, leaf, key) = certificates();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().display().to_string();
    write(directory.path(), "ca.pem", &ca);
    write(directory.path(), "server.crt", &leaf);
    write(directory.path(), "server-key.pem", &key);
    let output = run(&["check", "-f", &path], "");
    let said = text(&output.stdout);
    assert_eq!(code(&output), 0, "{said}");
    assert!(said.ends_with("1 object judged: 0 denied, 0 warned; 2 not judged\n"), "{said}");
    assert!(!said.contains("PRIVATE KEY"), "{said}");
    for broken in [format!("{ca}-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"), "prose\n".to_owned()]
    {
        write(directory.path(), "ca.pem", &broken);
        assert_eq!(code(&run(&["check", "-f", &path], "")), 1, "{broken}");
    }
    assert_eq!(code(&run(&["check", "-f", "-"], &ca)), 0);
    assert_eq!(code(&run(&["check", "-f", "-"], &ca.replace("MII", "!!!"))), 1, "by how it begins");
    let rewritten = run(&["rewrite", "-f", &path], "");
    assert_eq!((code(&rewritten), text(&rewritten.stdout)), (0, String::new()), "only check takes them");
}

#[test]
fn nothing_to_judge_fails_where_it_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().display().to_string();
    assert_eq!(code(&run(&["check", "-f", &path], "")), 0);
    let output = run(&["check", "--fail-on-empty", "-f", &path], "");
    assert_eq!(code(&output), 2);
    assert!(text(&output.stderr).starts_with("error: nothing was judged"), "{}", text(&output.stderr));
    assert_eq!(code(&run(&["check", "--fail-on-empty", "-f", "-"], GATEWAY_SECRET)), 0);
    assert_eq!(code(&run(&["check", "--fail-on-empty", "-f", "-"], BAD_SECRET)), 1);
}

#[test]
fn an_object_without_kind_is_reported() {
    let secret = "apiVersion: v1\nmetadata: {name: gateway}\ndata: {tls.crt: eA==}\n";
    for (input, count) in
        [(secret.to_owned(), 1), (format!("kind: List\nitems: [{{metadata: {{}}}}]\n---\n{secret}"), 2)]
    {
        let output = run(&["check", "-f", "-"], &input);
        assert_eq!(code(&output), 0);
        let said = text(&output.stdout);
        assert!(said.contains("not judged: an object without kind"), "{said}");
        assert!(said.ends_with(&format!("0 denied, 0 warned; {count} not judged\n")), "{said}");
    }
}

#[test]
fn encrypted_values_and_templates_are_not_judged() {
    let secret =
        |value: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: gw}}\nstringData:\n  ca.crt: {value}\n");
    for value in ["ENC[AES256_GCM,data:Zm9v,iv:AA==,tag:AA==,type:str]", "'{{ .Values.ca }}'", "'${CA}'"] {
        let output = run(&["check", "-f", "-"], &secret(value));
        let said = text(&output.stdout);
        assert_eq!(code(&output), 0, "{said}");
        assert!(said.contains("not judged: stringData[ca.crt] is "), "{said}");
        assert!(said.ends_with("0 objects judged: 0 denied, 0 warned; 1 not judged\n"), "{said}");
        assert_eq!(code(&run(&["check", "--fail-on-empty", "-f", "-"], &secret(value))), 2);
    }
    assert_eq!(code(&run(&["check", "-f", "-"], &secret("prose"))), 1);
    let template = format!("{{{{- if .Values.gateway }}}}\n{BAD_SECRET}{{{{- end }}}}\n---\n{BAD_SECRET}");
    let output = run(&["check", "-f", "-"], &template);
    assert_eq!(code(&output), 1, "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("\n1 object judged: 1 denied, 0 warned; "), "{}", text(&output.stdout));
}

/// Paths of inputs with every kind of result. Their names are hostile, too.
fn mixed(directory: &tempfile::TempDir) -> [String; 3] {
    let warned = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cas, namespace: plain}\ndata: {ca.crt: prose}\n";
    let plain = "apiVersion: v1\nkind: Namespace\nmetadata: {name: plain}\n";
    let encrypted = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {tls.key: 'ENC[AES256_GCM,data:A]'}\n";
    let all = format!("{GATEWAY_SECRET}---\n{BAD_SECRET}---\n{warned}---\n{encrypted}---\n{plain}---\na: [\n");
    [
        write(directory.path(), "100%, a:b\n<&>.yaml", &all),
        write(directory.path(), "ca.pem", "prose\n"),
        directory.path().join("no/such").display().to_string(),
    ]
}

fn printed(format: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let inputs = mixed(&directory);
    let args: Vec<_> =
        ["check", "--output", format, "-f"].into_iter().chain(inputs.iter().map(String::as_str)).collect();
    let output = run(&args, "");
    assert_eq!(code(&output), 2);
    text(&output.stdout)
}

/// The OASIS schema, which the crate serde-sarif is generated from.
fn sarif_schema() -> Value {
    let cargo = |args: &[&str]| process::Command::new(env!("CARGO")).args(args).output().expect("cargo").stdout;
    let version = text(&cargo(&["--version", "--verbose"]));
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let args = ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", host];
    let metadata: Value = serde_json::from_slice(&cargo(&args)).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let package = packages.iter().find(|package| package["name"] == "serde-sarif").expect("a dev-dependency");
    let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a path"));
    let schema = fs::read(manifest.with_file_name("src").join("schema.json")).expect("its schema");
    let mut schema: Value = serde_json::from_slice(&schema).expect("JSON");
    // The schema's pattern is no valid regular expression of ECMA 262, and trustspan writes no language.
    for definition in ["run", "toolComponent"] {
        schema["definitions"][definition]["properties"]["language"] = json!({});
    }
    schema
}

#[test]
fn sarif_is_valid_by_its_schema() {
    let log: Value = serde_json::from_str(&printed("sarif")).expect("JSON");
    let validator = jsonschema::validator_for(&sarif_schema()).expect("a schema");
    let errors: Vec<_> =
        validator.iter_errors(&log).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert_eq!(errors, [""; 0]);
    assert!(!validator.is_valid(&json!({"version": "2.1.0", "runs": [{}]})), "the schema refuses something");
    let read: serde_sarif::sarif::Sarif = serde_json::from_value(log).expect("a log");
    let run = &read.runs[0];
    let levels: Vec<_> = run.results.iter().flatten().map(|result| json!(result.level)).collect();
    assert_eq!(levels, ["error", "warning", "error"], "{:#?}", run.results);
    let invocation = &run.invocations.as_ref().expect("an invocation")[0];
    assert!(!invocation.execution_successful);
    assert_eq!(invocation.tool_execution_notifications.as_ref().map(Vec::len), Some(3));
}

#[test]
fn junit_is_read_by_a_junit_parser() {
    let read = junit_parser::from_reader(printed("junit").as_bytes()).expect("JUnit XML");
    assert_eq!((read.tests, read.failures, read.errors, read.skipped), (7, 2, 2, 1), "{read:#?}");
    assert_eq!(read.suites.len(), 3);
}

/// A workflow command of GitHub Actions.
struct Command {
    name: String,
    properties: Vec<(String, String)>,
    data: String,
}

impl Command {
    /// Parses a line as the runner of GitHub Actions does. This is a reimplementation: the runner is in no package
    /// registry.
    fn read(line: &str) -> Option<Self> {
        let unescape = |text: &str| {
            let text = text.replace("%0D", "\r").replace("%0A", "\n");
            text.replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
        };
        let (head, data) = line.strip_prefix("::")?.split_once("::")?;
        let (name, properties) = head.split_once(' ')?;
        let properties = properties.split(',').filter_map(|property| property.split_once('='));
        let properties = properties.map(|(name, value)| (name.to_owned(), unescape(value))).collect();
        Some(Self { name: name.to_owned(), properties, data: unescape(data) })
    }
}

#[test]
fn github_annotates_lines_of_files() {
    let said = printed("github");
    let commands: Vec<_> = said.lines().filter_map(Command::read).collect();
    let names: Vec<_> = commands.iter().map(|command| command.name.as_str()).collect();
    assert_eq!(names, ["error", "warning", "notice", "error", "error", "error"], "{said}");
    let Command { properties, data: message, .. } = &commands[0];
    let [(_, file), (_, line), (_, title)] = &properties[..] else { panic!("{properties:?}") };
    assert!(file.ends_with("/100%, a:b\n<&>.yaml"), "{file}");
    assert_eq!((line.as_str(), title.as_str()), ("7", "unreadable"));
    assert!(message.starts_with("Secret default/gw data[ca.crt]: not base64"), "{message}");
    assert_eq!(said.lines().count(), commands.len() + 1, "one line each: {said}");
}

#[test]
fn pre_commit_and_the_action_call_check_as_it_is() {
    let hooks = fs::read_to_string(".pre-commit-hooks.yaml").expect("hooks");
    let args = hooks.lines().find_map(|line| line.trim().strip_prefix("entry: trustspan ")).expect("an entry");
    let args: Vec<_> =
        args.split(' ').chain(["manifests/example/gateway.yaml", "manifests/example/gatewaysecret.yaml"]).collect();
    let output = run(&args, "");
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let action = fs::read_to_string("action.yml").expect("an action");
    let call = action.lines().find_map(|line| line.trim().strip_prefix("trustspan check ")).expect("a call");
    let flags: Vec<_> = call.split(' ').filter(|word| word.starts_with('-')).collect();
    assert_eq!(flags, ["--output", "--fail-on-empty", "-f"]);
    let args: Vec<_> = ["check", "--output", "github", "--fail-on-empty", "-f", "manifests/example"].to_vec();
    assert_eq!(code(&run(&args, "")), 0);
}
