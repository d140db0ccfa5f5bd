#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::STANDARD};

use super::*;
use crate::admission::secret_write::DecodedWrite;
use crate::admission::{Decision, validate};
use crate::api::Level;
use crate::api::names::{GUARD, GUARD_ENABLED};
use crate::json::json;
use crate::trust::Verdict;
use crate::trust::fixtures::{block, ca, ca_between, now};

fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

fn definition(bundle: &str) -> Json<'static> {
    let webhook = json!({"clientConfig": {"caBundle": base64(bundle)}, "conversionReviewVersions": ["v1"]});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}},
    })
}

fn api_service(bundle: &str) -> Json<'static> {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.example.com"},
        "spec": {"caBundle": base64(bundle)},
    })
}

fn webhooks(bundle: &str) -> Json<'static> {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "other"},
        "webhooks": [{"name": "a.example.com", "clientConfig": {"caBundle": base64(bundle)}}, {"name": "b.example.com"}],
    })
}

fn config_map(bundle: &str) -> Json<'static> {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "mesh", "name": "roots", "labels": {GUARD: GUARD_ENABLED}},
        "data": {"ca.crt": bundle},
    })
}

/// A kubeconfig with a cluster and a user, as JSON, which is YAML.
fn kubeconfig(bundle: &str, chain: &str, key: &str) -> Json<'static> {
    let user = json!({"client-certificate-data": base64(chain), "client-key-data": base64(key)});
    let config = json!({
        "kind": "Config",
        "clusters": [{"name": "prod", "cluster": {"certificate-authority-data": base64(bundle)}}],
        "users": [{"name": "admin", "user": user}, {"name": "robot", "user": {"token": "x"}}],
    });
    secret("value", &config.to_string())
}

fn secret(key: &str, text: &str) -> Json<'static> {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "mesh", "name": "prod-kubeconfig"},
        "data": {key: base64(text)},
    })
}

fn judged(object: &Json<'_>, old: Option<&Json<'_>>) -> Vec<Finding> {
    if object["kind"] == "Secret" {
        return on_kubeconfigs(object, old).unwrap_or_default();
    }
    findings(Kind::of(object), object, old, &Severities::default(), now()).unwrap_or_default()
}

fn on_kubeconfigs(object: &Json<'_>, old: Option<&Json<'_>>) -> Option<Vec<Finding>> {
    let (request, registry) = (request(object, old), Registry::default());
    let decoded = DecodedWrite::new(&request).unwrap();
    kubeconfigs(&SecretWrite::new(&request, &decoded, &registry, &Severities::default(), now()))
}

/// Rule and field of each denial.
fn denials(object: &Json<'_>, old: Option<&Json<'_>>) -> Vec<(&'static str, String)> {
    let denies = |finding: &Finding| finding.severity == Severity::Deny;
    judged(object, old).into_iter().filter(denies).map(|finding| (finding.rule, finding.field)).collect()
}

/// Creates an object with this bundle.
type Make = fn(&str) -> Json<'static>;

/// Objects with a bundle that Go reads, and its field.
const LOCATIONS: [(Make, &str); 4] = [
    (definition, "spec.conversion.webhook.clientConfig.caBundle"),
    (api_service, "spec.caBundle"),
    (webhooks, "webhooks[a.example.com].clientConfig.caBundle"),
    (|bundle| kubeconfig(bundle, "", ""), "data[value].clusters[prod].certificate-authority-data"),
];

#[test]
fn accepts_sound_bundles_and_none() {
    let sound = ca("one").pem() + &ca("two").pem();
    for (object, field) in LOCATIONS {
        assert_eq!(judged(&object(&sound), None), [], "{field}");
        assert_eq!(judged(&object(""), None), [], "{field}");
    }
    assert_eq!(judged(&config_map(&sound), None), []);
    let (root, leaf) = (ca("root"), ca("root").leaf("admin"));
    assert_eq!(judged(&kubeconfig(&root.pem(), &leaf.pem(), &leaf.key_pem()), None), []);
}

#[test]
fn accepts_what_go_reads_and_envoy_does_not() {
    let (old, new) = (ca_between("root", 2020, 2025).pem(), ca("root").pem());
    let own = ca("root").leaf("webhook").pem();
    let garbage = block("CERTIFICATE", b"garbage");
    for (object, field) in LOCATIONS {
        // Go tries every CA of a name, and trusts a server's own certificate.
        assert_eq!(denials(&object(&format!("{old}{new}")), None), [], "{field}");
        assert_eq!(denials(&object(&own), None), [], "{field}");
        // Go skips a malformed block and loads the rest, so the CA in that block is lost.
        assert_eq!(denials(&object(&format!("{new}{garbage}")), None), [("dropped-by-proxy", field.to_owned())]);
    }
    assert_eq!(denials(&config_map(&format!("{new}{garbage}")), None), [("unparsable", "data[ca.crt]".to_owned())]);
}

