//! Envoy as a client, and servers that present chains to it.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::aws_lc_rs,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use serde_json::{Value, json};

use crate::testbed::{Envoy, Scratch};

/// Longer than any handshake on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The most servers of one [`Client`]: each has a cluster in Envoy.
pub(crate) const BATCH: usize = 1_200;

/// What a client of a server trusts, and what that server presents.
pub(crate) struct Upstream<'a> {
    pub(crate) ca: &'a [u8],
    pub(crate) crl: Option<&'a [u8]>,
    pub(crate) hosts: &'a [String],
    pub(crate) identity: Arc<CertifiedKey>,
}

/// An Envoy that connects to servers.
pub(crate) struct Client {
    envoy: Envoy,
    // Declared last, so that it is dropped last: Envoy must end before its files are removed.
    _scratch: Scratch,
}

impl Client {
    /// Starts the servers, and an Envoy with a cluster for each.
    pub(crate) fn start(upstreams: &[Upstream<'_>]) -> Result<Self> {
        let keys = upstreams.iter().enumerate().map(|(number, upstream)| (sni(number), Arc::clone(&upstream.identity)));
        let address = serve(Names(keys.collect()))?;
        let scratch = Scratch::new()?;
        let envoy = Envoy::start_from(&scratch, "client", |listener| bootstrap(listener, address, upstreams))?;
        Ok(Self { envoy, _scratch: scratch })
    }

    /// Makes a request that Envoy forwards to a server. Returns Envoy's error message if it cannot.
    pub(crate) fn ask(&self, number: usize) -> Result<Result<(), String>> {
        let mut stream = TcpStream::connect(self.envoy.address())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /{number}/ HTTP/1.1\r\nHost: servers\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        match text.split(' ').nth(1) {
            Some("200") => Ok(Ok(())),
            Some("503") => Ok(Err(text.lines().last().unwrap_or_default().to_owned())),
            _ => bail!("expected 200 or 503, saw {text}"),
        }
    }
}

/// The SNI of a server.
fn sni(number: usize) -> String {
    format!("server-{number}.test")
}

/// Selects the pair of a server by its SNI.
#[derive(Debug)]
struct Names(BTreeMap<String, Arc<CertifiedKey>>);

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get(hello.server_name()?).cloned()
    }
}

/// Starts all servers on one port. They end with this process.
fn serve(names: Names) -> Result<SocketAddr> {
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(names));
    let (config, listener) = (Arc::new(config), TcpListener::bind(("127.0.0.1", 0))?);
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            // A client that refuses the server closes the connection, which is not an error.
            thread::spawn(move || respond(stream, config).ok());
        }
    });
    Ok(address)
}

fn respond(stream: TcpStream, config: Arc<ServerConfig>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut tls = StreamOwned::new(ServerConnection::new(config)?, stream);
    tls.read_exact(&mut [0])?;
    tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    Ok(tls.flush()?)
}

fn bootstrap(listener: &Value, servers: SocketAddr, upstreams: &[Upstream<'_>]) -> Value {
    let at = json!({ "socket_address": { "address": servers.ip().to_string(), "port_value": servers.port() } });
    let inline = |bytes: &[u8]| json!({ "inline_bytes": STANDARD.encode(bytes) });
    let cluster = |(number, upstream): (usize, &Upstream<'_>)| {
        let mut trust = json!({ "trusted_ca": inline(upstream.ca) });
        if let Some(crl) = upstream.crl {
            trust["crl"] = inline(crl);
        }
        let matcher = |host: &String| {
            let kind = if host.parse::<IpAddr>().is_ok() { "IP_ADDRESS" } else { "DNS" };
            json!({ "san_type": kind, "matcher": { "exact": host } })
        };
        trust["match_typed_subject_alt_names"] = upstream.hosts.iter().map(matcher).collect();
        json!({
            "name": sni(number), "type": "STATIC", "connect_timeout": "20s",
            "load_assignment": { "cluster_name": sni(number), "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": at } }] }] },
            // The TLS versions that istiod configures. By default, Envoy as a client does not use TLS 1.3.
            "transport_socket": { "name": "tls", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": sni(number),
                "common_tls_context": { "validation_context": trust, "tls_params": { "tls_maximum_protocol_version": "TLSv1_3" } },
            } },
        })
    };
    let clusters: Vec<_> = upstreams.iter().enumerate().map(cluster).collect();
    let route = |number| json!({ "match": { "prefix": format!("/{number}/") }, "route": { "cluster": sni(number) } });
    let routes: Vec<_> = (0..upstreams.len()).map(route).collect();
    json!({
        "listeners": [{ "name": "client", "address": listener, "filter_chains": [{ "filters": [{ "name": "http", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "http",
            "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }] },
            // By default the text of a response does not say why a handshake failed.
            "local_reply_config": { "body_format": {
                "text_format_source": { "inline_string": "%UPSTREAM_TRANSPORT_FAILURE_REASON%" },
            } },
            "http_filters": [{ "name": "router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            } }],
        } }] }] }],
        "clusters": clusters,
    })
}
