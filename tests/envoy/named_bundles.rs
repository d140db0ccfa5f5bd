//! Bundles that were measured by hand, and all on which trustspan and Envoy have disagreed. The tests on the API server
//! use them, too.

use anyhow::Result;
use rcgen::ExtendedKeyUsagePurpose as Eku;

use crate::{
    pki::{Basic, Dates, Identity, Keys, Kind, Spec, Usage, block, element},
    testbed::Seed,
};

/// A bundle, an optional `ca.crl`, and the clients: a label, the leaf, its intermediates.
pub(crate) struct Trust {
    pub(crate) ca: String,
    pub(crate) crl: Option<String>,
    pub(crate) clients: Vec<Identity>,
}

/// Two valid CAs, each with a client, and keys for further ones.
pub(crate) struct Bench {
    keys: Keys,
    pub(crate) one: Identity,
    pub(crate) two: Identity,
    pub(crate) client_one: Identity,
    pub(crate) client_two: Identity,
}

pub(crate) type Make = fn(&mut Bench) -> Result<Trust>;

/// Name, reason, and the function that makes the bundle.
pub(crate) const TRUST: &[(&str, &str, Make)] = &[
    ("byte-order-mark", "drops the first CA silently", |b| b.text(|one, two| format!("\u{feff}{one}{two}"))),
    ("glued-blocks", "the whole update is rejected", |b| b.text(|one, two| format!("{}{two}", one.trim_end()))),
    ("garbage-block", "the whole update is rejected", |b| {
        b.text(|one, _| one.to_owned() + &block("CERTIFICATE", b"garbage"))
    }),
    ("prose", "the whole update is rejected", |b| b.text(|_, _| "the CA comes later\n".to_owned())),
    ("empty", "the whole update is rejected", |b| b.text(|_, _| String::new())),
    ("crlf", "read as written", |b| b.text(|one, two| format!("{one}{two}").replace('\n', "\r\n"))),
    ("duplicate", "read as one", |b| b.text(|one, two| format!("{one}{two}{one}"))),
    ("private-key", "works, and the key is public; a policy denies it", |b| {
        let key = b.one.key.pem();
        b.text(|one, _| one.to_owned() + &key)
    }),
    ("malformed-key", "found: the whole update is rejected, and we only warned where a policy was lowered", |b| {
        b.text(|one, _| one.to_owned() + &block("EC PRIVATE KEY", b"key"))
    }),
    (
        "encrypted-key",
        "found: the whole update is rejected for the short IV, and we only warned where a policy was lowered",
        |b| {
            let headers = "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n";
            b.text(|one, _| one.to_owned() + &block("RSA PRIVATE KEY", b"key").replacen("KEY-----\n", headers, 1))
        },
    ),
    ("two-in-one-block", "found: the second certificate was dropped, and we said nothing", |b| {
        let both = block("CERTIFICATE", &[&*b.one.der, &*b.two.der].concat());
        b.text(|_, _| both.clone())
    }),
    ("two-in-one-block-apart", "found: the second certificate was dropped, and we said nothing", |b| {
        // A multiple of three bytes, so that the text has the base64 of the second one.
        let gap = vec![0; 3 - b.one.der.len() % 3];
        let both = block("CERTIFICATE", &[&*b.one.der, &gap, &*b.two.der].concat());
        b.text(|_, _| both.clone())
    }),
    (
        "headers-after-a-no-break-space",
        "found: x86-64 rejects the update, and we only warned where a policy was lowered",
        |b| b.text(|one, two| one.to_owned() + &two.replacen("-----\n", "-----\u{a0}\nBag: a\n\n", 1)),
    ),
    ("blank-in-unmarked-base64", "found: a certificate was dropped, and we said nothing", |b| {
        b.text(|one, two| {
            let two = two.replacen("-----BEGIN CERTIFICATE-----\n", "", 1).replacen('\n', " ", 1);
            one.to_owned() + &two.replacen("-----END", "# -----END", 1)
        })
    }),
    ("text-after-no-label", "found: a certificate was dropped, and we said nothing", |b| {
        b.text(|one, two| one.to_owned() + &two.replace(" CERTIFICATE", " ").replacen("-----\n", "----- ", 1))
    }),
    ("no-label", "found: a damaged certificate without label was dropped, and we only warned", |b| {
        b.text(|one, two| one.to_owned() + &two.replace("CERTIFICATE", "").replacen("\n", "\nx\n\n", 1))
    }),
    ("damaged-under-another-label", "found: a damaged certificate was dropped, and we only warned", |b| {
        let doubled =
            |two: &str| two.replacen("CERTIFICATE-----\n", "CERT-----\nMIIBUTCB+aADAgECAgEBMAoGCCqGSM49BAMCMBEx\n", 1);
        b.text(|one, two| one.to_owned() + &doubled(two).replace("END CERTIFICATE", "END CERT"))
    }),
    ("text-after-another-label", "found: a certificate was dropped, and we said nothing", |b| {
        b.text(|one, two| one.to_owned() + &two.replace("CERTIFICATE", "PKCS7").replacen('\n', " ", 1))
    }),
    ("long-chains", "found: with 32 to 64 KiB of chain the proxy closes the connection, and we let it pass", |b| {
        let key = b.keys.of(Kind::P256)?;
        let client = |size: &usize| {
            let alt_names = Some(element(0x30, &element(0x82, &vec![b'a'; *size])));
            b.one.issue(Spec { alt_names, ..Spec::leaf(format!("leaf of {size}")) }, key.clone())
        };
        let clients = [30_000, 33_000, 48_000, 64_000, 66_000].iter().map(client).collect::<Result<_>>()?;
        Ok(Trust { ca: b.one.pem(), crl: None, clients })
    }),
    ("long-subject", "found: a leaf that names its issuer at such length is as long itself", |b| {
        b.sort(Spec::ca("n".repeat(36_000)))
    }),
    ("odd-criticality", "found: BoringSSL takes any byte for TRUE; stricter on purpose", |b| {
        let mut der = b.one.der.to_vec();
        // The extension keyUsage, marked critical.
        if let Some(at) = der.windows(6).position(|w| w == [0x55, 0x1d, 0x0f, 1, 1, 0xff]) {
            der[at + 5] = 0x59;
        }
        let odd = block("CERTIFICATE", &der);
        b.text(|_, two| format!("{odd}{two}"))
    }),
    ("leaf-as-anchor", "partial chains are on", |b| {
        let ca = b.client_two.pem() + &b.one.pem();
        Ok(Trust { ca, ..b.text(|_, _| String::new())? })
    }),
    ("expired-before-renewal", "the first that fits by name is taken", |b| b.renewal(true)),
    ("renewal-before-expired", "the first that fits by name is taken", |b| b.renewal(false)),
    ("sound-before-future-renewal", "found: Envoy takes the first for all clients, trustspan denied it", |b| {
        let key = b.keys.any()?;
        let root = |dates| Identity::root(Spec { dates, ..Spec::ca("renewed") }, key.clone());
        let (now, next) = (root(Dates::Valid)?, root(Dates::Future)?);
        let cross = b.two.issue(Spec { authority_key_id: true, ..Spec::ca("renewed") }, key.clone())?;
        let bare = now.issue(Spec { authority_key_id: false, ..Spec::leaf("client") }, b.keys.of(Kind::P256)?)?;
        Ok(Trust { ca: now.pem() + &next.pem() + &cross.pem(), crl: None, clients: vec![bare] })
    }),
    ("same-subject-with-ids", "the key identifiers differ", |b| b.same_subject(true)),
    ("same-subject-without-ids", "the first one is taken for all", |b| b.same_subject(false)),
    ("signature-only-anchor", "key usage of anchors counts", |b| {
        b.sort(Spec { usage: Usage::OnlySignature, ..Spec::ca("odd") })
    }),
    ("future-anchor", "dates of anchors count", |b| b.sort(Spec { dates: Dates::Future, ..Spec::ca("odd") })),
    ("no-ca-anchor", "basicConstraints of anchors do not count; a policy warns", |b| {
        b.sort(Spec { basic: Basic::NotCa, ..Spec::ca("odd") })
    }),
    ("crl-for-one-of-two", "with one list present each CA needs one", |b| {
        let crl = b.one.crl(Dates::Valid, &[])?;
        Ok(Trust { crl: Some(crl), ..b.text(|one, two| format!("{one}{two}"))? })
    }),
    ("crl-in-the-bundle", "lists in ca.crt count, too", |b| {
        let crl = b.one.crl(Dates::Valid, &[2])?;
        b.text(|one, two| format!("{one}{two}{crl}"))
    }),
    ("expired-crl", "refuses the CA's clients", |b| {
        let crl = b.one.crl(Dates::Expired, &[])?;
        Ok(Trust { crl: Some(crl), ..b.text(|one, _| one.to_owned())? })
    }),
    ("crl-without-list", "accepted, then every handshake fails", |b| {
        let crl = "# no list yet\n".to_owned();
        Ok(Trust { crl: Some(crl), ..b.text(|one, _| one.to_owned())? })
    }),
    ("crl-empty", "Envoy ignores an empty text, which istiod sends", |b| b.lists(|_| Ok(String::new()))),
    ("crl-of-another-ca", "accepted, then every handshake fails", |b| b.lists(|b| b.two.crl(Dates::Valid, &[]))),
    ("crl-signed-by-another", "refuses the CA's clients", |b| {
        b.lists(|b| {
            let spec = Spec { subject: "one".to_owned(), subject_key_id: false, ..Spec::ca("one") };
            // Without a key identifier, which would distinguish the two CAs.
            Identity::root(spec, b.two.key.clone())?.crl(Dates::Valid, &[])
        })
    }),
    ("crl-byte-order-mark", "the list is dropped silently, then every handshake fails", |b| {
        b.lists(|b| Ok(format!("\u{feff}{}", b.one.crl(Dates::Valid, &[])?)))
    }),
    ("crl-garbage", "the whole update is rejected", |b| {
        b.lists(|b| Ok(b.one.crl(Dates::Valid, &[])? + &block("X509 CRL", b"garbage")))
    }),
    ("crl-garbage-certificate", "certificates among the lists are read, too: the whole update is rejected", |b| {
        b.lists(|b| Ok(b.one.crl(Dates::Valid, &[])? + &block("CERTIFICATE", b"garbage")))
    }),
    ("crl-certificate", "a certificate among the lists is not trusted", |b| {
        b.lists(|b| Ok(b.one.crl(Dates::Valid, &[])? + &b.two.pem()))
    }),
    ("two-lists-of-one-ca", "found: of two equally good lists the first counts, we took the last", |b| {
        let crl = b.one.crl(Dates::Valid, &[2])? + &b.one.crl(Dates::Valid, &[9])?;
        Ok(Trust { crl: Some(crl), ..b.text(|one, _| one.to_owned())? })
    }),
    ("two-lists-of-one-ca-other-order", "found: the same, the other way round", |b| {
        let crl = b.one.crl(Dates::Valid, &[9])? + &b.one.crl(Dates::Valid, &[2])?;
        Ok(Trust { crl: Some(crl), ..b.text(|one, _| one.to_owned())? })
    }),
    ("server-as-client", "the purpose counts", |b| {
        let leaf = b.one.issue(Spec { eku: vec![Eku::ServerAuth], ..Spec::leaf("server") }, b.keys.any()?)?;
        let any = b.one.issue(Spec { eku: vec![Eku::Any], ..Spec::leaf("any") }, b.keys.of(Kind::P256)?)?;
        Ok(Trust { clients: vec![leaf, any], ..b.text(|one, _| one.to_owned())? })
    }),
    ("client-keys", "P-521 and Ed25519 clients are refused", |b| {
        let mut trust = b.text(|one, _| one.to_owned())?;
        for kind in [Kind::P384, Kind::P521, Kind::Rsa2048, Kind::Ed25519] {
            trust.clients.push(b.one.issue(Spec::leaf(format!("{kind:?}")), b.keys.of(kind)?)?);
        }
        Ok(trust)
    }),
    ("unreadable-key", "found: accepted, then every client of the CA is refused, and trustspan had no finding", |b| {
        let damaged = b.one.with_damaged_key();
        b.text(|_, _| damaged.clone())
    }),
    ("unreadable-key-and-valid-ca", "found: the same next to a valid CA, whose clients are accepted", |b| {
        let damaged = b.one.with_damaged_key();
        b.text(|_, two| damaged.clone() + two)
    }),
    ("uri-excluded", "found: a host that is no plain name is refused whatever is excluded, we let it pass", |b| {
        b.constrained(EXCLUDED, URI, "td.com", &URIS)
    }),
    ("uri-permitted", "found: the host ends at a query, too, and may end with a dot; we refused it", |b| {
        b.constrained(PERMITTED, URI, "other.com", &URIS)
    }),
    ("uri-permitted-below", "found: the same under a constraint on all hosts below a name", |b| {
        b.constrained(PERMITTED, URI, ".com", &URIS)
    }),
    ("uri-excluded-empty", "found: an empty constraint refuses every URI, we let them pass", |b| {
        b.constrained(EXCLUDED, URI, "", &URIS)
    }),
    ("mailbox-permitted-at", "found: a constraint that begins with @ refuses every mailbox, we ignored the @", |b| {
        b.constrained(PERMITTED, EMAIL, "@ex.com", &["a@ex.com", "a@other.com"])
    }),
    ("mailbox-excluded-at", "found: the same where it excludes", |b| {
        b.constrained(EXCLUDED, EMAIL, "@ex.com", &["a@ex.com", "a@other.com", "a@b.ex.com"])
    }),
    ("subjects-over-64-kib", "accepted, then every handshake fails", |b| {
        let mut ca = b.one.pem();
        for number in 0..300 {
            ca += &Identity::root(Spec::ca(format!("{number} {}", "x".repeat(240))), b.two.key.clone())?.pem();
        }
        Ok(Trust { ca, ..b.text(|one, _| one.to_owned())? })
    }),
];

