//! Callers that want to stop a server from answering others, and a caller that it has to answer meanwhile.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Server;

/// Connections of the caller.
const CALLERS: usize = 16;
/// A request that was not answered after this time counts as refused: the longest time-out of the webhooks.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The address of the caller, and that of the attackers unless they have the same.
pub(crate) const CALLER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// The port of a server, for connections from any address of loopback.
#[derive(Clone)]
pub(crate) struct Target {
    address: SocketAddr,
    tls: TlsConnector,
}

type Attacker = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// An attack: its name, how many do it at the same time, and what each does until its connection is closed.
pub(crate) struct Attack {
    pub(crate) name: String,
    pub(crate) count: usize,
    /// Time before an attacker connects again.
    pub(crate) pause: Duration,
    pub(crate) run: Arc<dyn Fn(Target, Ipv4Addr) -> Attacker + Send + Sync>,
}

/// What the caller saw during an attack.
#[derive(Debug)]
pub(crate) struct Seen {
    /// How long answers took, the shortest first.
    pub(crate) answered: Vec<Duration>,
    /// What went wrong with the other requests.
    pub(crate) refused: Vec<String>,
    /// The most memory of the server, in bytes.
    pub(crate) peak: usize,
}

impl Seen {
    /// The time within which so many of a hundred answers arrived.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let last = self.answered.len().saturating_sub(1);
        self.answered.get(last * percent / 100).copied().unwrap_or(Duration::MAX)
    }
}

impl Target {
    pub(crate) fn of(server: &Server) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(server.roots())
            .with_no_client_auth();
        Self { address: ([127, 0, 0, 1], server.port()).into(), tls: TlsConnector::from(Arc::new(config)) }
    }

    pub(crate) async fn connect(&self, from: Ipv4Addr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((from, 0).into())?;
        socket.connect(self.address).await
    }

    pub(crate) async fn client(&self, from: Ipv4Addr) -> io::Result<TlsStream<TcpStream>> {
        let stream = self.connect(from).await?;
        stream.set_nodelay(true)?;
        self.tls.connect(ServerName::try_from("localhost").unwrap(), stream).await
    }
}

/// The head of a request with a body.
pub(crate) fn head(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: l\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n")
}

/// Sends a review, and reads the response: its status.
pub(crate) async fn post(client: &mut TlsStream<TcpStream>, path: &str, body: &[u8]) -> io::Result<u16> {
    // In one write, as an API server sends a small review.
    let mut request = head(path, body.len()).into_bytes();
    request.extend_from_slice(body);
    client.write_all(&request).await?;
    client.flush().await?;
    status(client).await
}

/// Reads a response with a Content-Length.
pub(crate) async fn status(client: &mut TlsStream<TcpStream>) -> io::Result<u16> {
    let (mut response, mut block) = (Vec::new(), vec![0; 4096]);
    loop {
        let count = client.read(&mut block).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        response.extend_from_slice(&block[..count]);
        let text = String::from_utf8_lossy(&response).to_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok());
        if body.len() >= field("content-length:").unwrap_or_default() {
            return head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Attacks a server for some time, while a caller posts `review` on sixteen connections, a request every few milliseconds on each.
pub(crate) fn attacked(server: &Server, attack: &Attack, from: Ipv4Addr, time: Duration, review: &str) -> Seen {
    // The caller has a separate thread, so that attackers do not delay it on its own side.
    let (attackers, caller) = (Runtime::new().unwrap(), Builder::new_current_thread().enable_all().build().unwrap());
    let target = Target::of(server);
    let seen = caller.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..CALLERS {
            connections.push(target.client(CALLER).await.unwrap());
        }
        for _ in 0..attack.count {
            let (target, run, pause) = (target.clone(), attack.run.clone(), attack.pause);
            attackers.spawn(async move {
                loop {
                    let _closed = run(target.clone(), from).await;
                    sleep(pause).await;
                }
            });
        }
        let end = Instant::now() + time;
        let calls = connections.into_iter().map(|client| call(target.clone(), client, end, review.to_owned()));
        calls.collect::<JoinSet<_>>().join_all().await
    });
    attackers.shutdown_background();
    let (mut answered, mut refused) = (Vec::new(), Vec::new());
    for (times, errors) in seen {
        answered.extend(times);
        refused.extend(errors);
    }
    answered.sort();
    Seen { answered, refused, peak: server.memory("VmHWM") }
}

