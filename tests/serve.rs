//! The server binary over real sockets: hostile and broken connections, start, certificate renewal and shutdown.
#![allow(clippy::unwrap_used)] // a test may fail

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{Client, OVERLAP, Server, flood, until};

const LIMIT: usize = 20 * 1024 * 1024;

fn review(uid: &str) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": uid, "operation": "UPDATE", "namespace": "ns", "name": "n", "userInfo": {"username": "tester"},
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"}, "object": {"kind": "ConfigMap"}}})
}

/// Asserts that the server answers a valid review, on a new connection.
fn assert_serves(server: &Server) {
    let answer = server.client().post("/mutate", "application/json", review("still-there").to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(body["response"]["uid"], "still-there");
    assert_eq!(body["response"]["allowed"], true);
}

#[test]
fn bodies_up_to_the_limit_are_answered() {
    let server = Server::start(&[]);
    // As in an UPDATE of a large Secret, most bytes are in the objects.
    let mut review = review("large");
    let bare = review.to_string().len();
    review["request"]["object"]["pad"] = json!("x".repeat(LIMIT - bare - r#","pad":"""#.len()));
    let body = review.to_string();
    assert_eq!(body.len(), LIMIT);
    for path in ["/mutate", "/validate"] {
        let answer = server.client().post(path, "application/json", body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body.contains(r#""uid":"large""#));
    }
    let answer = server.client().post("/validate", "application/json", format!("{body} ").as_bytes());
    assert_eq!((answer.status, answer.body.as_str()), (413, "the body is larger than 20971520 bytes\n"));
    assert_serves(&server);
}

#[test]
fn rejects_invalid_reviews_and_continues() {
    let server = Server::start(&[]);
    let good = review("u").to_string();
    let deep = |open: &str, close: &str| {
        let nested = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
        good.replace(r#"{"kind":"ConfigMap"}}}"#, &format!("{nested}}}}}"))
    };
    for (kind, body, status) in [
        ("application/json", String::new(), 400),
        ("application/json", "\u{0}".repeat(100), 400),
        ("application/json", good[..good.len() / 2].to_owned(), 400),
        ("application/json", good.replace("k8s.io/v1", "k8s.io/v1beta1"), 400),
        ("application/json", good.replace("AdmissionReview", "Secret"), 400),
        ("application/json", good.replace(r#""uid":"u","#, ""), 400),
        ("application/json", good.replace(r#""uid":"u""#, r#""uid":7"#), 400),
        ("application/json", deep("[", "]"), 400),
        ("application/json", deep(r#"{"a":"#, "}"), 400),
        ("application/json", "[".repeat(1_000_000), 400),
        ("application/yaml", good.clone(), 415),
        ("", good.clone(), 415),
    ] {
        for path in ["/mutate", "/validate"] {
            let answer = server.client().post(path, kind, body.as_bytes());
            assert_eq!(answer.status, status, "{kind} {:.80}: {}", body, answer.body);
            assert!(answer.body.ends_with('\n') && answer.body.len() > 10, "no sentence: {:?}", answer.body);
        }
        assert_serves(&server);
    }
    assert_eq!(server.client().get("/mutate").status, 405);
    assert_eq!(server.client().get("/other").status, 404);
    assert_serves(&server);
}

#[test]
fn broken_connections_do_no_harm() {
    let server = Server::start(&[]);
    let body = review("u").to_string();

    // A connection that is closed in the middle of the head, and one in the middle of the body.
    server.client().send(b"POST /mutate HTTP/1.1\r\nHost: localh");
    assert_serves(&server);
    let head = format!(
        "POST /mutate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut half = server.client();
    half.send(head.as_bytes());
    half.send(&body.as_bytes()[..body.len() / 2]);
    drop(half);
    assert_serves(&server);

    // A connection that is closed before the response is read.
    let mut deaf = server.client();
    deaf.send(head.as_bytes());
    deaf.send(body.as_bytes());
    drop(deaf);
    assert_serves(&server);

    // Bytes that are not TLS, an invalid TLS record, and a connection that sends nothing while others are served.
    let silent = server.connect();
    for bytes in [&b"GET /livez HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1, 2, 3], &[0; 1000]] {
        server.connect().write_all(bytes).unwrap();
        assert_serves(&server);
    }
    drop(silent);

    // Within TLS: bytes that are not HTTP, HTTP/2 without negotiation, and a head that is too long.
    let long = format!("GET /livez HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(600_000));
    for bytes in [&b"\x00\x01\x02\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", long.as_bytes()] {
        let mut client = server.client();
        client.try_send(bytes);
        let status = client.answer().map_or(400, |a| a.status);
        assert!((400..500).contains(&status), "{status}");
        assert_serves(&server);
    }
}

#[test]
fn slow_head_is_cut_off_and_idle_connection_is_not() {
    let server = Server::start(&[]);
    let mut idle = server.client();
    assert_eq!(idle.get("/livez").status, 200);
    // Twenty slow connections do not delay others.
    let mut slow: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut slow {
        client.send(b"POST /validate HTTP/1.1\r\nHost: loc");
    }
    assert_serves(&server);
    for mut client in slow {
        // The server closes the connection, or responds with 408.
        assert!(client.answer().is_none_or(|a| a.status == 408));
    }
    // The idle connection, which is as old as the slow ones, still works.
    assert_eq!(idle.get("/livez").status, 200);
    assert_serves(&server);
}

#[test]
fn a_connection_is_used_again() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for n in 0..50 {
        let answer = client.post("/mutate", "application/json", review(&format!("u-{n}")).to_string().as_bytes());
        assert_eq!(answer.status, 200);
        assert!(answer.body.contains(&format!(r#""uid":"u-{n}""#)));
        // A request that is rejected does not close the connection.
        assert_eq!(client.post("/mutate", "application/json", b"{}").status, 400);
    }
    assert_eq!(client.alpn(), Some(b"http/1.1".to_vec()));
}

#[test]
fn the_metrics_port_is_plain() {
    let server = Server::start(&[]);
    assert_serves(&server);
    assert_eq!(server.plain("/readyz").status, 200);
    assert_eq!(server.plain("/livez").status, 200);
    let text = server.plain("/metrics").body;
    for name in [
        r#"trustspan_admission_requests_total{webhook="mutate",group="",kind="ConfigMap",operation="update",result="allowed"} 1"#,
        "trustspan_serving_certificate_not_after_timestamp_seconds ",
        "trustspan_serving_certificate_reloads_total 0",
        "trustspan_serving_certificate_reload_failures_total 0",
        "trustspan_store_synced 1",
    ] {
        assert!(text.contains(name), "{name} not in:\n{text}");
    }
    assert_eq!(server.plain("/mutate").status, 404);
}

/// Writes a pair as the kubelet mounts a Secret: `..data` is a symbolic link to a directory of the generation.
fn mount(dir: &Path, generation: &str) -> String {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    mount_files(dir, generation, &made.cert.pem(), &made.signing_key.serialize_pem());
    made.cert.pem()
}

fn mount_files(dir: &Path, generation: &str, crt: &str, key: &str) {
    fs::create_dir(dir.join(generation)).unwrap();
    fs::write(dir.join(generation).join("tls.crt"), crt).unwrap();
    fs::write(dir.join(generation).join("tls.key"), key).unwrap();
    symlink(generation, dir.join("..data_tmp")).unwrap();
    fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        if !dir.join(name).exists() {
            symlink(format!("..data/{name}"), dir.join(name)).unwrap();
        }
    }
}

#[test]
fn a_renewed_certificate_is_served_without_a_restart() {
    let certs = tempfile::tempdir().unwrap();
    let one = mount(certs.path(), "..one");
    let server = Server::start(&["--cert-dir", certs.path().to_str().unwrap()]);
    server.trust(&one);
    let mut open = server.client();
    assert_eq!(open.get("/livez").status, 200);

    // A broken renewal: the key belongs to another certificate. The old pair stays in use, and a metric counts the
    // failure.
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    mount_files(certs.path(), "..two", &one, &other.signing_key.serialize_pem());
    until("the mismatch is counted", || {
        server.plain("/metrics").body.contains("trustspan_serving_certificate_reload_failures_total 1")
    });
    assert_serves(&server);

    let three = mount(certs.path(), "..three");
    server.trust(&three);
    until("the new certificate is served", || server.try_client().is_ok());
    assert!(server.plain("/metrics").body.contains("trustspan_serving_certificate_reloads_total 1"));
    assert_serves(&server);
    assert_eq!(open.get("/livez").status, 200, "a connection made under the old certificate goes on");
}

/// A CA, and certificates of it for clients with these common names: each with its key.
fn clients<const N: usize>(names: [&str; N]) -> (String, [(String, String); N]) {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let issued = names.map(|name| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    });
    (issuer.pem(), issued)
}

#[test]
fn only_named_clients_of_the_client_ca_get_further_than_tls() {
    let (ca, [named, other]) = clients(["kube-apiserver-webhooks", "other"]);
    let (next_ca, [next]) = clients(["kube-apiserver-webhooks"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.crt");
    fs::write(&file, &ca).unwrap();
    let server =
        Server::start(&["--client-ca-file", file.to_str().unwrap(), "--client-name", "kube-apiserver-webhooks"]);
    // TLS 1.3 ends for the client before the server has read its certificate, so the rejection is seen by the first request.
    let status = |identity: Option<&(String, String)>| {
        let identity = identity.map(|(certificate, key)| (certificate.as_str(), key.as_str()));
        server.try_client_with(identity).ok().and_then(|mut client| client.try_get("/livez"))
    };
    assert_eq!(status(Some(&named)), Some(200));
    for stranger in [None, Some(&other), Some(&next)] {
        assert_eq!(status(stranger), None);
    }
    assert_eq!(server.plain("/readyz").status, 200);
    assert!(server.plain("/healthz?verbose").body.contains("[+]client-ca ok"));

    fs::write(&file, "").unwrap();
    until("the broken file is reported", || server.plain("/healthz").body.contains("[-]client-ca failed"));
    assert_eq!(status(Some(&named)), Some(200), "the previous CAs stay in use");
    fs::write(&file, &next_ca).unwrap();
    until("the new CA is used", || status(Some(&next)) == Some(200));
    assert_eq!(status(Some(&named)), None);
    let (code, said) =
        support::refused(&["-f", dir.path().to_str().unwrap(), "--port", "0", "--client-ca-file", "/nowhere"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("--client-ca-file: /nowhere: "), "{said}");
}

#[test]
fn attackers_do_not_keep_others_from_being_answered() {
    let honest = flood::honest();
    let mut attacks = flood::slow(1100);
    attacks
        .retain(|attack| ["slow bodies", "no request", "large bodies without an end"].contains(&attack.name.as_str()));
    for unit in [r#"{"":0},"#, r#"{"":[0]},"#] {
        attacks.push(flood::posts(unit, 2, "/mutate", flood::filled(unit, 4 << 20)));
    }
    for attack in &attacks {
        let server = Server::start(&[]);
        let seen = flood::attacked(&server, attack, flood::CALLER, Duration::from_secs(2), &honest);
        assert!(seen.refused.is_empty(), "{}: {:?}", attack.name, seen.refused);
        assert!(seen.answered.len() >= 16, "{}: {} answers", attack.name, seen.answered.len());
        assert!(seen.peak < 256 << 20, "{}: {} bytes", attack.name, seen.peak);
    }
}

#[test]
fn judges_a_secret_of_as_many_keys_as_etcd_stores() {
    let server = Server::start(&[]);
    let (before, body) = (server.memory("VmRSS"), flood::update("Secret", &flood::keys(), &flood::keys()));
    for path in ["/mutate", "/validate-guarded"] {
        let answer = server.client().post(path, "application/json", body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let took = server.memory("VmHWM") - before;
    assert!(took < 100 << 20, "{took} bytes");
}

/// A core dump, or a reader of the process's memory, finds no key that was reviewed.
#[cfg(target_os = "linux")]
#[test]
fn no_copy_of_a_private_key_is_in_memory_after_the_answer() {
    let server = Server::start(&[]);
    let key = rcgen::KeyPair::generate().unwrap();
    let (pem, der) = (key.serialize_pem(), key.serialize_der());
    let encoded = STANDARD.encode(&pem);
    let middle = |bytes: &[u8]| bytes[bytes.len() / 2..][..OVERLAP].to_vec();
    let [encoded_part, pem_part, der_part] = [encoded.as_bytes(), pem.as_bytes(), &der].map(middle);
    let copies = || server.copies(&[&encoded_part, &pem_part, &der_part]);
    let mut review = review("key");
    review["request"]["kind"]["kind"] = json!("Secret");
    review["request"]["object"] = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "n", "namespace": "ns", "labels": { "trustspan.dev/guard": "enabled" } },
        "data": { "tls.crt": STANDARD.encode("no certificate"), "tls.key": encoded },
    });
    review["request"]["oldObject"] = review["request"]["object"].clone();
    let mut client = server.client();
    for path in ["/mutate", "/validate", "/validate-guarded"] {
        let answer = client.post(path, "application/json", review.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    // The buffer of the connection has the last request until the next one.
    assert!(copies()[1..] == [0, 0], "{:?}", copies());
    drop(client);
    until("no copy of the key", || copies() == [0, 0, 0]);
}

#[test]
fn drains_on_sigterm() {
    let mut server = Server::start(&["--drain-delay", "5s"]);
    let body = review("in-flight").to_string();
    let mut pooled = server.client();
    until("it is ready", || server.plain("/readyz").status == 200);
    assert_eq!(pooled.get("/readyz").status, 200);
    let mut busy = server.client();
    let head = format!(
        "POST /validate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    busy.send(head.as_bytes());
    busy.send(&body.as_bytes()[..20]);

    server.signal("TERM");
    until("it is not ready", || server.plain("/readyz").status == 503);
    assert_eq!(server.plain("/livez").status, 200);
    // The Service's endpoints still contain this pod, so new and pooled connections are served, then closed.
    assert_serves(&server);
    let answer = pooled.post("/mutate", "application/json", body.as_bytes());
    assert_eq!((answer.status, answer.closes), (200, true));

    until("no new connections are taken", || server.try_connect().is_err());
    busy.send(&body.as_bytes()[20..]);
    let answer = busy.answer().unwrap();
    assert_eq!((answer.status, answer.closes), (200, true));
    assert!(answer.body.contains(r#""uid":"in-flight""#));
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = Server::start(&["--drain-delay", "1h"]);
    server.signal("INT");
    until("it is not ready", || server.plain("/readyz").status == 503);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(1));
}

#[test]
fn a_request_that_never_ends_does_not_hold_the_drain_up() {
    let mut server = Server::start(&["--drain-delay", "0s", "--drain-timeout", "1s"]);
    let mut stuck = server.client();
    stuck.send(b"POST /mutate HTTP/1.1\r\nHost: l\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n");
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn reports_in_one_sentence_why_it_does_not_start() {
    let server = Server::start(&[]);
    let taken = server.port().to_string();
    let none = tempfile::tempdir().unwrap();
    let none = none.path().to_str().unwrap();
    for (args, expected) in [
        (vec!["-f", none, "--cert-dir", none, "--port", &taken], "cannot listen on 127.0.0.1:"),
        (vec!["-f", "/nowhere", "--cert-dir", none, "--port", "0", "--metrics-port", "0"], "-f /nowhere: "),
        (
            vec!["--kubeconfig", "/nowhere", "--cert-dir", none, "--port", "0", "--metrics-port", "0"],
            "no serving certificate: ",
        ),
        (
            vec![
                "-f",
                none,
                "--with-agent",
                "--state-dir",
                none,
                "--cert-dir",
                none,
                "--port",
                "0",
                "--metrics-port",
                "0",
            ],
            "contain each other, expected two separate directories",
        ),
        (vec!["--cert-dir", "/nowhere", "--port", "0", "--metrics-port", "0"], "/nowhere/tls.crt: No such file"),
    ] {
        let (code, said) = support::refused(&args);
        assert_eq!(code, Some(1), "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ") && last.contains(expected), "{said}");
    }
    for args in [
        vec!["--port", "x"],
        vec!["-f", "a", "--kubeconfig", "b"],
        vec!["-f", "a", "--state-dir", "b"],
        vec!["--with-agent", "--state-dir", "b"],
        vec!["--drain-delay", "-1s"],
    ] {
        assert_eq!(support::refused(&args).0, Some(2));
    }
}
