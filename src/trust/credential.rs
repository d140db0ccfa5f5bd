//! The keys of a Secret that istiod uses.
//!
//! istiod (`pilot/pkg/credentials/kube/secrets.go`): non-empty `cert` and `key` win over `tls.crt` and `tls.key`; a
//! non-empty `cacert` wins over `ca.crt`. A rotation that changes only the ignored key has no effect. Each CA key has its own key for
//! revocation lists: `crl` with `cacert`, `ca.crl` with `ca.crt` (`ExtractRoot`).

use super::{Secret, TlsConsumer, bundle};

/// CA keys, the preferred one first.
pub const CA_KEYS: [&str; 2] = ["cacert", "ca.crt"];
/// The keys of revocation lists, each for the CA key with the same index.
pub const CRL_KEYS: [&str; 2] = ["crl", "ca.crl"];
/// Certificate and private key of serving pairs, the preferred pair first.
pub const PAIR_KEYS: [(&str, &str); 2] = [("cert", "key"), ("tls.crt", "tls.key")];

/// Keys of a kubeconfig's user: certificate and private key.
const CLIENT_PAIR: (&str, &str) = ("client-certificate-data", "client-key-data");

impl TlsConsumer {
    /// The keys of a CA bundle, the preferred one first.
    pub fn ca_keys(self) -> &'static [&'static str] {
        match self {
            Self::Envoy => &CA_KEYS,
            Self::Go => &["caBundle", "certificate-authority-data"],
        }
    }

    /// The keys of pairs, certificate first, the preferred pair first.
    pub fn pair_keys(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Envoy => &PAIR_KEYS,
            Self::Go => &[CLIENT_PAIR],
        }
    }
}

/// The CA bundle in use.
#[derive(Clone, Copy)]
pub struct CaBundle<'a> {
    /// The key under `data`.
    pub key: &'static str,
    /// PEM text. Empty if every CA key is.
    pub pem: &'a [u8],
}

/// The revocation lists in use.
#[derive(Clone, Copy)]
pub struct RevocationLists<'a> {
    /// The key under `data`.
    pub key: &'static str,
    /// PEM text, never empty: istiod sends an empty one, and Envoy treats it as absent (measured).
    pub pem: &'a [u8],
}

/// The serving pair in use. Has no `Debug`: it contains the private key.
#[derive(Clone, Copy)]
pub struct ServingPair<'a> {
    /// The key under `data` of the certificate chain.
    pub chain_key: &'static str,
    /// PEM text of the chain, leaf first.
    pub chain: &'a [u8],
    /// The key under `data` of the private key.
    pub private_key_key: &'static str,
    /// PEM text of the private key.
    pub private_key: &'a [u8],
}

/// Half a serving pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfPair {
    /// The key that has content.
    pub present: &'static str,
    /// The key that has none.
    pub missing: &'static str,
}

/// The CA bundle that istiod uses; `None` without a CA key.
pub fn ca_bundle(secret: &Secret) -> Option<CaBundle<'_>> {
    ca_bundle_of(TlsConsumer::Envoy, secret)
}

/// The CA bundle that a reader uses; `None` without a CA key.
pub(super) fn ca_bundle_of(reader: TlsConsumer, secret: &Secret) -> Option<CaBundle<'_>> {
    let keys = reader.ca_keys().iter();
    let bundles = || keys.clone().filter_map(|key| Some(CaBundle { key, pem: secret.data.get(*key)? }));
    bundles().find(|bundle| !bundle.pem.is_empty()).or_else(|| bundles().next())
}

/// The key of the revocation lists that istiod uses with the CA bundle; `None` without a bundle.
pub fn crl_key(secret: &Secret) -> Option<&'static str> {
    let ca = ca_bundle(secret).filter(|ca| !ca.pem.is_empty())?;
    CA_KEYS.into_iter().zip(CRL_KEYS).find(|(key, _)| *key == ca.key).map(|(_, key)| key)
}

/// The revocation lists that istiod uses with the CA bundle; `None` if their key has no content.
pub fn revocation_lists(secret: &Secret) -> Option<RevocationLists<'_>> {
    let key = crl_key(secret)?;
    Some(RevocationLists { key, pem: content(secret, key)? })
}

