//! One real Envoy with many gateways in it: a listener whose filter chains are told apart by SNI, each with secrets of its
//! own, brought by file-based SDS as istiod brings them by gRPC.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::testbed::{Process, Scratch, free_port, wait_for};

/// Longer than a hundred updates take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gateways with trust anchors of their own; a batch of cases is as big. Envoy opens an inotify instance for each secret,
/// and Linux allows a user 128 of them.
pub(crate) const TRUST_SLOTS: usize = 48;
/// Gateways with a serving pair of their own.
pub(crate) const PAIR_SLOTS: usize = 12;

/// What Envoy said of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Accepted,
    Rejected,
}

/// A secret as istiod would send it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Trust anchors, and revocation lists.
    Trust { ca: Vec<u8>, crl: Option<Vec<u8>> },
    /// A serving pair.
    Pair { chain: Vec<u8>, key: Vec<u8> },
}

/// The running Envoy.
pub(crate) struct Proxy {
    address: SocketAddr,
    admin: SocketAddr,
    /// What each secret was last replaced with.
    last: BTreeMap<String, Content>,
    baseline: (Content, Content),
    process: Process,
    // Last: it waits for the process before it removes its files.
    scratch: Scratch,
}

/// The secret's name, and the host whose gateway uses it: trust anchors.
pub(crate) fn trust_slot(number: usize) -> String {
    format!("trust-{number}.test")
}

/// The same of a serving pair.
pub(crate) fn pair_slot(number: usize) -> String {
    format!("pair-{number}.test")
}

impl Proxy {
    /// Starts Envoy; all gateways begin with the same sound secrets.
    pub(crate) fn start(trust: Content, pair: Content) -> Result<Self> {
        let binary = binary()?;
        let scratch = Scratch::new()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut last = BTreeMap::new();
        last.insert("serving".to_owned(), pair.clone());
        last.extend((0..TRUST_SLOTS).map(|number| (trust_slot(number), trust.clone())));
        last.extend((0..PAIR_SLOTS).map(|number| (pair_slot(number), pair.clone())));
        fs::create_dir(scratch.join("sds"))?;
        for (name, content) in &last {
            write(scratch.path(), name, content)?;
        }
        let config = scratch.join("bootstrap.json");
        fs::write(&config, bootstrap(scratch.path(), address, admin).to_string())?;
        let args = ["--disable-hot-restart", "--concurrency", "2", "--log-level", "error", "-c"];
        let args = args.into_iter().map(Into::into).chain([config.into_os_string()]);
        let process = scratch.spawn("envoy", &binary, args, &[])?;
        let mut proxy = Self { address, admin, last, baseline: (trust, pair), process, scratch };
        let ready = wait_for("Envoy to be ready", PATIENCE, || Ok(proxy.has_exited()? || proxy.is_ready()?));
        if ready.is_err() || proxy.has_exited()? {
            // What ended it stands before its stack trace.
            let log: Vec<_> = proxy.process.log().lines().take(20).map(str::to_owned).collect();
            bail!("{}: {ready:?}", log.join("\n"));
        }
        Ok(proxy)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the secrets, all at once, and waits for Envoy's word on each.
    pub(crate) fn load(&mut self, secrets: &[(String, Content)]) -> Result<Vec<Update>> {
        // Envoy takes an update with the content of the last one, even a rejected one, for no change and accepts it.
        let same: Vec<_> = secrets.iter().filter(|(name, content)| self.last.get(name) == Some(content)).collect();
        let reset: Vec<_> = same
            .into_iter()
            .map(|(name, content)| {
                let (trust, pair) = self.baseline.clone();
                (name.clone(), if matches!(content, Content::Trust { .. }) { trust } else { pair })
            })
            .collect();
        if !reset.is_empty() {
            self.replace(&reset)?;
        }
        self.replace(secrets)
    }

    fn replace(&mut self, secrets: &[(String, Content)]) -> Result<Vec<Update>> {
        let before = self.updates()?;
        for (name, content) in secrets {
            write(self.scratch.path(), name, content)?;
            self.last.insert(name.clone(), content.clone());
        }
        let mut after = BTreeMap::new();
        let waited = wait_for(&format!("{} updates", secrets.len()), PATIENCE, || {
            after = self.updates()?;
            let failed =
                secrets.iter().find(|(name, _)| after.get(name).is_some_and(|u| u.failed > before[name].failed));
            if let Some((name, _)) = failed {
                bail!("Envoy could not read the file of {name}");
            }
            Ok(secrets.iter().all(|(name, _)| after.get(name).is_some_and(|u| u.done() > before[name].done())))
        });
        waited.with_context(|| self.process.log_tail(20))?;
        secrets
            .iter()
            .map(|(name, _)| {
                match (after[name].accepted - before[name].accepted, after[name].rejected - before[name].rejected) {
                    (1, 0) => Ok(Update::Accepted),
                    (0, 1) => Ok(Update::Rejected),
                    (accepted, rejected) => bail!("{name}: one update, {accepted} times accepted, {rejected} rejected"),
                }
            })
            .collect()
    }

    fn has_exited(&mut self) -> Result<bool> {
        Ok(self.process.exited()?.is_some())
    }

    fn is_ready(&self) -> Result<bool> {
        Ok(self.get("/ready")?.trim() == "LIVE")
    }

    fn updates(&self) -> Result<BTreeMap<String, Updates>> {
        let body = self.get("/stats?format=json&filter=sds.*update_(success|rejected|failure)$")?;
        let stats: Value = serde_json::from_str(&body).context("Envoy's stats")?;
        let mut updates: BTreeMap<String, Updates> = BTreeMap::new();
        for stat in stats["stats"].as_array().into_iter().flatten() {
            let (Some(name), Some(value)) = (stat["name"].as_str(), stat["value"].as_u64()) else { continue };
            let Some((_, name)) = name.split_once("sds.") else { continue };
            let Some((secret, counter)) = name.rsplit_once('.') else { continue };
            let of = updates.entry(secret.to_owned()).or_default();
            match counter {
                "update_success" => of.accepted = value,
                "update_rejected" => of.rejected = value,
                _ => of.failed = value,
            }
        }
        Ok(updates)
    }

    /// GET on the admin port.
    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.admin)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no head in Envoy's answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "GET {path}: {}", head.lines().next().unwrap_or_default());
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            dechunk(body)
        } else {
            Ok(body.to_owned())
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Updates {
    accepted: u64,
    rejected: u64,
    failed: u64,
}

impl Updates {
    fn done(self) -> u64 {
        self.accepted + self.rejected
    }
}

fn dechunk(mut body: &str) -> Result<String> {
    let mut text = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").context("no chunk size")?;
        let size = usize::from_str_radix(size, 16)?;
        if size == 0 {
            return Ok(text);
        }
        text += rest.get(..size).context("a chunk is cut short")?;
        body = rest[size..].strip_prefix("\r\n").ok_or_else(|| anyhow!("no line end after a chunk"))?;
    }
}

