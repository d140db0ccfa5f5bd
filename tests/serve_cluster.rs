//! `trustspan serve` against a scripted API server: what it asks for, and what it lives through. (Against a real one it
//! is tested elsewhere; that one cannot be made to misbehave.)
#![allow(clippy::unwrap_used)] // a test may fail

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Server, until};

#[derive(Default)]
struct State {
    /// Connections are dropped without a word.
    down: bool,
    /// The CRD is there.
    installed: bool,
    objects: Vec<Value>,
    /// Sent on every watch from its beginning.
    events: Vec<Value>,
    /// Method and path of every request.
    asked: Vec<String>,
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
                // Errors are those of a client that went away.
                std::thread::spawn(move || this.serve(stream));
            }
        });
        url
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let mut stream = stream;
        loop {
            let line = lines.next()?.ok()?;
            while !lines.next()?.ok()?.is_empty() {}
            let target = line.split(' ').nth(1)?;
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let is_policy;
            let answer = {
                let mut state = self.state();
                if state.down {
                    return None;
                }
                state.asked.push(format!("{} {path}", line.split(' ').next()?));
                is_policy = path.ends_with("policies");
                if query.contains("watch=true") {
                    None
                } else if state.installed {
                    Some((
                        200,
                        json!({"apiVersion": "trustspan.dev/v1alpha1", "kind": "List", "metadata": {"resourceVersion": "1"},
                        "items": if is_policy { &[] } else { &state.objects[..] }}),
                    ))
                } else {
                    Some((
                        404,
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                        "reason": "NotFound", "message": "the server could not find the requested resource"}),
                    ))
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
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(dir.path().join("tls.crt"), made.cert.pem()).unwrap();
    fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
    fs::write(&kubeconfig, config.to_string()).unwrap();

    let server = Server::spawn(&[
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--cert-dir",
        dir.path().to_str().unwrap(),
        "--bind-address",
        "127.0.0.1",
    ]);
    server.trust(&made.cert.pem());
    let ready = || server.client().get("/readyz").status == 200;
    let metric = |line: &str| server.plain("/metrics").body.lines().any(|l| l == line);

    // The API server is down, then without the CRD: alive, not ready, and no decision.
    until("the failure is counted", || !metric("trustspan_store_failures_total 0"));
    api.state().down = false;
    until("the list is asked for", || !api.state().asked.is_empty());
    assert!(!ready());
    assert_eq!(server.client().get("/livez").status, 200);
    assert_eq!(server.client().post("/validate", "application/json", b"{}").status, 503);
    assert!(metric("trustspan_store_synced 0"));

    // The CRD comes; a malformed object does not spoil the list.
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

    // Watched.
    api.state().events.push(json!({"type": "ADDED", "object": gateway_secret("c", "2")}));
    until("the new one is known", || metric("trustspan_gatewaysecrets 2"));

    // The API server restarts with its history compacted: the known objects stay, and they are listed again.
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
