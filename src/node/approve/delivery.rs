//! Delivery of bootstrap kubeconfigs to other clusters (`spec.delivery`). Tenants choose the address and write the answers, so an attempt has bounds of
//! time and size, and only the status code of an answer is repeated.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Limited;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::client::{Body, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};
use zeroize::Zeroizing;

use super::attempts::Attempts;
use super::error::ApproveError;
use super::objects::{self, FIELD_MANAGER, check_owner};
use crate::api::BootstrapDelivery;
use crate::identity::IdentityName;

/// Time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of one answer. Only metadata are requested, which have less than 256 KiB of annotations and as much of managed fields.
const MAX_ANSWER: usize = 512 << 10;

/// A bootstrap kubeconfig that the approver has made, on its way to the other cluster.
pub(super) struct Delivery {
    /// The token in it.
    pub(super) token_id: String,
    kubeconfig: Zeroizing<String>,
    to: BootstrapDelivery,
    attempts: Attempts,
    /// Why the last attempt failed.
    failure: Option<String>,
    /// The attempt in progress. It ends when dropped.
    attempt: JoinSet<Result<(), String>>,
}

/// What has become of a delivery.
pub(super) enum Progress {
    Pending,
    Delivered,
}

impl Delivery {
    pub(super) fn new(token_id: &str, kubeconfig: Zeroizing<String>, to: BootstrapDelivery) -> Self {
        let (attempts, attempt) = (Attempts::default(), JoinSet::new());
        Self { token_id: token_id.to_owned(), kubeconfig, to, attempts, failure: None, attempt }
    }

    /// Whether an attempt is in progress.
    pub(super) fn is_in_progress(&self) -> bool {
        !self.attempt.is_empty()
    }

    /// Sends it to where the spec says now.
    pub(super) fn redirect(&mut self, to: &BootstrapDelivery) {
        if self.to != *to {
            *self = Self::new(&self.token_id, std::mem::take(&mut self.kubeconfig), to.clone());
        }
    }

    /// Takes the result of an attempt, if one has ended.
    ///
    /// # Errors
    /// Why the last attempt failed.
    pub(super) fn progress(&mut self) -> Result<Progress, ApproveError> {
        match self.attempt.try_join_next() {
            Some(Ok(Ok(()))) => return Ok(Progress::Delivered),
            Some(Ok(Err(failure))) => {
                self.attempts.record_failure();
                self.failure = Some(failure);
            }
            // It was aborted.
            Some(Err(_)) => self.attempts.record_failure(),
            None => {}
        }
        self.failure.clone().map_or(Ok(Progress::Pending), |failure| Err(ApproveError::NotDelivered(failure)))
    }

    /// Starts an attempt, if one is due and may be made. Calls a function at its end.
    pub(super) fn start(
        &mut self,
        client: &Client,
        identity: &IdentityName,
        allow_local: bool,
        at_end: impl FnOnce() + Send + 'static,
    ) {
        if self.is_in_progress() || !self.attempts.is_due() {
            return;
        }
        let (client, identity, to, kubeconfig) =
            (client.clone(), identity.clone(), self.to.clone(), self.kubeconfig.clone());
        self.attempt.spawn(async move {
            let delivered = timeout(TIMEOUT, deliver(&client, &identity, &to, &kubeconfig, allow_local)).await;
            at_end();
            delivered.unwrap_or_else(|_| Err(format!("The other cluster did not answer within {}s", TIMEOUT.as_secs())))
        });
    }
}

async fn deliver(
    client: &Client,
    identity: &IdentityName,
    to: &BootstrapDelivery,
    kubeconfig: &str,
    allow_local: bool,
) -> Result<(), String> {
    let source = &to.kubeconfig_secret_name;
    let api: Api<Secret> = Api::namespaced(client.clone(), &identity.namespace);
    let read = api.get_opt(source).await;
    let read = read.map_err(|error| ApproveError::api(format!("read Secret {source}"), error).to_string())?;
    let bytes = read.as_ref().and_then(|secret| secret.data.as_ref()?.get("kubeconfig"));
    let other = match bytes {
        Some(bytes) => connect(&bytes.0, allow_local).await,
        None => Err("has no key kubeconfig"),
    };
    let other = other.map_err(|error| format!("Secret {source} (spec.delivery) {error}"))?;

    let (namespace, name) = (&to.namespace, &to.secret_name);
    let api: Api<Secret> = Api::namespaced(other, namespace);
    let place = format!("Secret {namespace}/{name} of the other cluster");
    let stored = api.get_metadata_opt(name).await.map_err(|error| format!("Cannot read {place}: {}", said(&error)))?;
    if let Some(stored) = &stored {
        check_owner(&stored.metadata, name, identity).map_err(|error| error.to_string())?;
    }
    let secret = objects::bootstrap_secret(identity, None, (namespace, name), kubeconfig);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let written = api.patch_metadata(name, &params, &Patch::Apply(&secret)).await;
    written.map(drop).map_err(|error| format!("Cannot write {place}: {}", said(&error)))
}

