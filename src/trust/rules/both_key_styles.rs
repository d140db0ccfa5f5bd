//! `both-key-styles`: a pair or bundle under two keys, with different content.

use super::{Observation, Rule, Severity};
use crate::trust::credential::{CA_KEYS, CRL_KEYS, PAIR_KEYS, content};
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;
use crate::trust::{Secret, bundle};

/// istiod prefers `cert` and `key` to `tls.crt` and `tls.key`, and `cacert` with `crl` to `ca.crt` with `ca.crl`. An issuer that
/// renews the ignored keys changes nothing.
pub(super) const RULE: Rule = Rule {
    id: "both-key-styles",
    severity: Severity::Warn,
    summary: "cert and key next to tls.crt and tls.key, or cacert next to ca.crt, with different content",
    remedy: "keep one style; to keep the one that is ignored, give it the content of the other first",
    source: "istiod pilot/pkg/credentials/kube/secrets.go, ExtractCertInfo and ExtractRoot",
    example: "cacert and ca.crt differ, and gateways use cacert. expected one of them: changes of ca.crt have no effect; remove \
              ca.crt, or add the CAs of cacert to it and then remove cacert",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let secret = context.secret;
    let [(chain, key), (losing_chain, losing_key)] = PAIR_KEYS;
    let both_pairs = [key, losing_key].iter().all(|key| content(secret, key).is_some());
    let remedy = format!(
        "remove {losing_chain} with {losing_key}, or {chain} with {key} once {losing_chain} is the one to serve"
    );
    let pairs = [(chain, losing_chain, remedy)].into_iter().filter(|_| both_pairs);
    let [cas, lists] = [CA_KEYS, CRL_KEYS].map(|[wins, loses]| {
        let what = if wins == CA_KEYS[0] { "CAs" } else { "lists" };
        (wins, loses, format!("remove {loses}, or add the {what} of {wins} to it and then remove {wins}"))
    });
    // Lists alone are not a second style: each belongs to a CA key. `crl-missing` reports those that istiod ignores.
    let both_cas = CA_KEYS.iter().all(|key| content(secret, key).is_some());
    let cas = [cas, lists].into_iter().filter(|_| both_cas);
    let differing = pairs.chain(cas).filter(|(wins, loses, _)| differ(secret, wins, loses));
    differing
        .map(|(wins, loses, remedy)| {
            let message = format!(
                "{wins} and {loses} differ, and gateways use {wins}. expected one of them: changes of {loses} have no effect; {remedy}"
            );
            Observation::new(field(loses), loses, message)
        })
        .collect()
}

/// Whether both have content, and different certificates. PEM layout does not count.
fn differ(secret: &Secret, wins: &str, loses: &str) -> bool {
    let Some((wins, loses)) = content(secret, wins).zip(content(secret, loses)) else { return false };
    if wins == loses {
        return false;
    }
    let [wins, loses] = [wins, loses].map(bundle::read);
    let is_read = wins.rejected.is_none() && loses.rejected.is_none();
    let ders = |bundle: &bundle::Bundle| bundle.entries.iter().map(|e| e.certificate.der.clone()).collect::<Vec<_>>();
    !(is_read && ders(&wins) == ders(&loses) && wins.crls == loses.crls)
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, verdicts};

    #[test]
    fn accepts_one_style_and_the_same_in_both() {
        let one = ca("one");
        let leaf = one.leaf("a");
        let (pem, key) = (leaf.pem(), leaf.key_pem());
        assert_eq!(verdicts(&secret(&[("cert", &pem), ("key", &key), ("ca.crt", &one.pem())])), NOTHING);
        let crlf = pem.replace('\n', "\r\n");
        assert_eq!(verdicts(&secret(&[("cert", &pem), ("key", &key), ("tls.crt", &crlf), ("tls.key", &key)])), NOTHING);
    }

    #[test]
    fn warns_of_different_pairs() {
        let (one, two) = (ca("one").leaf("a"), ca("one").leaf("a"));
        let data = [("cert", one.pem()), ("key", one.key_pem()), ("tls.crt", two.pem()), ("tls.key", two.key_pem())];
        let found = findings(&secret(&data.each_ref().map(|(key, text)| (*key, text.as_str()))));
        assert_eq!(
            found.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(),
            [("both-key-styles", "data[tls.crt]")]
        );
        // `pair-incomplete` reports half a pair.
        let found = verdicts(&secret(&data.each_ref().map(|(key, text)| (*key, text.as_str()))[1..]));
        assert_eq!(found, ["pair-incomplete"]);
    }

    #[test]
    fn warns_of_different_bundles() {
        let found = verdicts(&secret(&[("cacert", &ca("one").pem()), ("ca.crt", &ca("two").pem())]));
        assert_eq!(found, ["both-key-styles"]);
        assert_eq!(verdicts(&secret(&[("cacert", ""), ("ca.crt", &ca("two").pem())])), NOTHING);
    }
}
