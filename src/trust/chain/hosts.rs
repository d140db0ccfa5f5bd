//! Host names that a certificate covers (RFC 9525).

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use crate::trust::{AltName, Certificate};

/// A certificate's subject alternative names, indexed by host: a hostile certificate has tens of thousands, and is checked for as many.
/// The common name does not count, as no current client uses it (RFC 9525 section 2).
#[derive(Default)]
pub(crate) struct HostNames {
    addresses: HashSet<IpAddr>,
    /// In lower case, reversed: names below a domain are adjacent.
    hosts: BTreeSet<Vec<u8>>,
    /// The part after `*.` of names with a wildcard, in lower case.
    parents: HashSet<String>,
}

impl HostNames {
    /// The names of a certificate.
    pub(crate) fn of(certificate: &Certificate) -> Self {
        let mut names = Self::default();
        for name in &certificate.names {
            match name {
                AltName::Ip(address) => drop(names.addresses.insert(*address)),
                AltName::Dns(name) => names.add(name),
                AltName::Uri(_) | AltName::Email(_) => {}
            }
        }
        names
    }

    /// A wildcard is the whole leftmost label, occurs once, and never matches the label below the root.
    fn add(&mut self, name: &str) {
        if let Some(parent) = name.strip_prefix("*.").filter(|parent| parent.contains('.') && !parent.contains('*')) {
            self.parents.insert(parent.to_ascii_lowercase());
        }
        self.hosts.insert(reversed(name));
    }

    /// Whether one of them covers a host or an address.
    pub(crate) fn cover(&self, host: &str) -> bool {
        if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            return self.addresses.contains(&address);
        }
        let host = host.strip_suffix('.').unwrap_or(host);
        // A wildcard matches exactly one label, which is not itself a wildcard.
        let below = host.split_once('.').filter(|(label, _)| !label.is_empty() && *label != "*");
        let is_below = |(_, parent): (&str, &str)| self.parents.contains(&parent.to_ascii_lowercase());
        below.is_some_and(is_below)
            || !host.is_empty() && !host.starts_with("*.") && self.hosts.contains(&reversed(host))
    }

    /// Whether one of the names has this ending.
    pub(crate) fn end_with(&self, end: &str) -> bool {
        let end = reversed(end);
        self.hosts.range(end.clone()..).next().is_some_and(|name| name.starts_with(&end))
    }
}

fn reversed(name: &str) -> Vec<u8> {
    name.bytes().rev().map(|byte| byte.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> HostNames {
        let mut all = HostNames::default();
        names.iter().for_each(|name| all.add(name));
        all
    }

    #[test]
    fn accepts_names_and_wildcards() {
        assert!(names(&["A.example"]).cover("a.Example.") && names(&["*.a.example"]).cover("x.a.example"));
        let all = names(&["b.a.example", "z.example", "*.c.example"]);
        assert!([".example", ".a.example", "a.example", ".C.example", ""].into_iter().all(|end| all.end_with(end)));
    }

    #[test]
    fn rejects_hosts_that_a_wildcard_does_not_match() {
        for (pattern, host) in [
            ("*.a.example", "a.example"),
            ("*.a.example", "x.y.a.example"),
            ("*.example", "a.example"),
            ("x*.a.example", "xy.a.example"),
            ("*.a.example", ".a.example"),
            ("*.a.example", "*.a.example"),
            ("*.a.*.example", "b.a.*.example"),
            ("", ""),
        ] {
            assert!(!names(&[pattern]).cover(host), "{pattern} {host}");
        }
        assert!(!names(&["b.a.example"]).end_with(".b.a.example"));
        assert!(!names(&[]).end_with(""));
    }
}
