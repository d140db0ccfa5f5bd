//! Name constraints as BoringSSL matches them (crypto/x509/v3_ncons.cc).

use super::facts::{DIRECTORY, DNS, EMAIL, Facts, GeneralName, NameConstraints, Subtree, URI};
use super::name::{self, Name};

/// What a name meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not permitted, or excluded.
    Violation,
    /// It cannot be compared.
    Unsupported,
    /// Too many names and constraints.
    Budget,
}

/// emailAddress (PKCS #9), 1.2.840.113549.1.9.1.
const EMAIL_ADDRESS: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1];
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];

/// `NAME_CONSTRAINTS_check`. Takes what it costs from the budget.
pub(super) fn check(facts: &Facts<'_>, constraints: &NameConstraints<'_>, budget: &mut usize) -> Result<(), Fault> {
    let subject = facts.certificate.subject_der.as_slice();
    let alt_names = facts.alt_names.as_deref().unwrap_or_default();
    let attributes = name::count(subject);
    let cost = (attributes + alt_names.len()) * (constraints.permitted.len() + constraints.excluded.len());
    *budget = budget.checked_sub(cost).ok_or(Fault::Budget)?;
    if attributes > 0 {
        matches(GeneralName { kind: DIRECTORY, content: subject }, constraints, false)?;
        for (tag, content) in name::values(subject, &EMAIL_ADDRESS) {
            if tag != 22 {
                return Err(Fault::Unsupported);
            }
            matches(GeneralName { kind: EMAIL, content }, constraints, true)?;
        }
    }
    alt_names.iter().try_for_each(|name| matches(*name, constraints, false))
}

/// Whether a common name could be taken for a host (`x509v3_looks_like_dns_name`); with name constraints on the path a
/// leaf without alternative names is then refused.
pub(super) fn has_host_like_common_name(facts: &Facts<'_>) -> bool {
    let names = name::values(&facts.certificate.subject_der, &COMMON_NAME);
    names.into_iter().filter_map(|(tag, value)| name::text(tag, value)).any(|text| looks_like_host(&text))
}

fn looks_like_host(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let text = text.strip_prefix("*.").unwrap_or(text);
    let label = |label: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':');
        !label.is_empty() && !label.starts_with('-') && label.chars().all(known)
    };
    text.split('.').all(label)
}

fn matches(name: GeneralName<'_>, constraints: &NameConstraints<'_>, fold_excluded: bool) -> Result<(), Fault> {
    let of_kind = |list: &'_ [Subtree<'_>]| list.iter().any(|s| s.base.kind == name.kind);
    if of_kind(&constraints.permitted) {
        let mut permitted = false;
        for subtree in constraints.permitted.iter().filter(|s| s.base.kind == name.kind) {
            permitted = within(name, subtree, false, false)? || permitted;
        }
        if !permitted {
            return Err(Fault::Violation);
        }
    }
    for subtree in constraints.excluded.iter().filter(|s| s.base.kind == name.kind) {
        if within(name, subtree, true, fold_excluded)? {
            return Err(Fault::Violation);
        }
    }
    Ok(())
}

fn within(name: GeneralName<'_>, subtree: &Subtree<'_>, excluding: bool, fold: bool) -> Result<bool, Fault> {
    if subtree.has_range {
        return Err(Fault::Unsupported);
    }
    let (content, base) = (name.content, subtree.base.content);
    match name.kind {
        DIRECTORY => {
            let (name, base) = Name::read(content).zip(Name::read(base)).ok_or(Fault::Unsupported)?;
            Ok(name.0.starts_with(&base.0))
        }
        DNS => Ok(host(content, base, excluding)),
        EMAIL => email(content, base, fold).ok_or(Fault::Unsupported),
        URI => uri(content, base).ok_or(Fault::Unsupported),
        // Addresses, too.
        _ => Err(Fault::Unsupported),
    }
}

