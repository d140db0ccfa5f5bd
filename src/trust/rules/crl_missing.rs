//! `crl-missing`: a key for revocation lists without a usable list.

use super::{Observation, Rule, Severity};
use crate::trust::credential::{self, CRL_KEYS};
use crate::trust::finding::counted;
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;

/// Measured: with content under `ca.crl` Envoy checks revocation, and without a list of its CA every client is refused. istiod
/// never sends a list under the other key, so that revoked clients are accepted.
pub(super) const RULE: Rule = Rule {
    id: "crl-missing",
    severity: Severity::Deny,
    summary: "a key for revocation lists without a list, or without one for any CA of the bundle; an ignored key warns",
    remedy: "put a list for each CA under ca.crl (under crl next to cacert), or remove the key",
    source: "Envoy, measured: it accepts the update, then every handshake fails; istiod reads one key for lists per CA key",
    example: "ca.crl: no revocation list found. expected an X509 CRL block for each CA in ca.crt: without it every client is \
              refused; add the lists, or remove ca.crl, after which revoked certificates are accepted",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    missing(context).into_iter().chain(ignored(context)).collect()
}

fn missing(context: &RuleContext<'_>) -> Option<Observation> {
    let (ca, revocation) = (context.loaded_ca()?, context.revocation().filter(|revocation| revocation.is_of_no_ca())?);
    let (key, ca) = (revocation.key, ca.key);
    let seen = match revocation.lists.len() {
        0 => "no revocation list found".to_owned(),
        count => format!("{}, none for a CA in {ca}", counted(count, "revocation list")),
    };
    let message = format!(
        "{key}: {seen}. expected an X509 CRL block for each CA in {ca}: without it every client is refused; add the lists, or remove \
         {key}, after which revoked certificates are accepted"
    );
    Some(Observation::new(field(key), "none", message))
}

fn ignored(context: &RuleContext<'_>) -> Option<Observation> {
    let read = credential::crl_key(context.secret)?;
    let key = CRL_KEYS.into_iter().find(|key| *key != read)?;
    // `both-key-styles` reports lists under both keys.
    if context.crl.is_some() || credential::content(context.secret, key).is_none() {
        return None;
    }
    let ca = context.ca?.key;
    let message = format!(
        "{key}: gateways read the lists for {ca} from {read}, so these revoke nothing. expected them there; move them to {read}"
    );
    Some(Observation::new(field(key), "ignored", message).only_warns(true))
}

#[cfg(test)]
mod tests {
    use crate::trust::Severity;
    use crate::trust::fixtures::{NOTHING, ca, findings, secret, verdicts};

    #[test]
    fn accepts_a_list_of_each_ca_and_no_key() {
        let (one, two) = (ca("one"), ca("two"));
        let cas = one.pem() + &two.pem();
        let lists = one.crl_pem(2029, 2031, &[]) + &two.crl_pem(2029, 2031, &[]);
        assert_eq!(verdicts(&secret(&[("ca.crt", &cas), ("ca.crl", &lists)])), NOTHING);
        assert_eq!(verdicts(&secret(&[("cacert", &cas), ("crl", &lists)])), NOTHING);
        assert_eq!(verdicts(&secret(&[("ca.crt", &(cas.clone() + &lists))])), NOTHING);
        assert_eq!(verdicts(&secret(&[("ca.crt", &cas), ("ca.crl", "")])), NOTHING, "istiod passes on an empty text");
    }

    #[test]
    fn rejects_a_key_without_a_list_for_a_ca_of_the_bundle() {
        let one = ca("one").pem();
        let unrelated = ca("other").crl_pem(2029, 2031, &[]);
        for text in ["# comes later\n", &one, &unrelated, &ca("one").crl_pem(2029, 2031, &[])] {
            let found = findings(&secret(&[("ca.crt", &one), ("ca.crl", text)]));
            let denied: Vec<_> = found.iter().filter(|f| f.severity == Severity::Deny).collect();
            assert_eq!(
                denied.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(),
                [("crl-missing", "data[ca.crl]")]
            );
        }
    }

    #[test]
    fn warns_of_lists_under_a_key_that_is_not_read() {
        let one = ca("one");
        let found = findings(&secret(&[("ca.crt", &one.pem()), ("crl", &one.crl_pem(2029, 2031, &[]))]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("crl-missing", Severity::Warn)]);
        assert!(found[0].message.contains("move them to ca.crl"), "{}", found[0].message);
    }
}
