//! Kubeconfigs of clients (client.authentication: `v1.Config` of client-go), with one cluster, user and context.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::IdentityName;
use crate::trust::bundle;
use crate::trust::{Certificate, content_hash};

/// The address of an API server, and the CAs that its serving certificate is verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The URL.
    pub endpoint: String,
    /// The CAs, in their order.
    pub cas: Vec<Certificate>,
}

impl Server {
    /// The server at a URL with the CAs of a PEM text.
    ///
    /// # Errors
    /// When the text has no CA, or a part of it cannot be read.
    pub fn new(endpoint: &str, ca_pem: &[u8]) -> Result<Self, String> {
        let read = bundle::read(ca_pem);
        if let Some(rejected) = read.rejected {
            return Err(format!("the CAs of the API server cannot be read: {rejected}"));
        }
        let cas = read.into_certificates();
        if cas.is_empty() {
            return Err("there is no CA of the API server; expected at least one, in PEM".to_owned());
        }
        Ok(Self { endpoint: endpoint.trim_end_matches('/').to_owned(), cas })
    }

    /// A hash of the set of CAs.
    pub fn ca_hash(&self) -> String {
        content_hash(&self.cas)
    }

    /// Whether a kubeconfig with `other` reaches the same server with the same CAs.
    pub fn is_same(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint && self.ca_hash() == other.ca_hash()
    }

    fn cluster(&self) -> Value {
        let pem: String = self.cas.iter().map(Certificate::pem).collect();
        json!({ "server": self.endpoint, "certificate-authority-data": STANDARD.encode(pem) })
    }
}

/// A kubeconfig. Its text holds a token or a private key, so it has no derived `Debug` and is wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientKubeconfig {
    /// The text.
    pub text: Zeroizing<String>,
    /// The server that it names.
    pub server: Server,
}

impl fmt::Debug for ClientKubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientKubeconfig({})", self.server.endpoint)
    }
}

/// The certificate of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// SHA-256 of its public key (SubjectPublicKeyInfo), lower-case hex.
    pub key_hash: String,
    /// SHA-256 of the certificate, lower-case hex.
    pub fingerprint: String,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
}

impl ClientCertificate {
    /// The first certificate of a PEM text.
    ///
    /// # Errors
    /// When there is none.
    pub fn read(pem: &[u8]) -> Result<Self, String> {
        let chain = bundle::read_chain(pem).into_certificates();
        let leaf = chain.first().ok_or("there is no certificate")?;
        Ok(Self {
            key_hash: leaf.public_key_hash(),
            fingerprint: leaf.fingerprint.clone(),
            not_before: leaf.not_before,
            not_after: leaf.not_after,
        })
    }
}

/// The bootstrap kubeconfig of an identity.
pub fn bootstrap(identity: &IdentityName, server: &Server, token: &str) -> ClientKubeconfig {
    built(identity, server, &json!({ "token": token }))
}

/// The kubeconfig of an identity that has a certificate and its key, both in PEM.
pub fn with_certificate(identity: &IdentityName, server: &Server, certificate: &str, key: &str) -> ClientKubeconfig {
    let user =
        json!({ "client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key) });
    built(identity, server, &user)
}

fn built(identity: &IdentityName, server: &Server, user: &Value) -> ClientKubeconfig {
    let name = identity.user();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "cluster", "cluster": server.cluster() }],
        "users": [{ "name": name, "user": user }],
        "contexts": [{ "name": "context", "context": { "cluster": "cluster", "user": name, "namespace": identity.namespace } }],
        "current-context": "context",
    });
    // JSON is YAML.
    ClientKubeconfig { text: Zeroizing::new(format!("{config:#}\n")), server: server.clone() }
}

/// Reads a kubeconfig with embedded data. Returns its certificate too, if it has one.
///
/// # Errors
/// When it has no current context, server or CAs. The message contains nothing of the text.
pub fn parse(text: &str) -> Result<(ClientKubeconfig, Option<ClientCertificate>), String> {
    // An error of the parser would quote the text, which holds secrets.
    let config: Value = serde_saphyr::from_str(text).map_err(|_| "this is not YAML")?;
    let entry = |list: &str, name: &Value, field: &str| {
        let entries = config[list].as_array().into_iter().flatten();
        let found = entries.clone().find(|entry| entry["name"] == *name);
        found.map(|entry| entry[field].clone()).ok_or(format!("the kubeconfig has no {field} of its current context"))
    };
    let context = entry("contexts", &config["current-context"], "context")?;
    let cluster = entry("clusters", &context["cluster"], "cluster")?;
    let user = entry("users", &context["user"], "user")?;
    let endpoint = cluster["server"].as_str().ok_or("the kubeconfig has no server")?;
    let decoded = |value: &Value| value.as_str().and_then(|text| STANDARD.decode(text).ok());
    let ca = decoded(&cluster["certificate-authority-data"])
        .ok_or("the kubeconfig has no certificate-authority-data; expected the CAs of the API server in it")?;
    let certificate = decoded(&user["client-certificate-data"]).map(|pem| ClientCertificate::read(&pem)).transpose()?;
    let kubeconfig = ClientKubeconfig { text: Zeroizing::new(text.to_owned()), server: Server::new(endpoint, &ca)? };
    Ok((kubeconfig, certificate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::ca;

    fn server() -> Server {
        Server::new("https://api.example.com/", (ca("old").pem() + &ca("new").pem()).as_bytes()).unwrap()
    }

    #[test]
    fn what_was_built_is_read() {
        let identity = IdentityName::new("shop", "payments");
        let built = bootstrap(&identity, &server(), "abcdef.0123456789abcdef");
        let (read, certificate) = parse(&built.text).unwrap();
        assert_eq!((&read, certificate), (&built, None));
        assert_eq!(read.server.endpoint, "https://api.example.com");
        assert_eq!(read.server.cas.len(), 2, "both CAs of a CA roll");

        let leaf = ca("clients").leaf("payments");
        let built = with_certificate(&identity, &server(), &leaf.pem(), &leaf.key_pem());
        let (_, certificate) = parse(&built.text).unwrap();
        assert_eq!(certificate, Some(ClientCertificate::read(leaf.pem().as_bytes()).unwrap()));
    }

    #[test]
    fn errors_contain_nothing_of_the_text() {
        let secret = "secret-0123456789";
        for text in
            [secret.to_owned(), format!("users: [{{ token: {secret}"), format!("clusters: {secret}"), String::new()]
        {
            let error = parse(&text).unwrap_err();
            assert!(!error.contains(secret), "{error}");
        }
        let built = bootstrap(&IdentityName::new("shop", "payments"), &server(), secret);
        assert!(!format!("{built:?}").contains(secret));
    }

    #[test]
    fn the_order_of_cas_makes_no_other_server() {
        let server = server();
        let with = |cas: Vec<Certificate>| Server { cas, ..server.clone() };
        assert!(server.is_same(&with(server.cas.iter().rev().cloned().collect())));
        assert!(!server.is_same(&with(server.cas[..1].to_vec())));
        assert!(!server.is_same(&Server { endpoint: "https://other".to_owned(), ..server.clone() }));
    }
}
