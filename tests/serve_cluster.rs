//! `trustspan serve` with a simulated API server: its requests, and its behavior when the API server fails. (Other
//! tests use a real API server, which cannot be made to misbehave.)
#![allow(clippy::unwrap_used)] // a test may fail

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, refused, until};

#[derive(Default)]
struct State {
    /// Whether connections are closed without a response.
    down: bool,
    /// Whether the CRD is installed.
    installed: bool,
    objects: Vec<Value>,
    /// Events that every watch gets from its beginning.
    events: Vec<Value>,
    /// Method and path of every request.
    asked: Vec<String>,
    /// The stored Lease.
    lease: Option<Value>,
}

#[derive(Clone, Default)]
struct ApiServer(Arc<Mutex<State>>);

impl ApiServer {
    fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let this = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (this, stream) = (this.clone(), stream.unwrap());
                // Errors mean that the client has closed the connection.
                std::thread::spawn(move || this.serve(stream));
            }
        });
        url
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        loop {
            let (line, body) = request(&mut reader)?;
            let target = line.split(' ').nth(1)?;
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let is_policy;
            let answer = {
                let mut state = self.state();
                if state.down {
                    return None;
                }
                let method = line.split(' ').next()?;
                state.asked.push(format!("{method} {path}"));
                is_policy = path.ends_with("policies");
                if query.contains("watch=true") {
                    None
                } else if let Some((_, name)) = path.split_once("/leases") {
                    if method != "GET" {
                        state.lease = serde_json::from_slice(&body).ok();
                    }
                    Some(
                        state
                            .lease
                            .clone()
                            .map_or_else(not_found, |lease| (if name.is_empty() { 201 } else { 200 }, lease)),
                    )
                } else if state.installed {
                    Some((
                        200,
                        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "List", "metadata": {"resourceVersion": "1"},
                        "items": if is_policy { &[] } else { &state.objects[..] }}),
                    ))
                } else {
                    Some(not_found())
                }
            };
            match answer {
                Some((code, body)) => {
                    let body = body.to_string();
                    let head = format!(
                        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    stream.write_all((head + &body).as_bytes()).ok()?;
                }
                None => self.watch(&mut stream, is_policy)?,
            }
        }
    }

    fn watch(&self, stream: &mut TcpStream, is_policy: bool) -> Option<()> {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            .ok()?;
        let mut sent = 0;
        loop {
            let (down, event) = {
                let state = self.state();
                (state.down, state.events.get(sent).filter(|_| !is_policy).cloned())
            };
            if down {
                return None;
            }
            let Some(event) = event else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            let line = format!("{event}\n");
            stream.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).ok()?;
            sent += 1;
        }
    }
}

/// Reads the next request: its first line and its body.
fn request(reader: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    };
    let (first, mut length) = (line()?, 0);
    loop {
        let header = line()?.to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first, body))
}

fn not_found() -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
        "reason": "NotFound", "message": "the server could not find the requested resource"});
    (404, status)
}

/// Writes a kubeconfig for a URL, and a serving certificate. Returns the kubeconfig, and the certificate.
fn configure(dir: &Path, url: &str) -> (PathBuf, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(dir.join("tls.crt"), made.cert.pem()).unwrap();
    fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let kubeconfig = dir.join("kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
    fs::write(&kubeconfig, config.to_string()).unwrap();
    (kubeconfig, made.cert.pem())
}

fn gateway_secret(name: &str, version: &str) -> Value {
    json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "GatewaySecret", "spec": {"sourceSecretName": "root"},
        "metadata": {"namespace": "istio-ingress", "name": name, "uid": name, "resourceVersion": version, "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kubectl"}]}})
}