/// All revocation lists that a proxy uses with the CA bundle, as PEM text: those under their key, and those in the bundle itself.
pub fn all_revocation_lists(secret: &Secret) -> Option<Vec<u8>> {
    let mut text = revocation_lists(secret).map(|lists| lists.pem.to_vec()).unwrap_or_default();
    let known = bundle::read(&text).crls;
    for list in ca_bundle(secret).map(|ca| bundle::read(ca.pem).crls).unwrap_or_default() {
        if !known.contains(&list) {
            if text.last().is_some_and(|last| *last != b'\n') {
                text.push(b'\n');
            }
            text.extend(list.pem().into_bytes());
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Whether a Secret says that there are no revocation lists: their key is there, without content.
pub fn has_no_revocation_lists(secret: &Secret) -> bool {
    all_revocation_lists(secret).is_none()
        && crl_key(secret).and_then(|key| secret.data.get(key)).is_some_and(|text| text.is_empty())
}

/// The serving pair that istiod uses; `None` if no pair is complete.
pub fn serving_pair(secret: &Secret) -> Option<ServingPair<'_>> {
    pair_of(TlsConsumer::Envoy, secret)
}

/// The pair that a reader uses; `None` if no pair is complete.
pub(super) fn pair_of(reader: TlsConsumer, secret: &Secret) -> Option<ServingPair<'_>> {
    reader.pair_keys().iter().find_map(|&(chain_key, private_key_key)| {
        let chain = content(secret, chain_key)?;
        let private_key = content(secret, private_key_key)?;
        Some(ServingPair { chain_key, chain, private_key_key, private_key })
    })
}

/// Pairs of which one key has no content.
pub fn half_pairs(reader: TlsConsumer, secret: &Secret) -> impl Iterator<Item = HalfPair> {
    reader.pair_keys().iter().filter_map(|&(chain, key)| match (content(secret, chain), content(secret, key)) {
        (Some(_), None) => Some(HalfPair { present: chain, missing: key }),
        (None, Some(_)) => Some(HalfPair { present: key, missing: chain }),
        _ => None,
    })
}

pub(super) fn content<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    secret.data.get(key).map(|bytes| bytes.as_slice()).filter(|bytes| !bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::{ca, secret};

    #[test]
    fn prefers_the_generic_keys_to_the_tls_keys() {
        let secret = secret(&[
            ("cert", "a"),
            ("key", "b"),
            ("tls.crt", "c"),
            ("tls.key", "d"),
            ("cacert", "e"),
            ("ca.crt", "f"),
        ]);
        let pair = serving_pair(&secret).expect("a pair");
        assert_eq!(
            (pair.chain_key, pair.chain, pair.private_key_key, pair.private_key),
            ("cert", &b"a"[..], "key", &b"b"[..])
        );
        assert_eq!(ca_bundle(&secret).map(|b| (b.key, b.pem)), Some(("cacert", &b"e"[..])));
    }

    #[test]
    fn uses_the_next_keys_if_the_first_are_empty() {
        let secret =
            secret(&[("cert", "a"), ("key", ""), ("tls.crt", "c"), ("tls.key", "d"), ("cacert", ""), ("ca.crt", "f")]);
        assert_eq!(serving_pair(&secret).map(|p| p.chain_key), Some("tls.crt"));
        assert_eq!(ca_bundle(&secret).map(|b| b.key), Some("ca.crt"));
        assert_eq!(
            half_pairs(TlsConsumer::Envoy, &secret).collect::<Vec<_>>(),
            [HalfPair { present: "cert", missing: "key" }]
        );
    }

    #[test]
    fn uses_the_lists_of_the_ca_key_in_use() {
        let lists =
            |data: &[(&str, &str)]| revocation_lists(&secret(data)).map(|lists| (lists.key, lists.pem.to_vec()));
        let both = [("cacert", "a"), ("ca.crt", "b"), ("crl", "c"), ("ca.crl", "d")];
        assert_eq!(lists(&both), Some(("crl", b"c".to_vec())));
        assert_eq!(lists(&both[1..]), Some(("ca.crl", b"d".to_vec())));
        assert_eq!(lists(&[("cacert", ""), ("ca.crt", "b"), ("ca.crl", "d")]), Some(("ca.crl", b"d".to_vec())));
    }

    #[test]
    fn finds_lists_under_their_key_and_in_the_bundle_once() {
        let (one, two) = (ca("one"), ca("two"));
        let (first, second) = (one.crl_pem(2029, 2031, &[]), two.crl_pem(2029, 2031, &[]));
        let bundle = one.pem() + &two.pem() + &first + &second;
        let found = all_revocation_lists(&secret(&[("ca.crt", &bundle), ("ca.crl", first.trim_end())])).expect("lists");
        assert_eq!(super::bundle::read(&found).crls.len(), 2);
        assert!(all_revocation_lists(&secret(&[("ca.crt", &one.pem()), ("ca.crl", "")])).is_none());
        assert!(has_no_revocation_lists(&secret(&[("ca.crt", &one.pem()), ("ca.crl", "")])));
        for data in [[("ca.crt", one.pem()), ("crl", String::new())], [("ca.crt", bundle), ("ca.crl", String::new())]] {
            let data = [0, 1].map(|at| (data[at].0, data[at].1.as_str()));
            assert!(!has_no_revocation_lists(&secret(&data)), "{data:?}");
        }
    }

    #[test]
    fn ignores_lists_of_another_key_and_empty_ones() {
        for data in
            [[("ca.crt", "b"), ("crl", "c")], [("ca.crt", "b"), ("ca.crl", "")], [("ca.crt", ""), ("ca.crl", "d")]]
        {
            assert!(revocation_lists(&secret(&data)).is_none(), "{data:?}");
        }
    }

    #[test]
    fn missing_keys_give_nothing() {
        assert!(ca_bundle(&secret(&[("root.pem", "x")])).is_none());
        assert!(serving_pair(&secret(&[("tls.crt", "x")])).is_none());
        assert_eq!(ca_bundle(&secret(&[("cacert", ""), ("ca.crt", "")])).map(|b| b.key), Some("cacert"));
    }
}
