//! The offline subcommands, run as users run them.

#[path = "cli/certgen.rs"]
mod certgen;
#[path = "cli/check.rs"]
mod check;
#[path = "cli/init.rs"]
mod init;
#[path = "cli/uninstall.rs"]
mod uninstall;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const GATEWAY_SECRET: &str = "\
apiVersion: trustspan.dev/v1alpha1
kind: GatewaySecret
metadata: {name: gw, namespace: istio-system}
spec: {sourceSecretName: gw-root}
";

const BAD_SECRET: &str = "\
# a comment
apiVersion: v1
kind: Secret
metadata:
  name: gw
data:
  ca.crt: '!'
";

fn trustspan(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trustspan"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("CLICOLOR_FORCE");
    command
}

#[test]
fn check_applies_severities_of_rules() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: gw}\nstringData: {ca.crt: prose}\n";
    assert_eq!(code(&run(&["check", "-f", "-"], secret)), 1);
    let warned = run(&["check", "--severity", "empty=off", "--severity", "empty=warn", "-f", "-"], secret);
    assert_eq!(code(&warned), 0);
    assert!(text(&warned.stdout).contains("1 object judged: 0 denied, 1 warned"), "{}", text(&warned.stdout));
    for (flag, why) in [("expird=off", "trustspan rules"), ("unreadable=off", "fixed"), ("empty=Off", "not a severity")]
    {
        let refused = run(&["check", "--severity", flag, "-f", "-"], secret);
        assert_eq!(code(&refused), 2, "{flag}");
        assert!(text(&refused.stderr).contains(why), "{}", text(&refused.stderr));
    }
}

#[test]
fn check_judges_ca_bundles_in_other_objects() {
    let prose = "cHJvc2U=";
    let kubeconfig = format!(
        "clusters: [{{name: prod, cluster: {{certificate-authority-data: {prose}}}}}]\n\
         users: [{{name: admin, user: {{client-key-data: {prose}}}}}]\n"
    );
    let input = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a"},
         "spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": prose}}}}},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "b"},
         "spec": {"caBundle": prose}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
         "metadata": {"name": "c"}, "webhooks": [{"name": "x", "clientConfig": {"caBundle": prose}}]},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d"}, "data": {"ca.crt": "prose"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "e"}, "stringData": {"value": kubeconfig}},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "f"}, "spec": {}},
    ]});
    let output = run(&["check", "--output", "json", "-f", "-"], &input.to_string());
    assert_eq!(code(&output), 1, "{}", text(&output.stderr));
    let judged: Vec<Value> = serde_json::from_slice(&output.stdout).expect("an array");
    let fields = |object: &Value| -> Vec<String> {
        let findings = object["findings"].as_array().expect("findings");
        let summaries = findings.iter().map(|f| format!("{} {}", f["rule"], f["field"]).replace('"', ""));
        summaries.collect()
    };
    assert_eq!(
        judged.iter().map(fields).collect::<Vec<_>>(),
        [
            vec!["empty spec.conversion.webhook.clientConfig.caBundle"],
            vec!["empty spec.caBundle"],
            vec!["empty webhooks[x].clientConfig.caBundle"],
            vec!["empty data[ca.crt]"],
            vec![
                "empty data[value].clusters[prod].certificate-authority-data",
                "pair-incomplete data[value].users[admin].client-key-data",
            ],
            vec![],
        ]
    );
}

#[test]
fn check_breaks_glass_on_request() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: gw, annotations: {breakglass.trustspan.dev/empty: ticket 7}}\n\
                  stringData: {ca.crt: prose}\n";
    let denied = run(&["check", "-f", "-"], secret);
    assert_eq!(code(&denied), 1);
    assert!(text(&denied.stdout).contains("see --break-glass"), "{}", text(&denied.stdout));
    let warned = run(&["check", "--break-glass", "-f", "-"], secret);
    assert_eq!(code(&warned), 0);
    assert!(text(&warned.stdout).contains("break-glass (ticket 7): "), "{}", text(&warned.stdout));
}

#[test]
fn observe_applies_severities_of_rules() {
    let input = format!(
        "{GATEWAY_SECRET}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: gw, namespace: istio-system}}\n\
         stringData: {{ca.crt: prose}}\n"
    );
    let observed = |args: &[&str]| text(&run(args, &input).stdout);
    assert!(observed(&["observe", "-f", "-"]).contains("reason: Unsound"));
    assert!(observed(&["observe", "--severity", "empty=off", "-f", "-"]).contains("reason: NoTrustAnchor"));
}

