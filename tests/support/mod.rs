//! A running `trustspan serve`, and a small HTTP/1.1 client that can also send invalid requests.
#![allow(dead_code)] // each test binary uses its part

pub(crate) mod flood;

use std::cell::RefCell;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than any step takes on a loaded machine, so that a hang fails only the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of memory that are searched at a time, and the most that a text has.
const PIECE: usize = 1 << 20;
pub(crate) const OVERLAP: usize = 64;

/// A `trustspan serve -f` on free ports. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    https: SocketAddr,
    metrics: SocketAddr,
    roots: RefCell<RootCertStore>,
    _dir: Option<TempDir>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) closes: bool,
    pub(crate) body: String,
}

/// A connection that verifies the server's certificate for `localhost`.
pub(crate) struct Client(StreamOwned<ClientConnection, TcpStream>);

/// The server, or the one of `TRUSTSPAN_CONTROL`, for comparisons.
fn serve() -> Command {
    let program = std::env::var_os("TRUSTSPAN_CONTROL").unwrap_or_else(|| env!("CARGO_BIN_EXE_trustspan").into());
    let mut command = Command::new(program);
    command.arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Without this variable the server never uses a cluster, even if the tests run in a pod.
    command.env_remove("KUBERNETES_SERVICE_HOST");
    // As in the manifests.
    command.env("MIMALLOC_PURGE_DELAY", "0");
    command
}

