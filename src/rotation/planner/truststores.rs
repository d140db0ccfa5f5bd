//! Which CAs Java finds in the truststore of a client. cert-manager names the entries of `truststore.p12` by the subjects of the CAs (`EncodeTrustStore` of
//! go-pkcs12), and Java keeps the last of several entries with one name, in lower case (OpenJDK, `PKCS12KeyStore.loadSafeContents`).
//! `truststore.jks` numbers its entries.

use super::rules::{Rule, applies};
use super::snapshot::ClientState;
use crate::rotation::journal::Version;
use crate::trust::Certificate;

/// The CAs of a client's Secret that the client trusts. `written`: the bundle that the webhook has added, after the other CAs of the Secret.
pub(super) fn visible(
    client: &ClientState,
    mut trust: Vec<Certificate>,
    written: Option<&Version>,
) -> Vec<Certificate> {
    if !hides(client) {
        return trust;
    }
    let position = |ca: &Certificate| written.and_then(|written| written.trust.iter().position(|one| one == ca));
    trust.sort_by_key(|ca| position(ca));
    (0..trust.len()).filter(|at| !is_hidden(&trust, *at)).map(|at| trust[at].clone()).collect()
}

/// Whether a client's truststore hides CAs.
pub(super) fn hides(client: &ClientState) -> bool {
    let renders = client.certificate.as_ref().is_some_and(|certificate| certificate.renders_pkcs12);
    renders && applies(Rule::TruststoresHideCas)
}

/// The subject of a CA that a truststore of these CAs hides.
pub(super) fn hidden(bundle: &[Certificate]) -> Option<&str> {
    (0..bundle.len()).find(|at| is_hidden(bundle, *at)).map(|at| bundle[at].subject.as_str())
}

/// Whether a later CA has the name of this one. One with the same key, too, verifies the same certificates.
fn is_hidden(bundle: &[Certificate], at: usize) -> bool {
    let ca = &bundle[at];
    bundle[at + 1..].iter().any(|later| name(later) == name(ca) && !later.supersedes(ca))
}

/// What the name of an entry depends on. Go writes the attributes of a subject in an order that does not depend on theirs (`pkix.Name.String`).
fn name(ca: &Certificate) -> Vec<String> {
    let mut attributes: Vec<_> = ca.subject.split([',', '+']).map(|one| one.trim().to_lowercase()).collect();
    attributes.sort();
    attributes
}