/// What is repeated of an error of the other cluster: nothing that it has sent.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("it answered with HTTP status {}", status.code),
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => "its answer is not that of an API server".to_owned(),
        _ => format!(
            "it cannot be reached at an address that is allowed, its certificate is not verified by the kubeconfig, or its answer has more than {} KiB",
            MAX_ANSWER >> 10
        ),
    }
}

/// A client for the cluster of a kubeconfig, without proxies and redirects.
///
/// # Errors
/// What the kubeconfig must not have. The message contains nothing of the text.
async fn connect(text: &[u8], allow_local: bool) -> Result<Client, &'static str> {
    // Errors of kube could quote the text.
    const UNUSABLE: &str = "has no usable kubeconfig under the key kubeconfig";
    let text = std::str::from_utf8(text).map_err(|_| UNUSABLE)?;
    let parsed = Kubeconfig::from_yaml(text).map_err(|_| UNUSABLE)?;
    // Anything but embedded data would be read from, or run on, the approver's own machine.
    let is_embedded = parsed.auth_infos.iter().filter_map(|one| one.auth_info.as_ref()).all(|user| {
        user.exec.is_none()
            && user.auth_provider.is_none()
            && user.token_file.is_none()
            && user.client_certificate.is_none()
            && user.client_key.is_none()
    }) && parsed
        .clusters
        .iter()
        .filter_map(|one| one.cluster.as_ref())
        .all(|one| one.certificate_authority.is_none());
    if !is_embedded {
        return Err("has a kubeconfig that names files or commands; expected embedded credentials only");
    }
    let has_proxy = parsed.clusters.iter().filter_map(|one| one.cluster.as_ref()).any(|one| one.proxy_url.is_some());
    let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.map_err(|_| UNUSABLE)?;
    if config.cluster_url.scheme_str() != Some("https") || config.accept_invalid_certs || has_proxy {
        return Err(
            "has a kubeconfig with plain http, insecure-skip-tls-verify or a proxy; expected https and a verified certificate",
        );
    }
    let host = config.cluster_url.host().unwrap_or_default().trim_matches(['[', ']']);
    if !allow_local && host.parse().is_ok_and(is_local) {
        return Err(
            "has a kubeconfig with a loopback or link-local address; expected one that other machines have, too",
        );
    }
    let mut connector = HttpConnector::new_with_resolver(Resolver { system: GaiResolver::new(), allow_local });
    connector.enforce_http(false);
    let connector = config.rustls_https_connector_with_connector(connector).map_err(|_| UNUSABLE)?;
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(|_| UNUSABLE)?)
        .layer(config.extra_headers_layer().map_err(|_| UNUSABLE)?)
        .map_err(BoxError::from)
        .service(http)
        .map_response(|response| response.map(|body| Limited::new(body, MAX_ANSWER)));
    Ok(Client::new(service, config.default_namespace))
}

/// Whether an address is of the approver's own machine or link, where other services trust who can connect: loopback, link-local (cloud metadata),
/// unspecified and multicast ones. Private networks are where other clusters are.
fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast() || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast() || v6.is_unspecified(),
    }
}

