//! Hosts against a certificate's names (RFC 9525).

use std::net::IpAddr;

use crate::trust::{AltName, Certificate};

/// Whether a subject alternative name covers a host or an address. The common name does not count, as no current client
/// takes it (RFC 9525 section 2).
pub(crate) fn covers(certificate: &Certificate, host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    certificate.names.iter().any(|name| match (name, &address) {
        (AltName::Ip(ip), Ok(address)) => ip == address,
        (AltName::Dns(pattern), Err(_)) => dns(pattern, host),
        _ => false,
    })
}

/// A wildcard is the whole leftmost label, stands for exactly one, and never for the label below the root.
fn dns(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    match pattern.strip_prefix("*.") {
        Some(parent) => {
            let rest = host.split_once('.').filter(|(label, _)| !label.is_empty() && *label != "*");
            parent.contains('.') && rest.is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(parent))
        }
        None => !host.is_empty() && pattern.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_and_wildcards() {
        assert!(dns("A.example", "a.Example.") && dns("*.a.example", "x.a.example"));
    }

    #[test]
    fn rejects_what_a_wildcard_does_not_reach() {
        for (pattern, host) in [
            ("*.a.example", "a.example"),
            ("*.a.example", "x.y.a.example"),
            ("*.example", "a.example"),
            ("x*.a.example", "xy.a.example"),
            ("*.a.example", ".a.example"),
            ("", ""),
        ] {
            assert!(!dns(pattern, host), "{pattern} {host}");
        }
    }
}
