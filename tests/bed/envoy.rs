//! The real Envoy. It reads its secrets from files, in the form in which istiod sends them (SDS). One listener has a
//! filter chain for each gateway, selected by SNI.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    assets::exported,
    process::{Process, Scratch},
    wait::{free_port, wait_for},
};

/// Longer than a hundred updates take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A secret as istiod would send it. Has no `Debug`: it may hold a private key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Trust anchors, and revocation lists.
    Trust { ca: Vec<u8>, crl: Option<Vec<u8>> },
    /// A serving pair.
    Pair { chain: Vec<u8>, key: Vec<u8> },
}

/// A filter chain, with the names of its secrets. Filter chains may share secrets.
pub(crate) struct Gateway {
    /// The SNI that selects it.
    pub(crate) host: String,
    /// The serving pair.
    pub(crate) pair: String,
    /// The trust anchors. If set, a client certificate is required, as in Istio's mode MUTUAL.
    pub(crate) trust: Option<String>,
}

/// The certificates that an Envoy serves and trusts now, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Active {
    pub(crate) chain: Vec<u8>,
    pub(crate) ca: Vec<u8>,
}

/// The secrets of an Envoy: the files that it reads, and its statistics about them.
#[derive(Clone)]
pub(crate) struct Secrets {
    dir: PathBuf,
    admin: SocketAddr,
}

impl Secrets {
    /// Replaces a secret without waiting for Envoy to load it. The file is renamed into place: Envoy watches for that,
    /// and never reads half a file.
    pub(crate) fn replace(&self, name: &str, content: &Content) -> Result<()> {
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
        let unnamed = self.dir.join("unnamed");
        fs::write(&unnamed, json!({ "resources": [secret] }).to_string())?;
        Ok(fs::rename(unnamed, self.path(name))?)
    }

    /// The number of updates of each secret since Envoy started.
    pub(crate) fn updates(&self) -> Result<BTreeMap<String, Updates>> {
        updates(self.admin)
    }

    /// The serving pair and the CAs with these names, as Envoy has accepted them. They are found by name, since a
    /// listener that drains keeps its earlier secrets.
    pub(crate) fn active(&self, pair: &str, ca: &str) -> Result<Active> {
        let dump: Value = serde_json::from_str(&get(self.admin, "/config_dump?resource=dynamic_active_secrets")?)?;
        let secrets: Vec<_> =
            dump["configs"].as_array().into_iter().flatten().map(|config| &config["secret"]).collect();
        let inline = |name: &str, pointer| {
            let secret = secrets.iter().find(|secret| secret["name"] == name);
            let bytes = secret.and_then(|secret| secret.pointer(pointer)?["inline_bytes"].as_str());
            STANDARD.decode(bytes.unwrap_or_default())
        };
        Ok(Active {
            chain: inline(pair, "/tls_certificate/certificate_chain")?,
            ca: inline(ca, "/validation_context/trusted_ca")?,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join("sds").join(format!("{name}.json"))
    }
}

/// A running Envoy. Dropping it kills it. Its directory stays.
pub(crate) struct Envoy {
    secrets: Secrets,
    address: SocketAddr,
    process: Process,
}

impl Envoy {
    /// Starts Envoy with separate files in `scratch`, and waits until it is ready.
    pub(crate) fn start(
        scratch: &Scratch,
        name: &str,
        gateways: &[Gateway],
        contents: &BTreeMap<String, Content>,
    ) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let secrets = Secrets { dir: scratch.join(name), admin: SocketAddr::from(([127, 0, 0, 1], free_port()?)) };
        fs::create_dir_all(secrets.dir.join("sds"))?;
        for (secret, content) in contents {
            secrets.replace(secret, content)?;
        }
        let resources = listeners(&secrets, address, gateways);
        Self::run(scratch, name, secrets, address, of_files(&resources))
    }

    /// Starts Envoy with other static resources than gateways. `resources` gets the address of the listener.
    pub(crate) fn start_from(scratch: &Scratch, name: &str, resources: impl FnOnce(&Value) -> Value) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let secrets = Secrets { dir: scratch.join(name), admin: SocketAddr::from(([127, 0, 0, 1], free_port()?)) };
        fs::create_dir_all(&secrets.dir)?;
        Self::run(scratch, name, secrets, address, of_files(&resources(&at(address))))
    }

    /// Starts Envoy with a bootstrap for a control plane, which configures the listeners. Only the admin port is added.
    pub(crate) fn start_dynamic(scratch: &Scratch, name: &str, bootstrap: Value) -> Result<Self> {
        let admin = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let secrets = Secrets { dir: scratch.join(name), admin };
        fs::create_dir_all(&secrets.dir)?;
        Self::run(scratch, name, secrets, admin, bootstrap)
    }