#[test]
fn rejects_bundles_that_verify_no_server() {
    let sound = ca("root").pem();
    let key = ca("root").leaf("a").key_pem();
    for (object, field) in LOCATIONS {
        for (bundle, rule) in [
            ("no PEM at all".to_owned(), "empty"),
            (format!("\u{feff}{sound}{}", ca("two").pem()), "dropped-by-proxy"),
            (format!("{sound}{key}"), "private-key-in-bundle"),
            (ca_between("old", 2020, 2025).pem(), "expired"),
            (ca_between("new", 2031, 2040).pem(), "not-yet-valid"),
        ] {
            assert_eq!(denials(&object(&bundle), None), [(rule, field.to_owned())], "{field}");
        }
        // Go reads neither of two blocks without a line break between them.
        let glued = denials(&object(&format!("{}{}", sound.trim_end(), ca("two").pem())), None);
        let rules: Vec<_> = glued.iter().map(|(rule, _)| *rule).collect();
        assert_eq!(rules, ["dropped-by-proxy", "dropped-by-proxy", "empty"], "{field}");
    }
}

#[test]
fn messages_on_bundles_of_go_programs_mention_servers() {
    let expired = judged(&api_service(&ca_between("old", 2020, 2025).pem()), None);
    assert_eq!(
        expired[0].message,
        "caBundle line 1: CN=old expired at 2025-01-01T00:00:00Z. expected at least one valid CA: every server is refused; \
         add the renewed CA"
    );
    let empty = judged(&api_service("prose"), None);
    assert!(empty[0].message.ends_with("no server can be verified with it; add the CA"), "{}", empty[0].message);
    for (object, _) in LOCATIONS {
        let text = format!("{:?}", judged(&object(&ca_between("old", 2020, 2025).pem()), None));
        assert!(!text.contains("gateway") && !text.contains("proxy rejects") && !text.contains("client is"), "{text}");
    }
}

#[test]
fn accepts_whitespace_that_is_filled_in() {
    assert_eq!(judged(&definition("\n"), None), []);
    assert_eq!(denials(&webhooks("\n"), None).len(), 1);
    let mut injected = webhooks("\n");
    injected["metadata"]["annotations"] = json!({"cert-manager.io/inject-ca-from": "a/b"});
    assert_eq!(judged(&injected, None), []);
}

#[test]
fn rejects_unusable_client_certificates() {
    let (root, leaf) = (ca("root"), ca("root").leaf("admin"));
    let other = root.leaf("other").key_pem();
    let field = |key: &str| format!("data[value].users[admin].{key}");
    for (chain, key, rule, at) in [
        (leaf.pem(), other, "key-mismatch", "client-key-data"),
        (leaf.pem(), String::new(), "pair-incomplete", "client-certificate-data"),
        (String::new(), leaf.key_pem(), "pair-incomplete", "client-key-data"),
        (root.leaf_between("old", 2020, 2025).pem(), String::new(), "pair-incomplete", "client-certificate-data"),
        ("prose".to_owned(), leaf.key_pem(), "unparsable", "client-certificate-data"),
    ] {
        let found = denials(&kubeconfig(&root.pem(), &chain, &key), None);
        assert_eq!(found, [(rule, field(at))], "{rule}");
    }
    let old = root.leaf_between("old", 2020, 2025);
    let found = denials(&kubeconfig(&root.pem(), &old.pem(), &old.key_pem()), None);
    assert_eq!(found, [("expired", field("client-certificate-data"))]);
}

#[test]
fn does_not_judge_secrets_without_a_kubeconfig() {
    for text in ["password", "a: [", "clusters: none", "- a\n- b\n", "\u{0}"] {
        assert!(on_kubeconfigs(&secret("value", text), None).is_none(), "{text}");
    }
    let files = "clusters: [{name: a, cluster: {certificate-authority: ca.pem}}]\n\
                 users: [{name: a, user: {client-certificate: a.pem, client-key-data: eA==}}]\n";
    assert_eq!(judged(&secret("kubeconfig", files), None), []);
}

#[test]
fn does_not_read_a_text_that_aliases_expand_without_limit() {
    let mut text = "a0: &a0 [x]\n".to_owned();
    for level in 1..40 {
        let before = format!("*a{}, ", level - 1).repeat(9);
        text += &format!("a{level}: &a{level} [{before}x]\n");
    }
    text += "clusters: *a39\n";
    let many = "users:\n".to_owned() + &"- {name: a, user: {token: b}}\n".repeat(10_000);
    for text in [text, many] {
        assert!(on_kubeconfigs(&secret("value", &text), None).is_none());
    }
}