/// Resolves names to addresses that are not local.
#[derive(Clone)]
struct Resolver {
    system: GaiResolver,
    allow_local: bool,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (found, allow_local) = (self.system.call(name), self.allow_local);
        Box::pin(async move {
            let allowed: Vec<_> = found.await?.filter(|address| allow_local || !is_local(address.ip())).collect();
            match allowed.is_empty() {
                true => Err(io::Error::other("no address that is not local")),
                false => Ok(allowed.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn kubeconfig(cluster: &str, user: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{{cluster}}}}}], \
             users: [{{name: u, user: {{{user}}}}}], contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}"
        )
    }

    async fn refusal(cluster: &str, user: &str) -> &'static str {
        connect(kubeconfig(cluster, user).as_bytes(), false).await.err().unwrap_or("accepted")
    }

    #[tokio::test]
    async fn rejects_other_ways_than_verified_https_to_another_machine() {
        assert_eq!(refusal("server: 'https://192.0.2.1:6443'", "token: abc").await, "accepted");
        assert_eq!(refusal("server: 'https://api.example.com'", "token: abc").await, "accepted");
        for cluster in [
            "server: 'http://192.0.2.1:6443'",
            "server: 'https://192.0.2.1:6443', insecure-skip-tls-verify: true",
            "server: 'https://192.0.2.1:6443', proxy-url: 'http://192.0.2.2'",
        ] {
            assert!(refusal(cluster, "token: abc").await.contains("expected https"), "{cluster}");
        }
        for host in
            ["127.0.0.1", "127.9.9.9:6443", "[::1]", "169.254.169.254", "[fe80::1]", "0.0.0.0", "[::ffff:127.0.0.1]"]
        {
            let refusal = refusal(&format!("server: 'https://{host}'"), "token: abc").await;
            assert!(refusal.contains("loopback or link-local"), "{host}: {refusal}");
        }
        for user in ["tokenFile: /etc/passwd", "client-key: /key", "exec: {command: sh, apiVersion: v1}"] {
            assert!(refusal("server: 'https://192.0.2.1'", user).await.contains("files or commands"), "{user}");
        }
        assert!(
            refusal("server: 'https://192.0.2.1', certificate-authority: /ca", "").await.contains("files or commands")
        );
    }

    #[tokio::test]
    async fn a_name_with_only_local_addresses_is_not_resolved() {
        let mut resolver = Resolver { system: GaiResolver::new(), allow_local: false };
        assert!(resolver.call("localhost".parse().unwrap()).await.is_err());
        resolver.allow_local = true;
        assert!(resolver.call("localhost".parse().unwrap()).await.unwrap().count() > 0);
    }

    /// A server that answers each request with a head and then zeros, up to a number of bytes. Returns its kubeconfig, and the bytes that were
    /// sent by the first connection.
    async fn serve(head: &'static str, bytes: usize) -> (String, tokio::task::JoinHandle<usize>) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = tokio_rustls::rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = acceptor.accept(stream).await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(head.as_bytes()).await.unwrap();
            let (zeros, mut sent) = ([0; 1 << 16], 0);
            while sent < bytes && stream.write_all(&zeros).await.is_ok() && stream.flush().await.is_ok() {
                sent += zeros.len();
            }
            let _ = stream.shutdown().await;
            sent
        });
        let ca = STANDARD.encode(made.cert.pem());
        let cluster = format!("server: 'https://127.0.0.1:{port}', certificate-authority-data: {ca}");
        (kubeconfig(&cluster, "token: abc"), sent)
    }

    #[tokio::test]
    async fn reads_no_more_of_an_answer_than_metadata_have() {
        const LARGE: usize = 400 << 20;
        let (kubeconfig, sent) =
            serve("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 419430400\r\n\r\n", LARGE)
                .await;
        let other: Api<Secret> = Api::namespaced(connect(kubeconfig.as_bytes(), true).await.unwrap(), "shop");
        let error = other.get_metadata_opt("payments").await.unwrap_err();
        assert!(said(&error).contains("more than 512 KiB"), "{error}");
        drop(other);
        assert!(sent.await.unwrap() < LARGE / 10, "the whole answer was read");
    }

    #[tokio::test]
    async fn repeats_no_body() {
        let head = "HTTP/1.1 403 Forbidden\r\ncontent-length: 12\r\n\r\nthe body\nxyz";
        let (kubeconfig, _sent) = serve(head, 0).await;
        let other: Api<Secret> = Api::namespaced(connect(kubeconfig.as_bytes(), true).await.unwrap(), "shop");
        let error = other.get_metadata_opt("payments").await.unwrap_err();
        assert_eq!(said(&error), "it answered with HTTP status 403");
    }

    #[test]
    fn repeats_nothing_that_the_other_cluster_has_sent() {
        let status = kube::core::Status::failure("the body", "reason").with_code(403).boxed();
        assert_eq!(said(&kube::Error::Api(status)), "it answered with HTTP status 403");
        let undecodable = serde_json::from_str::<u8>("\"the body\"").unwrap_err();
        assert!(!said(&kube::Error::SerdeError(undecodable)).contains("the body"));
    }
}