#[test]
fn check_depends_on_no_other_object_except_an_unguarded_namespace() {
    let bundle = "{apiVersion: v1, kind: ConfigMap, metadata: {name: roots, namespace: mesh}, data: {ca.crt: prose}}";
    let secret =
        "{apiVersion: v1, kind: Secret, metadata: {name: other, namespace: mesh}, stringData: {ca.crt: prose}}";
    let gateway = "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: gw}, \
                   spec: {servers: [{tls: {caCertCredentialName: 'configmap://mesh/others'}}]}}";
    let namespace =
        |labels: &str| format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: mesh, labels: {labels}}}}}");
    let (guarded, unguarded) = (namespace("{trustspan.dev/guard: enabled}"), namespace("{team: mesh}"));
    let others = [("{}", 1), (GATEWAY_SECRET, 1), (gateway, 1), (&guarded, 1), (&unguarded, 0)];
    for (object, (other, expected)) in [bundle, secret].iter().flat_map(|object| others.map(|other| (object, other))) {
        let output = run(&["check", "-f", "-"], &format!("{object}\n---\n{other}"));
        assert_eq!(code(&output), expected, "{object} with {other}: {}", text(&output.stdout));
        assert!(text(&output.stdout).contains("empty"), "{}", text(&output.stdout));
    }
}

#[test]
fn rules_lists_every_rule() {
    let listed = run(&["rules", "--output", "json"], "");
    let rules: Vec<Value> = serde_json::from_slice(&listed.stdout).expect("JSON");
    for id in ["unparsable", "crl-missing", "managed-in-use", "rewrite-held"] {
        assert!(rules.iter().any(|rule| rule["id"] == id), "{id}");
    }
    let page = text(&run(&["rules"], "").stdout);
    assert_eq!(page.lines().count(), 2 * rules.len(), "{page}");
}

/// Writes stdin from a thread, since the child may write before it has read everything.
fn feed(child: &mut Child, input: String) -> std::thread::JoinHandle<()> {
    let mut stdin = child.stdin.take().expect("piped");
    std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())))
}

fn run(args: &[&str], input: &str) -> Output {
    let mut child = trustspan(args).spawn().expect("the binary");
    let feeder = feed(&mut child, input.to_owned());
    let output = child.wait_with_output().expect("an end");
    feeder.join().expect("fed");
    output
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).expect("a file");
    path.display().to_string()
}

#[test]
fn check_exit_codes() {
    for (input, expected) in [
        ("", 0),
        ("kind: ConfigMap\napiVersion: v1\n", 0),
        (GATEWAY_SECRET, 0),
        (BAD_SECRET, 1),
        ("a: [\n", 2),
        ("- a\n", 2),
    ] {
        let output = run(&["check", "-f", "-"], input);
        assert_eq!(code(&output), expected, "{input:?}: {}", text(&output.stderr));
    }
    assert_eq!(code(&run(&["check", "-f", "no/such/path"], "")), 2);
    assert_eq!(code(&run(&["rewrite", "-f", "no/such/path", "-f", "-"], "")), 2);
    assert_eq!(code(&run(&["check", "--now", "yesterday"], "")), 2);
    assert_eq!(code(&run(&["check", "--now", "2026-01-01T00:00:00Z"], "")), 0);
}

#[test]
fn check_continues_after_an_unreadable_document() {
    let output = run(&["check", "--output", "json"], &format!("a: [\n---\n{BAD_SECRET}"));
    assert_eq!(code(&output), 2);
    let array: Value = serde_json::from_slice(&output.stdout).expect("an array");
    assert_eq!(array.as_array().map(Vec::len), Some(1));
    assert!(text(&output.stderr).starts_with("error: stdin:"), "{}", text(&output.stderr));
}

#[test]
fn check_continues_after_paths_that_cannot_be_opened() {
    let output = run(&["check", "-f", "no/such/path", "-f", "-", "-f", "neither"], BAD_SECRET);
    assert_eq!(code(&output), 2);
    assert!(text(&output.stdout).ends_with("1 object judged: 1 denied, 0 warned\n"), "{}", text(&output.stdout));
    let stderr = text(&output.stderr);
    let errors: Vec<_> = stderr.lines().filter_map(|line| line.split_once(": cannot be read: ")).collect();
    assert!(matches!(errors[..], [("error: no/such/path", _), ("error: neither", _)]), "{stderr}");
}