#[test]
fn warns_about_a_kubeconfig_that_is_too_large() {
    let user = "- {name: a, user: {client-certificate-data: eA==, client-key-data: eA==}}\n";
    for (count, expected) in [(100, None), (10_000, Some(Severity::Warn))] {
        let object = secret("value", &format!("users:\n{}", user.repeat(count)));
        let found = judged(&object, None).into_iter().find(|finding| finding.rule == "kubeconfig-unreadable");
        assert_eq!(found.as_ref().map(|finding| finding.severity), expected, "{count} users");
        let Some(found) = found else { continue };
        assert_eq!(found.field, "data[value]");
        assert!(found.message.contains("is not judged. expected"), "{}", found.message);
    }
}

/// All clusters are judged, and the users up to the limit.
#[test]
fn warns_about_more_private_keys_than_are_read() {
    let clusters = format!("clusters: [{{name: a, cluster: {{certificate-authority-data: {}}}}}]\n", base64("x"));
    let user = "- {name: a, user: {client-certificate-data: eA==, client-key-data: eA==}}\n";
    let object = secret("value", &format!("{clusters}users:\n{}", user.repeat(1_000)));
    let found = judged(&object, None);
    let unread: Vec<_> = found.iter().filter(|finding| finding.rule == "kubeconfig-unreadable").collect();
    assert_eq!(
        unread.iter().map(|f| (f.severity, f.field.as_str())).collect::<Vec<_>>(),
        [(Severity::Warn, "data[value].users")]
    );
    assert!(found.iter().any(|finding| finding.field.starts_with("data[value].clusters[a]")));
    assert_eq!(found.iter().filter(|finding| finding.rule == "key-mismatch").count(), 128);
}

#[test]
fn entries_with_one_name_are_compared_in_their_order() {
    let expired = |name: &str| ca_between(name, 2020, 2025).pem();
    let cluster =
        |bundle: &str| format!("- {{name: a, cluster: {{certificate-authority-data: {}}}}}\n", base64(bundle));
    let config = |bundles: &[&String]| {
        secret("value", &format!("clusters:\n{}", bundles.iter().map(|bundle| cluster(bundle)).collect::<String>()))
    };
    let (one, two, three) = (expired("one"), expired("two"), expired("three"));
    assert_eq!(denials(&config(&[&one, &two]), Some(&config(&[&one, &two, &three]))), []);
    assert_eq!(denials(&config(&[&one, &two, &three]), Some(&config(&[&one, &two]))).len(), 1);
    assert_eq!(denials(&config(&[&three, &two]), Some(&config(&[&one, &two]))).len(), 1);
}

#[test]
fn rejects_a_kubeconfig_with_data_that_is_not_base64() {
    let text = "clusters: [{name: prod, cluster: {certificate-authority-data: '%%%'}}]\nusers: []\n";
    let object = secret("config", text);
    let field = "data[config].clusters[prod].certificate-authority-data".to_owned();
    assert_eq!(denials(&object, None), [("kubeconfig-unreadable", field)]);
    assert_eq!(denials(&object, Some(&object)), []);
}

#[test]
fn rejects_a_ca_bundle_that_is_not_base64() {
    let pem = ca("root").pem();
    for text in [json!(pem), json!("%%%"), json!("eA"), json!(7), json!([base64(&pem)])] {
        let mut object = api_service("");
        object["spec"]["caBundle"] = text;
        assert_eq!(denials(&object, None), [("unreadable", "spec.caBundle".to_owned())], "{object}");
        assert_eq!(denials(&object, Some(&object)), []);
    }
}

#[test]
fn base64_on_many_lines_is_read_as_the_api_server_reads_it() {
    let lines = |text: &str| {
        let base64 = base64(text);
        let (first, rest) = base64.split_at(base64.len() / 2);
        format!("{first}\r\n{rest}\n")
    };
    for (text, denied) in [(ca("root").pem(), false), ("prose".to_owned(), true)] {
        let mut object = api_service("");
        object["spec"]["caBundle"] = json!(lines(&text));
        assert_eq!(!denials(&object, None).is_empty(), denied, "{text}");
        let cluster = json!({"name": "prod", "cluster": {"certificate-authority-data": lines(&text)}});
        let config = secret("value", &json!({"kind": "Config", "clusters": [cluster]}).to_string());
        assert_eq!(!denials(&config, None).is_empty(), denied, "{text}");
    }
}

#[test]
fn no_message_shows_a_key() {
    let leaf = ca("root").leaf("admin");
    let body = leaf.key_pem().lines().nth(1).unwrap().to_owned();
    for object in [kubeconfig(&leaf.key_pem(), &leaf.key_pem(), &leaf.pem()), api_service(&leaf.key_pem())] {
        let text = format!("{:?}", judged(&object, None));
        assert!(text.contains("private-key-in-bundle") && !text.contains(&body), "{text}");
    }
}