/// Runs `trustspan serve` until it exits: exit code and error output.
pub(crate) fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = serve().args(args).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Waits for a condition.
pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Server {
    /// Starts on an empty directory of manifests, with further flags. Unless `--cert-dir` is among them, clients trust
    /// the CA that the server generates.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(&[], args)
    }

    /// The same with copies of these manifests.
    pub(crate) fn start_with(files: &[&str], args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (manifests, certs) = (dir.path().join("manifests"), dir.path().join("certs"));
        fs::create_dir(&manifests).unwrap();
        for file in files {
            fs::copy(file, manifests.join(Path::new(file).file_name().unwrap())).unwrap();
        }
        let mut all = vec!["-f", manifests.to_str().unwrap()];
        if !args.contains(&"--cert-dir") {
            all.extend(["--cert-dir", certs.to_str().unwrap()]);
        }
        all.extend(args);
        let mut server = Self::spawn(&all);
        if let Ok(ca) = fs::read_to_string(certs.join("ca.crt")) {
            server.trust(&ca);
        }
        server._dir = Some(dir);
        server
    }

    /// Starts with these flags on free ports, and waits until the server listens.
    pub(crate) fn spawn(args: &[&str]) -> Self {
        let mut command = serve();
        command.args(["--port", "0", "--metrics-port", "0", "--log-format", "json"]).args(args);
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut address = |scheme: &str| -> SocketAddr {
            let begin = format!("listening on {scheme}://");
            loop {
                let line = log.next().expect("the server ended before it listened").unwrap();
                let line: Value = serde_json::from_str(&line).unwrap();
                let message = line["message"].as_str().unwrap_or_default();
                if let Some((address, _)) = message.strip_prefix(&begin).and_then(|rest| rest.split_once(": ")) {
                    return address.parse().unwrap();
                }
            }
        };
        let (https, metrics) = (address("https"), address("http"));
        // The log is read on, because a full pipe would block the server.
        std::thread::spawn(move || log.for_each(drop));
        Self { child, https, metrics, roots: RefCell::new(RootCertStore::empty()), _dir: None }
    }

    /// From now on clients trust only this certificate.
    pub(crate) fn trust(&self, pem: &str) {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        *self.roots.borrow_mut() = roots;
    }

    pub(crate) fn port(&self) -> u16 {
        self.https.port()
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        self.roots.borrow().clone()
    }

    /// A field of `/proc/PID/status` in bytes, such as `VmHWM`: the most memory that was resident.
    pub(crate) fn memory(&self, field: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib: usize = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap();
        kib * 1024
    }

    /// Lets the process forget its peak of resident memory.
    /// How often each text is in the process's memory. A text has at most [`OVERLAP`] bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn copies<const N: usize>(&self, texts: &[&[u8]; N]) -> [usize; N] {
        let process = format!("/proc/{}", self.child.id());
        let maps = fs::read_to_string(format!("{process}/maps")).unwrap();
        let memory = fs::File::open(format!("{process}/mem")).unwrap();
        let finders = texts.map(memchr::memmem::Finder::new);
        let (mut counts, mut bytes) = ([0; N], vec![0; PIECE + OVERLAP - 1]);
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let (begin, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
            let [begin, end] = [begin, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            for at in (begin..end).step_by(PIECE) {
                // A region may be gone by now. The last bytes are read again with the next piece.
                let read = memory.read_at(&mut bytes, at).unwrap_or_default();
                for (count, finder) in counts.iter_mut().zip(&finders) {
                    *count += finder.find_iter(&bytes[..read]).filter(|found| *found < PIECE).count();
                }
            }
        }
        counts
    }

    pub(crate) fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    /// A TCP connection to the HTTPS port, without TLS.
    pub(crate) fn connect(&self) -> TcpStream {
        self.try_connect().unwrap()
    }

    pub(crate) fn try_connect(&self) -> io::Result<TcpStream> {
        connect(self.https)
    }

    /// A connection after the TLS handshake.
    pub(crate) fn client(&self) -> Client {
        self.try_client().unwrap()
    }

    pub(crate) fn try_client(&self) -> io::Result<Client> {
        self.try_client_with(None)
    }

    /// The same with a client certificate and its key, in PEM.
    pub(crate) fn try_client_with(&self, identity: Option<(&str, &str)>) -> io::Result<Client> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots.borrow().clone());
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = self.try_connect()?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Client(StreamOwned::new(tls, stream)))
    }

    /// GET on the metrics port.
    pub(crate) fn plain(&self, path: &str) -> Answer {
        let mut stream = connect(self.metrics).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        read(&mut stream).unwrap()
    }

    /// Sends a signal, by name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Waits for the exit of the process.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "the server did not end within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    /// Sends these bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
        self.0.flush().unwrap();
    }

    /// Sends these bytes, or a part of them if the server responds and closes the connection before it has read everything.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).and_then(|()| self.0.flush());
    }

    /// Reads the next response; `None` if the server closes the connection instead.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        read(&mut self.0)
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
        self.answer().expect("the connection was closed without an answer")
    }

    pub(crate) fn post(&mut self, path: &str, content_type: &str, body: &[u8]) -> Answer {
        let mut head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", body.len());
        if !content_type.is_empty() {
            head += &format!("Content-Type: {content_type}\r\n");
        }
        self.send((head + "\r\n").as_bytes());
        self.try_send(body);
        self.answer().expect("the connection was closed without an answer")
    }

    /// The status of a request; `None` if the server closes the connection instead, such as after a client certificate that it rejects.
    pub(crate) fn try_get(&mut self, path: &str) -> Option<u16> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.write_all(head.as_bytes()).and_then(|()| self.0.flush()).ok()?;
        Some(self.answer()?.status)
    }

    pub(crate) fn alpn(&self) -> Option<Vec<u8>> {
        self.0.conn.alpn_protocol().map(<[u8]>::to_vec)
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads a response with a Content-Length. `None` at the end of the stream; a timeout fails the test.
fn read(stream: &mut impl Read) -> Option<Answer> {
    let mut byte = || -> Option<u8> {
        let mut one = [0];
        match stream.read(&mut one) {
            Ok(1) => Some(one[0]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => panic!("no answer within {PATIENCE:?}"),
            _ => None,
        }
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(byte()?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let field = |name: &str| head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned));
    let length: usize = field("content-length").map_or(0, |n| n.parse().unwrap());
    let body = (0..length).map(|_| byte()).collect::<Option<Vec<u8>>>()?;
    Some(Answer {
        status: head.split(' ').nth(1)?.parse().unwrap(),
        closes: field("connection").is_some_and(|v| v == "close"),
        body: String::from_utf8(body).unwrap(),
    })
}