fn host(name: &[u8], base: &[u8], excluding: bool) -> bool {
    if base.is_empty() {
        return true;
    }
    let (name, base) = (name.strip_suffix(b".").unwrap_or(name), base.strip_suffix(b".").unwrap_or(base));
    // *.a.example may stand for the excluded b.a.example.
    if excluding && let Some(parent) = name.strip_prefix(b"*.") {
        let dot = base.iter().position(|b| *b == b'.');
        if dot.is_some_and(|dot| base[dot + 1..].eq_ignore_ascii_case(parent)) {
            return true;
        }
    }
    if base.starts_with(b".") {
        return ends_with(name, base);
    }
    let before = name.len().checked_sub(base.len() + 1).map(|at| name[at]);
    ends_with(name, base) && before.is_none_or(|b| b == b'.')
}

fn email(name: &[u8], base: &[u8], fold: bool) -> Option<bool> {
    let (local, domain) = mailbox(name)?;
    let base = base.strip_prefix(b"@").unwrap_or(base);
    if base.contains(&b'@') {
        let (base_local, base_domain) = mailbox(base)?;
        let same = if fold { base_local.eq_ignore_ascii_case(local) } else { base_local == local };
        return Some(same && base_domain.eq_ignore_ascii_case(domain));
    }
    if !is_domain(base) {
        return None;
    }
    Some(if base.starts_with(b".") { ends_with(domain, base) } else { base.eq_ignore_ascii_case(domain) })
}

fn mailbox(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| *b == b'@')?;
    let (local, domain) = (&text[..at], &text[at + 1..]);
    let sound = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(b);
    (!local.is_empty() && local.iter().all(sound) && is_domain(domain)).then_some((local, domain))
}

fn is_domain(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

fn uri(name: &[u8], base: &[u8]) -> Option<bool> {
    let colon = name.iter().position(|b| *b == b':')?;
    let rest = name[colon + 1..].strip_prefix(b"//")?;
    let until = |stop: u8| rest.iter().position(|b| *b == stop);
    let host = &rest[..until(b':').or_else(|| until(b'/')).unwrap_or(rest.len())];
    if host.is_empty() {
        return None;
    }
    Some(if base.starts_with(b".") { ends_with(host, base) } else { base.eq_ignore_ascii_case(host) })
}

fn ends_with(text: &[u8], end: &[u8]) -> bool {
    text.len().checked_sub(end.len()).is_some_and(|at| text[at..].eq_ignore_ascii_case(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_hosts_below_their_base() {
        for (name, base) in [("a.b", "b"), ("A.B.", "b"), ("b", "b"), ("x", ""), ("a.b", ".b"), ("*.b", "b")] {
            assert!(host(name.as_bytes(), base.as_bytes(), false), "{name} {base}");
        }
        assert!(host(b"*.b.c", b"a.b.c", true), "a wildcard may stand for what is excluded");
    }

    #[test]
    fn rejects_hosts_beside_their_base() {
        for (name, base) in [("ab", "b"), ("b", "a.b"), ("b", ".b"), ("*.b.c", "a.b.c")] {
            assert!(!host(name.as_bytes(), base.as_bytes(), false), "{name} {base}");
        }
    }

    #[test]
    fn accepts_and_rejects_mailboxes_and_uris() {
        assert_eq!(email(b"a@b.c", b"b.c", false), Some(true));
        assert_eq!(email(b"a@x.b.c", b"b.c", false), Some(false));
        assert_eq!(email(b"a@x.b.c", b".b.c", false), Some(true));
        assert_eq!(email(b"A@b.c", b"a@b.c", false), Some(false));
        assert_eq!(email(b"A@b.c", b"a@b.c", true), Some(true));
        assert_eq!(email(b"a", b"b.c", false), None);
        assert_eq!(uri(b"spiffe://td/ns", b"td"), Some(true));
        assert_eq!(uri(b"spiffe://td/ns", b".td"), Some(false));
        assert_eq!(uri(b"urn:x", b"td"), None);
    }

    #[test]
    fn rejects_common_names_that_are_no_hosts() {
        assert!(["a", "a.example", "*.a.", "a_b:c"].into_iter().all(looks_like_host));
        assert!(!["", "a b", "-a", "a..b", "root ca"].into_iter().any(looks_like_host));
    }
}