/// Tags of the lists of nameConstraints, and of names (RFC 5280 section 4.2.1.10).
const PERMITTED: u8 = 0xa0;
const EXCLUDED: u8 = 0xa1;
const EMAIL: u8 = 0x81;
const URI: u8 = 0x86;

const URIS: [&str; 23] = [
    "spiffe://td.com/x",
    "spiffe://other.com/x",
    "spiffe://TD.com./x",
    "spiffe://other.com./x",
    "https://other.com:80/x",
    "https://other.com:/x",
    "https://other.com?x",
    "https://other.com#x",
    "spiffe://cluster.local/ns/a/sa/b",
    "spiffe://localhost/x",
    "spiffe://a-b.com/x",
    "spiffe://10.0.0.1/x",
    "spiffe://[::1]/x",
    "spiffe://a.123/x",
    "spiffe://a.0x1f/x",
    "https://me@other.com/x",
    "spiffe://a_b.com/x",
    "spiffe://-a.com/x",
    "spiffe://a..com/x",
    "spiffe://*.other.com/x",
    "spiffe://other.com:abc/x",
    "1spiffe://other.com/x",
    "urn:a:b",
];

impl Bench {
    pub(crate) fn new() -> Result<Self> {
        let mut keys = Keys::shuffled(&mut Seed::of_run("named"));
        let one = Identity::root(Spec::ca("one"), keys.of(Kind::P256)?)?;
        let two = Identity::root(Spec::ca("two"), keys.of(Kind::P256)?)?;
        let client_one = one.issue(Spec::leaf("client of one"), keys.of(Kind::P256)?)?;
        let client_two = two.issue(Spec::leaf("client of two"), keys.of(Kind::P256)?)?;
        Ok(Self { keys, one, two, client_one, client_two })
    }