fn request<'a>(object: &'a Json<'a>, old: Option<&'a Json<'a>>) -> Request<'a> {
    Request {
        operation: if old.is_some() { Operation::Update } else { Operation::Create },
        username: "jane",
        old_object: old,
        ..Request::create(object, object["metadata"]["namespace"].as_str().unwrap_or_default())
    }
}

fn decided(request: &Request<'_>, registry: &Registry) -> Decision {
    validate(request, registry, &Severities::default(), now())
}

#[test]
fn only_warns_about_what_the_stored_object_has() {
    let (expired, sound) = (ca_between("old", 2020, 2025).pem(), ca("new").pem());
    for (object, field) in LOCATIONS {
        let (old, new) = (object(&expired), object(&sound));
        let verdict =
            |new: &Json<'_>, old: &Json<'_>| decided(&request(new, Some(old)), &Registry::default()).verdict();
        let mut relabelled = old.clone();
        relabelled["metadata"]["labels"] = json!({"team": "a"});
        assert_eq!(verdict(&relabelled, &old), Verdict::Warn, "{field}");
        assert_eq!(verdict(&new, &old), Verdict::Allow, "{field}");
        assert_eq!(verdict(&old, &new), Verdict::Deny, "{field}");
        assert_eq!(verdict(&object(&format!("# why\n{expired}")), &old), Verdict::Warn, "{field}");
    }
}

#[test]
fn accepts_unchanged_objects_that_are_being_deleted_and_other_operations() {
    let mut object = api_service("prose");
    let created = request(&object, None);
    for request in [
        Request { operation: Operation::Delete, object: None, old_object: Some(&object), ..created.clone() },
        Request { sub_resource: "status", ..created.clone() },
    ] {
        assert_eq!(decided(&request, &Registry::default()).verdict(), Verdict::Allow);
    }
    assert_eq!(decided(&created, &Registry::default()).verdict(), Verdict::Deny);
    object["metadata"]["deletionTimestamp"] = json!("2030-01-01T00:00:00Z");
    let (sound, mut kept) = (api_service(&ca("a").pem()), object.clone());
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(decided(&request(&object, Some(&kept)), &Registry::default()).verdict(), Verdict::Allow);
    assert_eq!(decided(&request(&object, Some(&sound)), &Registry::default()).verdict(), Verdict::Deny, "it is served");
    assert_eq!(decided(&request(&object, None), &Registry::default()).verdict(), Verdict::Deny, "it is new");
}

#[test]
fn judges_only_guarded_config_maps() {
    let labelled = config_map("prose");
    let mut plain = labelled.clone();
    plain["metadata"]["labels"] = json!({});
    for (object, in_guarded_namespace, expected) in
        [(&labelled, false, Verdict::Deny), (&plain, false, Verdict::Allow), (&plain, true, Verdict::Deny)]
    {
        let request = Request { in_guarded_namespace, ..request(object, None) };
        assert_eq!(decided(&request, &Registry::default()).verdict(), expected, "{object}");
    }
    // The removal of the guard label is judged, too.
    assert_eq!(
        decided(&request(&plain, Some(&config_map(&ca("a").pem()))), &Registry::default()).verdict(),
        Verdict::Deny
    );
    let mut without_ca = config_map("");
    without_ca["data"] = json!({});
    assert_eq!(denials(&without_ca, Some(&config_map(&ca("a").pem()))), [("taken-away", "data[ca.crt]".to_owned())]);
}

#[test]
fn the_deletion_of_a_guarded_config_map_warns_of_what_it_takes_away() {
    let guarded = config_map(&ca("a").pem());
    let mut plain = guarded.clone();
    plain["metadata"]["labels"] = json!({});
    for (object, expected) in [(&guarded, vec!["taken-away"]), (&plain, vec![])] {
        let deletion =
            Request { operation: Operation::Delete, object: None, old_object: Some(object), ..request(object, None) };
        let decision = decided(&deletion, &Registry::default());
        assert_ne!(decision.verdict(), Verdict::Deny);
        assert_eq!(decision.findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn severities_and_break_glass_apply() {
    let mut object = api_service("prose");
    let off: Severities = [("empty".to_owned(), Level::Off)].into_iter().collect();
    assert_eq!(validate(&request(&object, None), &Registry::default(), &off, now()).verdict(), Verdict::Allow);
    object["metadata"]["annotations"] = json!({"breakglass.trustspan.dev/empty": "ticket 7"});
    let mut request = request(&object, None);
    let rejected = decided(&request, &Registry::default());
    assert_eq!(rejected.denials().map(|finding| finding.rule).collect::<Vec<_>>(), ["empty", "break-glass"]);
    request.may_break_glass = true;
    let decision = decided(&request, &Registry::default());
    assert_eq!((decision.verdict(), decision.overrides.len()), (Verdict::Warn, 1));
}