#[test]
fn check_json_contract() {
    let output = run(&["check", "--output", "json"], &format!("{GATEWAY_SECRET}---\n{BAD_SECRET}"));
    assert_eq!(code(&output), 1);
    let array: Value = serde_json::from_slice(&output.stdout).expect("an array");
    assert_eq!(
        array,
        serde_json::json!([
            {
                "object": {"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "namespace": "istio-system", "name": "gw"},
                "source": "stdin:1", "verdict": "allow", "findings": []
            },
            {
                "object": {"apiVersion": "v1", "kind": "Secret", "namespace": "default", "name": "gw"},
                "source": "stdin:7", "verdict": "deny", "findings": [{
                    "rule": "unreadable", "severity": "deny", "field": "data[ca.crt]",
                    "message": "not base64; put plain text under stringData"
                }]
            }
        ])
    );
    assert_eq!(text(&run(&["check", "-o", "json"], "").stdout), "[]\n");
}

#[test]
fn check_text_has_locations() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = write(directory.path(), "secret.yaml", BAD_SECRET);
    let output = run(&["check", "-f", &path], "");
    let expected = format!(
        "{path}:2  deny  Secret default/gw\n  unreadable  data[ca.crt]  not base64; put plain text under stringData\n\n1 object judged: 1 denied, 0 warned\n"
    );
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn rewrite_keeps_other_text() {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = "\u{feff}# lead\r\na: 1 # c\r\n--- # two\r\n\r\nkind: List\r\nitems: []\r\n...\r\n";
    let json = "{\"kind\":\"A\"}{\"kind\":\"B\"}\n";
    let (a, b) = (write(directory.path(), "a.yaml", yaml), write(directory.path(), "b.json", json));
    for args in [&["rewrite", "-f", &a][..], &["rewrite", "--undo"]] {
        let output = run(args, yaml);
        assert_eq!((code(&output), text(&output.stdout)), (0, yaml.to_owned()));
    }
    assert_eq!(text(&run(&["rewrite", "-f", &a, "-f", &b], "").stdout), format!("{yaml}---\n{json}"));
    assert_eq!(text(&run(&["rewrite", "--diff", "-f", &a, "-f", &b], "").stdout), "");
}

#[test]
fn rewrite_undo_restores_the_original() {
    let rewritten = "\
apiVersion: networking.istio.io/v1
kind: Gateway # mine
metadata:
  annotations:
    trustspan.dev/undo: '[{\"op\":\"test\",\"path\":\"/spec/servers/0/tls/credentialName\",\"value\":\"managed\"},{\"op\":\"replace\",\"path\":\"/spec/servers/0/tls/credentialName\",\"value\":\"root\"},{\"op\":\"remove\",\"path\":\"/metadata/annotations\"}]'
  name: g
spec:
  servers:
  - tls: {credentialName: \"managed\"} # kept
";
    let original = "apiVersion: networking.istio.io/v1\nkind: Gateway # mine\nmetadata:\n  name: g\nspec:\n  servers:\n  - tls: {credentialName: \"root\"} # kept\n";
    let output = run(&["rewrite", "--undo"], &format!("a: 1\n---\n{rewritten}"));
    assert_eq!((code(&output), text(&output.stdout)), (0, format!("a: 1\n---\n{original}")));
    let diff = run(&["rewrite", "--undo", "--diff"], &format!("a: 1\n---\n{rewritten}"));
    insta::assert_snapshot!(text(&diff.stdout), @r#"
    --- stdin
    +++ stdin
    @@ -3,9 +3,7 @@
     apiVersion: networking.istio.io/v1
     kind: Gateway # mine
     metadata:
    -  annotations:
    -    trustspan.dev/undo: '[{"op":"test","path":"/spec/servers/0/tls/credentialName","value":"managed"},{"op":"replace","path":"/spec/servers/0/tls/credentialName","value":"root"},{"op":"remove","path":"/metadata/annotations"}]'
       name: g
     spec:
       servers:
    -  - tls: {credentialName: "managed"} # kept
    +  - tls: {credentialName: "root"} # kept
    "#);
}

/// Work that grows with the square of the input would take too long: every item is edited, in one long line.
#[test]
fn rewrite_of_a_long_list() {
    let item = |name: &str, annotations: &str| {
        let spec = format!("{{\"servers\":[{{\"tls\":{{\"credentialName\":\"{name}\"}}}}]}}");
        let metadata = format!("{{{annotations}\"name\":\"g\"}}");
        format!(
            "{{\"apiVersion\":\"networking.istio.io/v1\",\"kind\":\"Gateway\",\"metadata\":{metadata},\"spec\":{spec}}}"
        )
    };
    let path = r#"\"path\":\"/spec/servers/0/tls/credentialName\""#;
    let undo = format!(
        r#"[{{\"op\":\"test\",{path},\"value\":\"managed\"}},{{\"op\":\"replace\",{path},\"value\":\"root\"}},{{\"op\":\"remove\",\"path\":\"/metadata/annotations\"}}]"#
    );
    let annotations = format!("\"annotations\":{{\"trustspan.dev/undo\":\"{undo}\"}},");
    let list = |item: String| format!("{{\"kind\":\"List\",\"items\":[{}]}}", vec![item; 20_000].join(","));
    let output = run(&["rewrite", "--undo"], &list(item("managed", &annotations)));
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stdout) == list(item("root", "")));
}

#[test]
fn directories_and_context() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("sub")).expect("a directory");
    write(directory.path(), "README.md", "a: [");
    write(&directory.path().join("sub"), "secret.yml", BAD_SECRET);
    let gws = write(directory.path(), "gws.yaml", GATEWAY_SECRET);
    let path = directory.path().display().to_string();
    let output = run(&["check", "-o", "json", "-f", &path], "");
    let array: Value = serde_json::from_slice(&output.stdout).expect("an array");
    let sources: Vec<_> = array.as_array().into_iter().flatten().map(|o| o["source"].clone()).collect();
    assert_eq!(sources, [format!("{path}/gws.yaml:1"), format!("{path}/sub/secret.yml:2")]);
    // Documents of `--context` are read, but not printed.
    let output = run(&["rewrite", "-f", "-", "--context", &gws], "kind: A\n");
    assert_eq!((code(&output), text(&output.stdout)), (0, "kind: A\n".to_owned()));
    assert_eq!(code(&run(&["rewrite", "-f", "-", "--context", "no/such"], "kind: A\n")), 2);
}