    /// Makes one of [`TRUST`] from new keys: no key is used twice in a case.
    pub(crate) fn make(&mut self, name: &str, make: Make) -> Result<Trust> {
        self.keys = Keys::shuffled(&mut Seed::of_run(name));
        make(self)
    }

    /// A text of the two CAs, with both clients.
    fn text(&self, make: impl Fn(&str, &str) -> String) -> Result<Trust> {
        let clients = vec![self.client_one.clone(), self.client_two.clone()];
        Ok(Trust { ca: make(&self.one.pem(), &self.two.pem()), crl: None, clients })
    }

    /// The first CA with a `ca.crl`.
    fn lists(&mut self, make: impl Fn(&Self) -> Result<String>) -> Result<Trust> {
        let crl = Some(make(self)?);
        Ok(Trust { crl, ..self.text(|one, _| one.to_owned())? })
    }

    fn renewal(&mut self, expired_first: bool) -> Result<Trust> {
        let key = self.keys.any()?;
        let old = Identity::root(Spec { dates: Dates::Expired, ..Spec::ca("renewed") }, key.clone())?;
        let new = Identity::root(Spec::ca("renewed"), key)?;
        let leaf = new.issue(Spec::leaf("client"), self.keys.of(Kind::P256)?)?;
        let bare = new.issue(Spec { authority_key_id: false, ..Spec::leaf("client") }, self.keys.of(Kind::P256)?)?;
        let ca = if expired_first { old.pem() + &new.pem() } else { new.pem() + &old.pem() };
        Ok(Trust { ca, crl: None, clients: vec![leaf, bare] })
    }

