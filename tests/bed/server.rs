//! The real `trustspan serve`, outside of the cluster.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{
    assets::trustspan,
    cluster::Cluster,
    pki::Authority,
    process::Process,
    users::User,
    wait::{free_port, wait_for},
};

/// Start-up includes the first list of every watch.
const READY: Duration = Duration::from_secs(60);
/// Longer than any drain period of trustspan.
const DRAINED: Duration = Duration::from_secs(60);

/// Where the server reads its GatewaySecrets from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The cluster, with this user's rights.
    Cluster(User),
    /// A directory of manifests.
    Manifests(PathBuf),
}

/// A webhook server on loopback. Dropping it kills it.
pub(crate) struct Server<'c> {
    cluster: &'c Cluster,
    source: Source,
    extra: Vec<String>,
    authority: Authority,
    name: String,
    cert_dir: PathBuf,
    port: u16,
    metrics_port: u16,
    process: Option<Process>,
}

impl<'c> Server<'c> {
    /// Starts a server with a separate certificate and waits until it is ready.
    pub(crate) fn start(cluster: &'c Cluster, source: Source) -> Result<Self> {
        Self::start_with(cluster, source, &[])
    }

    /// The same with more flags of `trustspan serve`, such as `--drain-delay=0s`.
    pub(crate) fn start_with(cluster: &'c Cluster, source: Source, flags: &[&str]) -> Result<Self> {
        let cert_dir = cluster.temp_dir("serving-cert")?;
        let authority = Authority::new("trustspan webhook under test")?;
        authority.issue_to(&cert_dir)?;
        let name = format!("trustspan-{}", cluster.unique());
        let (port, metrics_port) = (free_port()?, free_port()?);
        let extra = flags.iter().map(|&flag| flag.to_owned()).collect();
        let mut server = Self { cluster, source, extra, authority, name, cert_dir, port, metrics_port, process: None };
        server.start_again()?;
        Ok(server)
    }

