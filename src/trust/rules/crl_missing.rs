//! `crl-missing`: revocation lists are looked for, and there is none.

use super::{Observation, Rule, Severity};
use crate::trust::credential::{self, CRL_KEYS};
use crate::trust::rule_context::RuleContext;
use crate::trust::secret::field;

/// Measured: with content under `ca.crl` Envoy checks revocation, and without a list of its CA every client is refused. A
/// list under the other key is never sent to it, so that the revoked pass.
pub(super) const RULE: Rule = Rule {
    id: "crl-missing",
    severity: Severity::Deny,
    summary: "a key for revocation lists that holds none, or none of a CA of the bundle; an ignored key warns",
    mend: "put a list of each CA under ca.crl (under crl beside cacert), or leave the key out",
    source: "Envoy, measured: it takes the update, then every handshake fails; istiod reads one key per CA key",
    example: "ca.crl: no revocation list was found. expected an X509 CRL block for each CA in ca.crt; with this key \
              there every client is refused: add the lists, or remove the key",
    looks_ahead: false,
    check,
};

fn check(subject: &RuleContext<'_>) -> Vec<Observation> {
    missing(subject).into_iter().chain(ignored(subject)).collect()
}

fn missing(subject: &RuleContext<'_>) -> Option<Observation> {
    let (ca, revocation) = (subject.loaded_ca()?, subject.revocation().filter(|seen| seen.is_of_nobody())?);
    let (key, ca) = (revocation.key, ca.key);
    let seen = match revocation.lists.len() {
        0 => "no revocation list was found".to_owned(),
        count => format!("none of its {count} revocation list(s) is of a CA in {ca}"),
    };
    let message = format!(
        "{key}: {seen}. expected an X509 CRL block for each CA in {ca}; with this key there every client is refused: add the \
         lists, or remove the key"
    );
    Some(Observation::new(field(key), "none", message))
}

fn ignored(subject: &RuleContext<'_>) -> Option<Observation> {
    let read = credential::crl_key(subject.secret)?;
    let key = CRL_KEYS.into_iter().find(|key| *key != read)?;
    // Beside lists under the right key it is another rule's: two styles of keys.
    if subject.crl.is_some() || credential::content(subject.secret, key).is_none() {
        return None;
    }
    let ca = subject.ca?.key;
    let message = format!(
        "{key}: gateways look for the lists of {ca} under {read}, so that nobody is revoked. expected them there; move them \
         to {read}"
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
        assert_eq!(verdicts(&secret(&[("ca.crt", &cas), ("ca.crl", "")])), NOTHING, "istiod passes on what is empty");
    }

    #[test]
    fn rejects_a_key_without_a_list_and_lists_of_nobody() {
        let one = ca("one").pem();
        let strange = ca("other").crl_pem(2029, 2031, &[]);
        for text in ["# comes later\n", &one, &strange, &ca("one").crl_pem(2029, 2031, &[])] {
            let found = findings(&secret(&[("ca.crt", &one), ("ca.crl", text)]));
            let denied: Vec<_> = found.iter().filter(|f| f.severity == Severity::Deny).collect();
            assert_eq!(
                denied.iter().map(|f| (f.rule, f.field.as_str())).collect::<Vec<_>>(),
                [("crl-missing", "data[ca.crl]")]
            );
        }
    }

    #[test]
    fn rejects_lists_under_a_key_that_is_not_read_with_a_warning() {
        let one = ca("one");
        let found = findings(&secret(&[("ca.crt", &one.pem()), ("crl", &one.crl_pem(2029, 2031, &[]))]));
        assert_eq!(found.iter().map(|f| (f.rule, f.severity)).collect::<Vec<_>>(), [("crl-missing", Severity::Warn)]);
        assert!(found[0].message.contains("move them to ca.crl"), "{}", found[0].message);
    }
}