#[test]
fn follows_gatewaysecrets_and_policies_and_nothing_else() {
    let api = ApiServer::default();
    api.state().down = true;
    let url = api.start();
    let dir = tempfile::tempdir().unwrap();
    let (kubeconfig, certificate) = configure(dir.path(), &url);

    let server = Server::spawn(&[
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--cert-dir",
        dir.path().to_str().unwrap(),
        "--bind-address",
        "127.0.0.1",
    ]);
    server.trust(&certificate);
    let ready = || server.client().get("/readyz").status == 200;
    let metric = |line: &str| server.plain("/metrics").body.lines().any(|l| l == line);

    // The API server is down, then without the CRD: the process is alive, but not ready, and decides nothing.
    until("the failure is counted", || !metric("trustspan_store_failures_total 0"));
    api.state().down = false;
    until("the list is asked for", || !api.state().asked.is_empty());
    assert!(!ready());
    assert_eq!(server.client().get("/livez").status, 200);
    assert_eq!(server.client().post("/validate", "application/json", b"{}").status, 503);
    assert!(metric("trustspan_store_synced 0"));

    // The CRD is installed. A malformed object does not prevent the use of the others.
    let mut malformed = gateway_secret("b", "1");
    malformed["spec"] = json!({"sourceSecretName": 7});
    {
        let mut state = api.state();
        state.objects = vec![gateway_secret("a", "1"), malformed];
        state.installed = true;
    }
    until("it is ready", ready);
    assert!(metric("trustspan_gatewaysecrets 1"));
    assert!(metric("trustspan_store_synced 1"));

    // The watch delivers a further object.
    api.state().events.push(json!({"type": "ADDED", "object": gateway_secret("c", "2")}));
    until("the new one is known", || metric("trustspan_gatewaysecrets 2"));

    // The API server restarts with a compacted history: the known objects stay, and are listed again.
    api.state().down = true;
    let before = server.plain("/metrics").body;
    {
        let mut state = api.state();
        state.objects = vec![gateway_secret("a", "5")];
        state.events =
            vec![json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "message": "too old resource version", "reason": "Expired", "code": 410}})];
    }
    until("the lost watch is noticed", || {
        let count =
            |text: &str| text.lines().find(|l| l.starts_with("trustspan_store_failures_total")).map(str::to_owned);
        count(&before) != count(&server.plain("/metrics").body)
    });
    assert!(ready() && metric("trustspan_gatewaysecrets 2"));
    api.state().down = false;
    until("the objects are listed again", || metric("trustspan_gatewaysecrets 1"));
    assert!(ready());

    let state = api.state();
    let asked: BTreeSet<_> = state.asked.iter().map(String::as_str).collect();
    let kinds = ["clusterrotationpolicies", "gatewaysecrets", "rotationpolicies"];
    let expected: Vec<_> = kinds.iter().map(|kind| format!("GET /apis/trustspan.dev/v1alpha1/{kind}")).collect();
    assert!(asked.iter().eq(expected.iter()), "{asked:?}");
}

#[test]
fn with_agent_uses_the_lease_of_its_flags_and_releases_it_on_shutdown() {
    let api = ApiServer::default();
    api.state().installed = true;
    let url = api.start();
    let dir = tempfile::tempdir().unwrap();
    let (kubeconfig, _) = configure(dir.path(), &url);
    let (kubeconfig, cert_dir) = (kubeconfig.to_str().unwrap(), dir.path().to_str().unwrap());
    let mut args = vec!["--kubeconfig", kubeconfig, "--cert-dir", cert_dir, "--bind-address", "127.0.0.1"];
    args.extend(["--drain-delay", "0s", "--with-agent", "--lease-namespace", "operations", "--lease-name", "rotation"]);
    args.extend(["--lease-duration", "4s", "--identity", "here"]);
    let mut server = Server::spawn(&args);
    let leads = || server.plain("/metrics").body.lines().any(|line| line == "trustspan_agent_leading 1");
    until("it is the leader", leads);
    let holder = || api.state().lease.as_ref().map(|lease| lease["spec"]["holderIdentity"].clone());
    assert_eq!(holder(), Some(json!("here")));
    assert_eq!(api.state().lease.as_ref().map(|lease| lease["spec"]["leaseDurationSeconds"].clone()), Some(json!(4)));
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(holder(), Some(Value::Null), "released");
    let path = "PUT /apis/coordination.k8s.io/v1/namespaces/operations/leases/rotation";
    let state = api.state();
    let last_write = state.asked.iter().rfind(|request| !request.starts_with("GET "));
    assert_eq!(last_write.map(String::as_str), Some(path), "nothing is written after the release");
}

#[test]
fn rejects_flags_of_the_controller_without_it() {
    let (code, error) = refused(&["--lease-name", "rotation"]);
    assert!(code == Some(2) && error.contains("--with-agent"), "{error}");
    let (code, error) = refused(&["-f", ".", "--with-agent", "--poll", "1s"]);
    assert!(code == Some(2) && error.contains("cannot be used with"), "{error}");
}
