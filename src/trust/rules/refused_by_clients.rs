//! `refused-by-clients`: a pair that the proxy serves, and common clients refuse.

use super::{Observation, Rule, Severity};
use crate::trust::bundle::BundleEntry;
use crate::trust::name::brief;
use crate::trust::parsed_secret::Text;
use crate::trust::rule_context::RuleContext;
use crate::trust::{TlsConsumer, leaf_requirements};

/// The longest Certificate message that rustls reads (measured): its buffer of 65,535 bytes includes the framing.
const MESSAGE: usize = 65_000;

/// The proxy checks neither (measured with Envoy 1.40), so only clients notice.
pub(super) const RULE: Rule = Rule {
    id: "refused-by-clients",
    severity: Severity::Warn,
    summary: "an RSA leaf without digitalSignature, a leaf of a Gateway without serverAuth, or a chain over 65,000 bytes",
    remedy: "issue the leaf with digitalSignature and serverAuth; send only the leaf and its intermediates",
    source: "RFC 5280 section 4.2.1.3; Envoy 1.40 as a client and rustls, measured; Chrome has the same BoringSSL",
    example: "tls.crt line 1: the key usage of the RSA leaf CN=shop.example.com lacks digitalSignature, or is malformed. expected \
              digitalSignature: clients built on BoringSSL (Chrome, Envoy) refuse the leaf; reissue it",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let chain =
        context.pair.map(|pair| &pair.chain).filter(|chain| chain.reader == TlsConsumer::Envoy && chain.is_loaded());
    let Some((chain, leaf)) = chain.and_then(|chain| Some((chain, chain.bundle.entries.first()?))) else {
        return Vec::new();
    };
    [usage(chain, leaf), purpose(context, chain, leaf), length(chain)].into_iter().flatten().collect()
}

/// Only of a leaf that a Gateway is known to serve: others may be clients'.
fn purpose(context: &RuleContext<'_>, chain: &Text, leaf: &BundleEntry) -> Option<Observation> {
    let certificate = &leaf.certificate;
    if context.usage.gateways.is_empty() || leaf_requirements::may_serve(certificate) {
        return None;
    }
    let message = format!(
        "{} line {}: the extended key usage of {} lacks serverAuth, and {} it. expected serverAuth: clients refuse the leaf; reissue it, or \
         name another Secret",
        chain.key,
        leaf.line,
        brief(&certificate.subject),
        match context.usage.gateways.len() {
            1 => "a Gateway serves".to_owned(),
            count => format!("{count} Gateways serve"),
        },
    );
    Some(Observation::new(chain.field(), format!("purpose {}", certificate.fingerprint), message))
}

/// `unparsable` reports other leaves without it, whose pair the proxy rejects.
fn usage(chain: &Text, leaf: &BundleEntry) -> Option<Observation> {
    let certificate = &leaf.certificate;
    if !leaf_requirements::is_rsa(certificate) || leaf_requirements::has_digital_signature(certificate) {
        return None;
    }
    let message = format!(
        "{} line {}: the key usage of the RSA leaf {} lacks digitalSignature, or is malformed. expected digitalSignature: clients \
         built on BoringSSL (Chrome, Envoy) refuse the leaf; reissue it",
        chain.key,
        leaf.line,
        brief(&certificate.subject),
    );
    Some(Observation::new(chain.field(), certificate.fingerprint.as_str(), message))
}