    fn same_subject(&mut self, subject_key_id: bool) -> Result<Trust> {
        let spec = Spec { subject_key_id, ..Spec::ca("same subject") };
        let cas = [Identity::root(spec.clone(), self.keys.any()?)?, Identity::root(spec, self.keys.any()?)?];
        let mut clients = Vec::new();
        for ca in &cas {
            for authority_key_id in [true, false] {
                clients.push(ca.issue(Spec { authority_key_id, ..Spec::leaf("client") }, self.keys.of(Kind::P256)?)?);
            }
        }
        Ok(Trust { ca: cas.iter().map(Identity::pem).collect(), crl: None, clients })
    }

    /// A CA with a constraint on names, and a client for each name.
    fn constrained(&mut self, list: u8, kind: u8, base: &str, names: &[&str]) -> Result<Trust> {
        let tree = element(0x30, &element(kind, base.as_bytes()));
        let constraints = Some(element(0x30, &element(list, &tree)));
        let ca = Identity::root(Spec { constraints, ..Spec::ca("constrained") }, self.keys.of(Kind::P256)?)?;
        let key = self.keys.of(Kind::P256)?;
        let client = |name: &&str| ca.issue(Spec { san: Some((*name).to_owned()), ..Spec::leaf(*name) }, key.clone());
        Ok(Trust { ca: ca.pem(), crl: None, clients: names.iter().map(client).collect::<Result<_>>()? })
    }

    /// A CA with this specification next to a valid one.
    fn sort(&mut self, spec: Spec) -> Result<Trust> {
        let odd = Identity::root(spec, self.keys.any()?)?;
        let leaf = odd.issue(Spec::leaf("client of odd"), self.keys.of(Kind::P256)?)?;
        Ok(Trust { ca: odd.pem() + &self.one.pem(), crl: None, clients: vec![leaf, self.client_one.clone()] })
    }
}
