//! `hosts-not-covered`: a serving leaf that does not cover the hosts of the Gateways that use it.

use std::collections::BTreeSet;

use super::{Observation, Rule, Severity};
use crate::trust::chain::HostNames;
use crate::trust::finding::counted;
use crate::trust::name::brief;
use crate::trust::rule_context::RuleContext;

/// Hosts in one message.
const NAMED: usize = 3;

/// A host of a Gateway may carry a namespace (`ns/host`), be a wildcard for any number of labels, or `*`. A wildcard is
/// covered as soon as the leaf has a name below it: clients may never ask for other names.
pub(super) const RULE: Rule = Rule {
    id: "hosts-not-covered",
    severity: Severity::Warn,
    summary: "a serving leaf that does not cover the hosts of the Gateways that use it",
    remedy: "issue the leaf with these hosts as subject alternative names, or remove the hosts from the Gateway",
    source: "RFC 9525 section 6; https://istio.io/latest/docs/reference/config/networking/gateway/#Server",
    example: "tls.crt: CN=shop.example.com does not cover pay.example.com of the Gateways that use it. expected every host among \
              its subject alternative names; reissue it with them",
    warns_ahead: false,
    check,
};

fn check(context: &RuleContext<'_>) -> Vec<Observation> {
    let Some((chain, leaf)) = context.served() else { return Vec::new() };
    let names = HostNames::of(leaf);
    let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
    for gateway in context.usage.gateways {
        // Hosts of other namespaces are not disclosed.
        let hosts = if gateway.namespace == context.secret.namespace { &mut own } else { &mut others };
        hosts.extend(gateway.hosts.iter().map(|host| bare(host)).filter(|host| !serves(&names, host)));
    }
    if own.is_empty() && others.is_empty() {
        return Vec::new();
    }
    let named: Vec<_> = own.iter().take(NAMED).copied().collect();
    let more = own.union(&others).count() - named.len();
    let which = match (named.is_empty(), more) {
        (true, more) => counted(more, "host"),
        (false, 0) => named.join(", "),
        (false, more) => format!("{} and {more} more", named.join(", ")),
    };
    let message = format!(
        "{}: {} does not cover {which} of the Gateways that use it. expected every host among its subject alternative names; reissue \
         it with them",
        chain.key,
        brief(&leaf.subject)
    );
    vec![Observation::new(chain.field(), leaf.fingerprint.as_str(), message)]
}

/// The host of a server without the prefix `NAMESPACE/`, which limits the VirtualServices that may bind to it.
fn bare(host: &str) -> &str {
    host.split_once('/').map_or(host, |(_, host)| host)
}

fn serves(names: &HostNames, host: &str) -> bool {
    match host.strip_prefix('*') {
        None => names.cover(host),
        Some(parent) => parent.is_empty() || names.end_with(parent),
    }
}

#[cfg(test)]
mod tests {
    use crate::trust::fixtures::{ca, now, secret};
    use crate::trust::{GatewayUse, SecretUsage, judge};

    /// Findings on a leaf with this name, used by a Gateway of a namespace with these hosts.
    fn found(name: &str, namespace: &str, hosts: &[&str]) -> Vec<String> {
        let leaf = ca("one").leaf(name);
        let secret = secret(&[("tls.crt", &leaf.pem()), ("tls.key", &leaf.key_pem())]);
        let gateways = [GatewayUse {
            group: "networking.istio.io".to_owned(),
            namespace: namespace.to_owned(),
            name: "public".to_owned(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        }];
        let found = judge(&secret, SecretUsage { gateways: &gateways, ..SecretUsage::default() }, now());
        found.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn accepts_hosts_and_wildcards_that_are_covered() {
        for hosts in [
            &["a.example.com"][..],
            &["ns/a.example.com", "./b.example.com"],
            &["*.example.com"],
            &["*"],
            &["*/*"],
            &[],
        ] {
            assert_eq!(found("*.example.com", "istio-system", hosts), Vec::<String>::new(), "{hosts:?}");
        }
        assert!(
            found("a.example.com", "istio-system", &["*.example.com"]).is_empty(),
            "one name of a wildcard is enough"
        );
    }

    #[test]
    fn warns_of_other_hosts() {
        for host in ["example.com", "a.b.example.com", "a.example.org", "*.example.org"] {
            let found = found("*.example.com", "istio-system", &[host, "b.example.com"]);
            assert!(found.len() == 1 && found[0].contains(&format!("does not cover {host} of")), "{host}: {found:?}");
        }
    }

    #[test]
    fn counts_hosts_of_other_namespaces_without_naming_them() {
        let found = found("*.example.com", "team-b", &["secret.example.org"]);
        assert!(found.len() == 1 && found[0].contains("does not cover 1 host of"), "{found:?}");
    }
}