#[test]
fn rewrite_prints_unreadable_documents_unchanged() {
    let input = "a: 1\n---\nb: [\n---\nc: 1\n";
    let output = run(&["rewrite"], input);
    assert_eq!((code(&output), text(&output.stdout)), (2, input.to_owned()));
    assert!(text(&output.stderr).starts_with("error: stdin:"), "{}", text(&output.stderr));
    assert_eq!(code(&run(&["rewrite", "--diff"], input)), 2);
    // The unreadable document may be a GatewaySecret. Without it other objects would be rewritten wrongly.
    let output = run(&["rewrite"], "kind: A\n---\n# trustspan.dev\nb: [\n");
    assert_eq!((code(&output), text(&output.stdout)), (2, String::new()));
}

#[test]
fn observe_is_idempotent() {
    let once = run(&["observe"], &format!("kind: A\n---\n{GATEWAY_SECRET}"));
    assert_eq!(code(&once), 0, "{}", text(&once.stderr));
    let again = run(&["observe"], &text(&once.stdout));
    assert!(text(&once.stdout).contains("sourceSecretName: gw-root"));
    assert_eq!(text(&once.stdout), text(&again.stdout));
}

#[test]
fn a_plugin_of_kubectl_says_so_in_its_usage() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("kubectl-trustspan");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_trustspan"), &plugin).unwrap();
    let usage = |program: &Path| {
        let help = Command::new(program).args(["status", "--help"]).output().unwrap();
        text(&help.stdout).lines().find(|line| line.starts_with("Usage:")).map(str::to_owned)
    };
    assert_eq!(usage(&plugin).as_deref(), Some("Usage: kubectl trustspan status [OPTIONS] [NAME]..."));
    assert_eq!(
        usage(Path::new(env!("CARGO_BIN_EXE_trustspan"))).as_deref(),
        Some("Usage: trustspan status [OPTIONS] [NAME]...")
    );
}

#[test]
fn crd_and_completions() {
    assert!(
        text(&run(&["crd"], "").stdout)
            .starts_with("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n")
    );
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell], "");
        assert!(code(&output) == 0 && text(&output.stdout).contains("trustspan"), "{shell}");
    }
    assert_eq!(code(&run(&["completions", "no-shell"], "")), 2);
}