    fn run(scratch: &Scratch, name: &str, secrets: Secrets, address: SocketAddr, mut bootstrap: Value) -> Result<Self> {
        let [binary] = exported("envoy-setup", &[], ["TRUSTSPAN_BED_ENVOY"])?;
        bootstrap["admin"] = json!({ "address": at(secrets.admin) });
        fs::write(secrets.dir.join("bootstrap.json"), bootstrap.to_string())?;
        let args = ["--disable-hot-restart", "--concurrency", "2", "--log-level", "error", "-c"];
        let args = args.into_iter().map(Into::into).chain([secrets.dir.join("bootstrap.json").into_os_string()]);
        let process = scratch.spawn(name, Path::new(&binary), args, &[])?;
        let mut envoy = Self { secrets, address, process };
        envoy.wait_ready()?;
        Ok(envoy)
    }

    /// Kills Envoy, and starts it again on the same ports with the secrets in its files.
    pub(crate) fn restart(&mut self, scratch: &Scratch) -> Result<()> {
        self.kill()?;
        self.start_again(scratch)
    }

    /// Kills Envoy; [`start_again`](Self::start_again) follows.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts a killed Envoy on the ports that it had.
    pub(crate) fn start_again(&mut self, scratch: &Scratch) -> Result<()> {
        self.process.start_again(scratch)?;
        self.wait_ready()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        self.process.log_tail(20)
    }

    /// Its secrets.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    fn wait_ready(&mut self) -> Result<()> {
        let ready = wait_for("Envoy to be ready", PATIENCE, || Ok(self.has_exited()? || self.is_ready()?));
        if ready.is_err() || self.has_exited()? {
            // The reason is logged before the stack trace.
            let log: Vec<_> = self.process.log().lines().take(20).map(str::to_owned).collect();
            bail!("{}: {ready:?}", log.join("\n"));
        }
        Ok(())
    }

    fn has_exited(&mut self) -> Result<bool> {
        Ok(self.process.exited()?.is_some())
    }

    fn is_ready(&self) -> Result<bool> {
        Ok(get(self.secrets.admin, "/ready")?.trim() == "LIVE")
    }
}

/// How often Envoy accepted an update of a secret, rejected one, and could not read one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Updates {
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
}

impl Updates {
    pub(crate) fn done(self) -> u64 {
        self.accepted + self.rejected
    }
}

fn updates(admin: SocketAddr) -> Result<BTreeMap<String, Updates>> {
    let body = get(admin, "/stats?format=json&filter=sds.*update_(success|rejected|failure)$")?;
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
fn get(admin: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head in Envoy's answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "GET {path}: {}", head.lines().next().unwrap_or_default());
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") { dechunk(body) } else { Ok(body.to_owned()) }
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

/// A bootstrap with static resources, without a control plane.
fn of_files(resources: &Value) -> Value {
    json!({ "node": { "id": "gateway", "cluster": "gateway" }, "static_resources": resources })
}

pub(super) fn at(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn listeners(secrets: &Secrets, address: SocketAddr, gateways: &[Gateway]) -> Value {
    let sds = |name: &str| {
        json!({
            "name": name,
            "sds_config": { "path_config_source": { "path": secrets.path(name) }, "resource_api_version": "V3" },
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
    let tls = |gateway: &Gateway| {
        let mut tls = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": { "tls_certificate_sds_secret_configs": [sds(&gateway.pair)] },
        });
        // What istiod configures for mode MUTUAL: a combined validation context, and a required client certificate.
        if let Some(trust) = &gateway.trust {
            tls["common_tls_context"]["combined_validation_context"] = json!({
                "default_validation_context": {},
                "validation_context_sds_secret_config": sds(trust),
            });
            tls["require_client_certificate"] = true.into();
        }
        tls
    };
    let chains: Vec<_> = gateways.iter().map(|gateway| chain(&gateway.host, tls(gateway))).collect();
    json!({ "listeners": [{
        "name": "gateway",
        "address": at(address),
        "listener_filters": [{ "name": "tls_inspector", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        } }],
        "filter_chains": chains,
    }] })
}

/// The major and minor version of the Envoy of this run.
pub(crate) fn envoy_version() -> Result<(u16, u16)> {
    let [binary] = exported("envoy-setup", &[], ["TRUSTSPAN_BED_ENVOY"])?;
    let printed = Command::new(binary).arg("--version").output()?.stdout;
    let printed = String::from_utf8(printed)?;
    // Such as `/bin/envoy  version: 0ebfcfe5/1.38.3/Clean/RELEASE/BoringSSL`.
    let version = printed.rsplit(' ').next().and_then(|built| built.split('/').nth(1));
    let version = version.with_context(|| format!("expected a version, saw {printed}"))?;
    let (major, rest) = version.split_once('.').with_context(|| version.to_owned())?;
    let (minor, _) = rest.split_once('.').with_context(|| version.to_owned())?;
    Ok((major.parse()?, minor.parse()?))
}