async fn call(
    target: Target,
    first: TlsStream<TcpStream>,
    end: Instant,
    review: String,
) -> (Vec<Duration>, Vec<String>) {
    let (mut times, mut errors, mut client) = (Vec::new(), Vec::new(), Some(first));
    while Instant::now() < end {
        let start = Instant::now();
        let answer = timeout(TIMEOUT, async {
            if client.is_none() {
                client = Some(target.client(CALLER).await?);
            }
            post(client.as_mut().unwrap(), "/validate", review.as_bytes()).await
        });
        match answer.await {
            Ok(Ok(200)) => times.push(start.elapsed()),
            failed => {
                errors.push(format!("{failed:?}"));
                client = None;
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    (times, errors)
}

fn attack<F, R>(name: impl Into<String>, count: usize, run: F) -> Attack
where
    F: Fn(Target, Ipv4Addr) -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<()>> + Send + 'static,
{
    let run = Arc::new(move |target, from| -> Attacker { Box::pin(run(target, from)) });
    // A thousand attackers make a thousand handshakes a second, at most: more would measure the processor.
    Attack { name: name.into(), count, pause: Duration::from_secs(1), run }
}

/// Waits until the server closes the connection.
async fn wait(mut stream: impl tokio::io::AsyncRead + Unpin) -> io::Result<()> {
    let mut block = [0; 1024];
    while stream.read(&mut block).await? > 0 {}
    Ok(())
}

/// Connections that send a part of a request, and then little or nothing.
pub(crate) fn slow(count: usize) -> Vec<Attack> {
    vec![
        attack("slow bodies", 128, |target, from| async move {
            let mut client = target.client(from).await?;
            client.write_all(head("/mutate", 1000).as_bytes()).await?;
            loop {
                client.write_all(b" ").await?;
                client.flush().await?;
                sleep(Duration::from_secs(1)).await;
            }
        }),
        attack("no handshake", count, |target, from| async move { wait(target.connect(from).await?).await }),
        attack("half a handshake", count, |target, from| async move {
            let mut stream = target.connect(from).await?;
            // A record of a ClientHello of 65,535 bytes.
            let mut bytes = vec![0; 16_000];
            bytes[..9].copy_from_slice(&[22, 3, 1, 0x3e, 0x78, 1, 0, 0xff, 0xf0]);
            stream.write_all(&bytes).await?;
            wait(stream).await
        }),
        attack("no request", count, |target, from| async move { wait(target.client(from).await?).await }),
        attack("half a head", count, |target, from| async move {
            let mut client = target.client(from).await?;
            client.write_all(format!("POST /mutate HTTP/1.1\r\nX: {}", "x".repeat(15_000)).as_bytes()).await?;
            client.flush().await?;
            wait(client).await
        }),
        attack("idle after an answer", count, |target, from| async move {
            let mut client = target.client(from).await?;
            client.write_all(b"GET /livez HTTP/1.1\r\nHost: l\r\n\r\n").await?;
            status(&mut client).await?;
            wait(client).await
        }),
        attack("large bodies without an end", 32, |target, from| async move {
            let mut client = target.client(from).await?;
            client.write_all(head("/mutate", 20 << 20).as_bytes()).await?;
            for _ in 0..19 {
                client.write_all(&vec![b' '; 1 << 20]).await?;
            }
            client.flush().await?;
            wait(client).await
        }),
    ]
}

/// Connections that post a body again and again, and read the answer.
pub(crate) fn posts(name: impl Into<String>, count: usize, path: &'static str, body: String) -> Attack {
    let body = Arc::new(body);
    attack(name, count, move |target, from| {
        let body = body.clone();
        async move {
            let mut client = target.client(from).await?;
            loop {
                post(&mut client, path, body.as_bytes()).await?;
            }
        }
    })
}

/// The same, with a new connection for each, which is closed before the answer.
pub(crate) fn abandons(name: impl Into<String>, count: usize, path: &'static str, body: String) -> Attack {
    let body = Arc::new(body);
    attack(name, count, move |target, from| {
        let body = body.clone();
        async move {
            let mut client = target.client(from).await?;
            client.write_all(head(path, body.len()).as_bytes()).await?;
            client.write_all(body.as_bytes()).await?;
            client.flush().await?;
            sleep(Duration::from_millis(20)).await;
            Ok(())
        }
    })
}

/// The review of an UPDATE from one object to another one.
pub(crate) fn update(kind: &str, old: &str, new: &str) -> String {
    let (group, kind) = kind.split_once('/').unwrap_or(("", kind));
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"UPDATE","namespace":"istio-system",
        "name":"n","kind":{{"group":"{group}","version":"v1","kind":"{kind}"}},"object":{new},"oldObject":{old}}}}}"#
    )
}

/// A review of about so many bytes, most of which are a repeated unit.
pub(crate) fn filled(unit: &str, bytes: usize) -> String {
    let list = format!("[{}0]", unit.repeat(bytes / unit.len()));
    update("Secret", "null", &format!(r#"{{"data":{{"a":{list}}}}}"#))
}

/// A Secret with as many keys as etcd stores in one: 9 bytes for each in protobuf.
pub(crate) fn keys() -> String {
    let digits: Vec<_> = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain("-_.".chars()).collect();
    let key = |n: usize| [n, n / 65, n / 65 / 65].map(|n| digits[n % 65]).iter().collect::<String>();
    let all: Vec<_> = (0..(1536 << 10) / 9).map(|n| format!(r#""{}":"""#, key(n))).collect();
    format!(r#"{{"metadata":{{"namespace":"istio-system","name":"n"}},"data":{{{}}}}}"#, all.join(","))
}

/// An honest review: an update of a Secret with a chain and a key.
pub(crate) fn honest() -> String {
    let made = rcgen::generate_simple_self_signed(["gateway.example".to_owned()]).unwrap();
    let [certificate, key] = [made.cert.pem(), made.signing_key.serialize_pem()].map(|pem| base64(pem.as_bytes()));
    let labels = r#"{"trustspan.dev/guard":"enabled"}"#;
    let secret = format!(
        r#"{{"metadata":{{"namespace":"istio-system","name":"n","labels":{labels}}},"type":"kubernetes.io/tls","data":{{"tls.crt":"{certificate}","tls.key":"{key}"}}}}"#
    );
    update("Secret", &secret, &secret)
}

pub(crate) fn base64(bytes: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}