#[test]
fn closed_pipe_causes_no_panic() {
    for args in [
        ["check", "--output=json"],
        ["rewrite", "--filename=-"],
        ["observe", "--filename=-"],
        ["crd", ""],
        ["completions", "bash"],
    ] {
        let args: Vec<_> = args.into_iter().filter(|a| !a.is_empty()).collect();
        // Closed before the start, so that no output fits into its buffer.
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut child = trustspan(&args).stdout(writer).spawn().expect("the binary");
        let feeder = feed(&mut child, stream(500, 1));
        let output = child.wait_with_output().expect("an end");
        feeder.join().expect("fed");
        assert_eq!((code(&output), text(&output.stderr)), (141, String::new()), "{args:?}");
    }
}

/// A stream with a GatewaySecret's worth of other documents, each of which `check` judges.
fn stream(documents: usize, kib: usize) -> String {
    // The namespace is unguarded, so findings only warn.
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: default\n".to_owned();
    for i in 0..documents {
        let filler = "QUJD".repeat(kib * 256);
        let _ = write!(
            text,
            "---\n# number {i}\napiVersion: v1\nkind: Secret\nmetadata:\n  name: s{i}\ndata:\n  cert: {filler}\n"
        );
        if i % 100 == 0 {
            let _ = write!(text, "---\n{}", GATEWAY_SECRET.replace("name: gw", &format!("name: gw{i}")));
        }
    }
    text
}

/// The output, and the highest memory use of the process in KiB. It is sampled while the process waits for this test to
/// read on: at the last samples at most one pipe buffer of output is left.
#[cfg(target_os = "linux")]
fn peak(args: &[&str], input: String) -> (String, u64) {
    let mut child = trustspan(args).spawn().expect("the binary");
    let feeder = feed(&mut child, input);
    let mut stdout = child.stdout.take().expect("piped");
    let (mut out, mut peak, mut buffer) = (Vec::new(), 0, vec![0; 16 * 1024]);
    loop {
        let read = match stdout.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => panic!("{error}"),
        };
        out.extend_from_slice(&buffer[..read]);
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let high =
            status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak = peak.max(high.unwrap_or(0));
    }
    feeder.join().expect("fed");
    assert!(child.wait().expect("an end").success());
    (text(&out), peak)
}

#[cfg(target_os = "linux")]
#[test]
fn ten_thousand_more_documents_need_no_more_memory() {
    for args in [["check", "--output=json"], ["rewrite", "--filename=-"]] {
        // From here on the allocator has what it needs for any stream.
        let fewer = stream(3_000, 1);
        let input = stream(13_000, 1);
        let size = (input.len() - fewer.len()) as u64 / 1024;
        let (_, small) = peak(&args, fewer);
        let (output, large) = peak(&args, input.clone());
        assert!(
            small > 0 && large < small + 3 * 1024,
            "{args:?}: {small} KiB for 3,000 documents, {large} KiB for 13,000"
        );
        // The binary itself takes more memory than the stream. Only the growth is limited.
        assert!(size > 9 * 1024, "{size} KiB more show nothing");
        match args[0] {
            "rewrite" => assert!(output == input, "nothing was to be rewritten"),
            _ => {
                let array: Value = serde_json::from_str(&output).expect("an array");
                assert_eq!(array.as_array().map(Vec::len), Some(13_130));
            }
        }
    }
}

#[test]
fn ten_thousand_gateways_are_rewritten_by_the_last_document_and_restored() {
    let gateway = include_str!("../manifests/example/gateway.yaml");
    let mut input = String::new();
    for i in 0..10_000 {
        let _ = write!(input, "---\n{}", gateway.replace("name: public\n", &format!("name: public-{i}\n")));
    }
    // The GatewaySecret is the last document of the stream.
    let _ = write!(input, "---\n{}", include_str!("../manifests/example/gatewaysecret.yaml"));
    let rewritten = text(&run(&["rewrite", "-f", "-"], &input).stdout);
    assert_eq!(rewritten.matches("credentialName: public-gateway\n").count(), 10_000);
    assert_eq!(rewritten.matches("credentialName: gateway-root\n").count(), 0);
    assert_eq!(
        text(&run(&["rewrite", "--diff", "-f", "-"], &rewritten).stdout),
        "",
        "a second rewrite finds nothing to do"
    );
    assert!(text(&run(&["rewrite", "--undo", "-f", "-"], &rewritten).stdout) == input, "the undo is not the identity");
    let checked = run(&["check", "-f", "-"], &rewritten);
    assert_eq!((code(&checked), text(&checked.stdout).as_str()), (0, "10001 objects judged: 0 denied, 0 warned\n"));
}