    /// Starts a stopped or killed server on the ports that it had, and waits until it is ready.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "{} runs already", self.name);
        let mut args: Vec<String> = ["serve", "--bind-address", "127.0.0.1"].map(str::to_owned).into();
        let (flag, path) = match &self.source {
            Source::Cluster(user) => ("--kubeconfig", self.cluster.kubeconfig(*user)),
            Source::Manifests(dir) => ("-f", dir.clone()),
        };
        args.extend([flag.to_owned(), path.display().to_string()]);
        args.extend(["--port".to_owned(), self.port.to_string()]);
        args.extend(["--metrics-port".to_owned(), self.metrics_port.to_string()]);
        args.extend(["--cert-dir".to_owned(), self.cert_dir.display().to_string()]);
        args.extend(self.extra.iter().cloned());
        let env = [("RUST_LOG", "info"), ("RUST_BACKTRACE", "1")];
        self.process = Some(self.cluster.spawn(&self.name, &trustspan(), args, &env)?);
        self.wait_ready()
    }

    /// Waits for `/readyz`.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let (what, metrics_port) = (format!("{} to be ready", self.name), self.metrics_port);
        let process = self.process.as_mut().context("the server does not run")?;
        let mut exited = None;
        let ready = wait_for(&what, READY, || {
            exited = process.exited()?;
            Ok(exited.is_some() || http_get(metrics_port, "/readyz")?.0 == 200)
        });
        ready.with_context(|| process.log_tail(30))?;
        ensure!(exited.is_none(), "{} exited with {exited:?} while starting\n{}", self.name, process.log_tail(30));
        Ok(())
    }

    /// SIGTERM, as the kubelet sends it; returns the exit status once it has drained.
    pub(crate) fn stop(&mut self) -> Result<i32> {
        let mut process = self.process.take().context("the server does not run")?;
        process.stop(DRAINED).with_context(|| process.log_tail(30))
    }

    /// Sends SIGTERM without waiting, for tests of what happens while the server drains.
    /// [`wait_stopped`](Self::wait_stopped) waits for its exit.
    pub(crate) fn begin_stop(&mut self) -> Result<()> {
        self.process.as_mut().context("the server does not run")?.signal("TERM")
    }

    /// Waits for the exit status after [`begin_stop`](Self::begin_stop).
    pub(crate) fn wait_stopped(&mut self) -> Result<i32> {
        let mut process = self.process.take().context("the server does not run")?;
        process.wait(DRAINED).with_context(|| process.log_tail(30))
    }

    /// SIGKILL: a crash.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Stops and starts it.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// SIGSTOP: connections are accepted by the kernel and never answered; watches stall.
    pub(crate) fn pause(&mut self) -> Result<()> {
        self.process.as_mut().context("the server does not run")?.signal("STOP")
    }

    /// Sends SIGCONT after [`pause`](Self::pause).
    pub(crate) fn resume(&mut self) -> Result<()> {
        self.process.as_mut().context("the server does not run")?.signal("CONT")
    }

    /// The port of `/metrics`.
    pub(crate) fn metrics_port(&self) -> u16 {
        self.metrics_port
    }

    /// The URL to which the API server or a test posts reviews.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The CA that verifies the server, in PEM.
    pub(crate) fn ca_bundle(&self) -> String {
        self.authority.pem()
    }

    /// The directory of `tls.crt` and `tls.key`.
    pub(crate) fn cert_dir(&self) -> &Path {
        &self.cert_dir
    }

    /// Writes a new serving certificate of the same CA, to test that it is reloaded.
    pub(crate) fn renew_certificate(&self) -> Result<()> {
        self.authority.issue_to(&self.cert_dir)
    }

    /// Posts a review directly to the server, with curl; returns the body of the response.
    pub(crate) fn post(&self, path: &str, review: &str) -> Result<String> {
        let curl = Command::new("curl")
            .args(["--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--cacert"])
            .arg(self.cert_dir.join("ca.crt"))
            .args(["--header", "Content-Type: application/json", "--data", review, &self.url(path)])
            .output()
            .context("starting curl")?;
        let body = String::from_utf8_lossy(&curl.stdout).into_owned();
        ensure!(curl.status.success(), "{}{body}", String::from_utf8_lossy(&curl.stderr));
        Ok(body)
    }

    /// Its process id; none when it does not run.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// The text of `/metrics`.
    pub(crate) fn metrics(&self) -> Result<String> {
        let (status, body) = http_get(self.metrics_port, "/metrics")?;
        ensure!(status == 200, "/metrics: expected 200, saw {status}\n{body}");
        self.process.iter().try_for_each(|process| process.log_metrics(&body))?;
        Ok(body)
    }

    /// Status code of a path on the metrics port, such as `/livez`.
    pub(crate) fn status_of(&self, path: &str) -> Result<u16> {
        Ok(http_get(self.metrics_port, path)?.0)
    }

    /// Status code and body of a path on the metrics port.
    pub(crate) fn request(&self, path: &str) -> Result<(u16, String)> {
        http_get(self.metrics_port, path)
    }

    /// The same on the HTTPS port, by curl.
    pub(crate) fn https_request(&self, path: &str) -> Result<(u16, String)> {
        let curl = Command::new("curl")
            .args(["--silent", "--show-error", "--noproxy", "*", "--write-out", "\\n%{http_code}", "--cacert"])
            .arg(self.cert_dir.join("ca.crt"))
            .arg(self.url(path))
            .output()
            .context("starting curl")?;
        ensure!(curl.status.success(), "{}", String::from_utf8_lossy(&curl.stderr));
        let text = String::from_utf8_lossy(&curl.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').context("no status code")?;
        Ok((code.parse()?, body.to_owned()))
    }

    /// The complete log; empty when the server does not run.
    pub(crate) fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }
}

/// A plain GET with HTTP/1.0, so that the body ends when the server closes the connection.
pub(crate) fn http_get(port: u16, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("half an HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no HTTP status")?;
    Ok((status, body.to_owned()))
}