/// RFC 8446 section 4.4.2: a length before the list, and length and extensions of each certificate.
fn length(chain: &Text) -> Option<Observation> {
    let entries = chain.bundle.entries.iter();
    let bytes = 4 + entries.map(|entry| entry.certificate.der.len() + 5).sum::<usize>();
    let message = || {
        format!(
            "{}: its {} certificates take {bytes} bytes. expected at most {MESSAGE}: clients built on rustls read no more; send only the \
             leaf and its intermediates",
            chain.key,
            chain.bundle.entries.len(),
        )
    };
    (bytes > MESSAGE).then(|| Observation::new(chain.field(), "length", message()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rcgen::{CustomExtension, KeyUsagePurpose};
    use rustls::client::WebPkiServerVerifier;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::MESSAGE;
    use crate::trust::fixtures::{Leaf, NOTHING, ca, secret, verdicts};

    fn verdict(chain: &[&Leaf]) -> Vec<&'static str> {
        let text: String = chain.iter().map(|leaf| leaf.pem()).collect();
        verdicts(&secret(&[("tls.crt", &text), ("tls.key", &chain[0].key_pem())]))
    }

    #[test]
    fn warns_of_an_rsa_leaf_whose_key_usage_lacks_digital_signature() {
        let usage = |usages: &[KeyUsagePurpose]| {
            verdict(&[&ca("one").rsa_leaf_with("a", |params| params.key_usages = usages.to_vec())])
        };
        use KeyUsagePurpose::{DigitalSignature, KeyEncipherment};
        assert_eq!(usage(&[]), NOTHING);
        assert_eq!(usage(&[DigitalSignature, KeyEncipherment]), NOTHING);
        assert_eq!(usage(&[KeyEncipherment]), ["refused-by-clients"]);
    }

    /// A leaf of this length. Signatures differ in length, so it may take several tries.
    fn filled(bytes: usize) -> Leaf {
        let root = ca("one");
        let with = |filling: usize| {
            root.leaf_with("a", |params| {
                let extension = CustomExtension::from_oid_content(&[1, 2, 3], vec![0; filling]);
                params.custom_extensions = vec![extension];
            })
        };
        let around = with(20_000).der().len() - 20_000;
        (0..).map(|_| with(bytes - around)).find(|leaf| leaf.der().len() == bytes).expect("a leaf of that length")
    }

    /// Whether rustls reads the chain to its end.
    fn is_read(chain: &[&Leaf]) -> bool {
        let provider = Arc::new(default_provider());
        let leaf = chain[0];
        let chain = chain.iter().map(|leaf| CertificateDer::from(leaf.der().to_vec())).collect();
        let key = PrivateKeyDer::from_pem_slice(leaf.key_pem().as_bytes()).expect("a key");
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let server = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("TLS 1.3").with_no_client_auth();
        let server = server.with_single_cert(chain, key).expect("a pair");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(ca("other").der().to_vec())).expect("an anchor");
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
        let client = client.with_webpki_verifier(verifier.expect("a verifier")).with_no_client_auth();
        let mut server = ServerConnection::new(server.into()).expect("a server");
        let mut client = ClientConnection::new(client.into(), "a".try_into().expect("a name")).expect("a client");
        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("memory");
        server.read_tls(&mut hello.as_slice()).expect("memory");
        server.process_new_packets().expect("a hello");
        let mut flight = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut flight).expect("memory");
        }
        let mut flight = flight.as_slice();
        loop {
            // The buffer of the client is full.
            let Ok(read) = client.read_tls(&mut flight) else { return false };
            assert_ne!(read, 0, "a leaf of an unknown CA was accepted");
            if let Err(error) = client.process_new_packets() {
                return matches!(error, rustls::Error::InvalidCertificate(_));
            }
        }
    }

    #[test]
    fn warns_of_a_chain_that_rustls_does_not_read() {
        let is_found = |chain: &[&Leaf]| verdict(chain).contains(&"refused-by-clients");
        let leaf = filled(32_000);
        // The framing takes 4 bytes, and 5 for each certificate.
        let (fits, longer) = (filled(MESSAGE - 32_014), filled(MESSAGE - 32_013));
        assert!(is_read(&[&leaf, &fits]) && !is_found(&[&leaf, &fits]));
        assert!(is_found(&[&leaf, &longer]));
        assert!(!is_read(&[&leaf, &filled(33_600)]));
    }
}