/// `tests/bed/envoy-setup` is the one place that knows; it takes no time when Envoy is in the cache.
fn binary() -> Result<PathBuf> {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bed/envoy-setup");
    let shell = r#"set -e; printed=$("$1"); eval "$printed"; printf '%s' "$TRUSTSPAN_BED_ENVOY""#;
    let output = Command::new("bash")
        .args(["-c", shell, "bash"])
        .arg(&setup)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting bash")?;
    ensure!(output.status.success(), "tests/bed/envoy-setup: {}", output.status);
    Ok(PathBuf::from(String::from_utf8(output.stdout)?))
}

/// By rename: Envoy watches for that, and never reads half a file.
fn write(scratch: &Path, name: &str, content: &Content) -> Result<()> {
    let inline = |bytes: &[u8]| json!({ "inline_bytes": STANDARD.encode(bytes) });
    let mut secret = match content {
        Content::Trust { ca, crl: None } => json!({ "validation_context": { "trusted_ca": inline(ca) } }),
        Content::Trust { ca, crl: Some(crl) } => {
            json!({ "validation_context": { "trusted_ca": inline(ca), "crl": inline(crl) } })
        }
        Content::Pair { chain, key } => {
            json!({ "tls_certificate": { "certificate_chain": inline(chain), "private_key": inline(key) } })
        }
    };
    secret["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret".into();
    secret["name"] = name.into();
    let unnamed = scratch.join("unnamed");
    fs::write(&unnamed, json!({ "resources": [secret] }).to_string())?;
    Ok(fs::rename(unnamed, file(scratch, name))?)
}

fn file(scratch: &Path, name: &str) -> PathBuf {
    scratch.join("sds").join(format!("{name}.json"))
}

fn bootstrap(scratch: &Path, address: SocketAddr, admin: SocketAddr) -> Value {
    let at = |address: SocketAddr| json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } });
    let sds = |name: &str| {
        json!({
            "name": name,
            "sds_config": { "path_config_source": { "path": file(scratch, name) }, "resource_api_version": "V3" },
        })
    };
    let chain = |host: &str, tls: Value| {
        json!({
            "filter_chain_match": { "server_names": [host] },
            "transport_socket": { "name": "tls", "typed_config": tls },
            "filters": [{ "name": "http", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "http",
                "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [
                    { "match": { "prefix": "/" }, "direct_response": { "status": 200 } },
                ] }] },
                "http_filters": [{ "name": "router", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                } }],
            } }],
        })
    };
    let context = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    // What istiod makes of mode MUTUAL: the validation context combined, the client certificate required.
    let mutual = |number| {
        let host = trust_slot(number);
        let tls = json!({
            "@type": context,
            "common_tls_context": {
                "tls_certificate_sds_secret_configs": [sds("serving")],
                "combined_validation_context": {
                    "default_validation_context": {},
                    "validation_context_sds_secret_config": sds(&host),
                },
            },
            "require_client_certificate": true,
        });
        chain(&host, tls)
    };
    let simple = |number| {
        let host = pair_slot(number);
        let tls = json!({
            "@type": context,
            "common_tls_context": { "tls_certificate_sds_secret_configs": [sds(&host)] },
        });
        chain(&host, tls)
    };
    let chains: Vec<_> = (0..TRUST_SLOTS).map(mutual).chain((0..PAIR_SLOTS).map(simple)).collect();
    json!({
        "node": { "id": "gateway", "cluster": "gateway" },
        "admin": { "address": at(admin) },
        "static_resources": { "listeners": [{
            "name": "gateway",
            "address": at(address),
            "listener_filters": [{ "name": "tls_inspector", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            } }],
            "filter_chains": chains,
        }] },
    })
}
