//! Name constraints, matched as by BoringSSL (crypto/x509/v3_ncons.cc).

use super::general_name::{DIRECTORY, DNS, EMAIL, NameConstraints, Subtree, URI};
use super::name::Name;
use super::parsed_cert::ParsedCert;

/// Why a name does not satisfy the constraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConstraintFault {
    /// The name is not permitted, or it is excluded.
    Violation,
    /// A name or constraint that BoringSSL cannot compare.
    Unsupported,
    /// Too many names and constraints.
    Budget,
}

/// Skipping a constraint of another kind takes as long as comparing this many bytes of a name.
const COMPARED: usize = 8;

/// `NAME_CONSTRAINTS_check`. Its cost is taken from the budget.
pub(super) fn check(
    parsed: &ParsedCert<'_>,
    constraints: &NameConstraints<'_>,
    budget: &mut usize,
) -> Result<(), ConstraintFault> {
    let (subject, attributes) = (parsed.certificate.subject_der.as_slice(), parsed.attributes());
    if !attributes.is_empty {
        matches(DIRECTORY, subject, Some(&parsed.subject), constraints, false, budget)?;
        for (tag, content) in &attributes.emails {
            if *tag != 22 {
                return Err(ConstraintFault::Unsupported);
            }
            matches(EMAIL, content, None, constraints, true, budget)?;
        }
    }
    let names = parsed.alt_names.iter().flatten();
    names
        .map(|name| (name, name.directory.as_ref()))
        .try_for_each(|(name, directory)| matches(name.kind, name.content, directory, constraints, false, budget))
}

fn matches(
    kind: u32,
    content: &[u8],
    directory: Option<&Name>,
    constraints: &NameConstraints<'_>,
    fold_excluded: bool,
    budget: &mut usize,
) -> Result<(), ConstraintFault> {
    let NameConstraints { permitted, excluded } = constraints;
    let lengths = of_kind(kind, permitted).chain(of_kind(kind, excluded)).map(|subtree| subtree.base.content.len());
    let lengths = lengths.reduce(|sum, length| sum + length);
    let compared = lengths.map_or(0, |sum| sum + content.len());
    let cost = 1 + permitted.len() + excluded.len() + compared / COMPARED;
    *budget = budget.checked_sub(cost).ok_or(ConstraintFault::Budget)?;
    if lengths.is_none() {
        return Ok(());
    }
    let form = Form::of(kind, content, directory);
    let mut is_permitted = None;
    for subtree in of_kind(kind, permitted) {
        // After a subtree that fits, the others are not compared, but none of them may have a range.
        let fits = is_permitted == Some(true) && !subtree.has_range;
        is_permitted = Some(fits || within(&form, subtree, false, false)?);
    }
    if is_permitted == Some(false) {
        return Err(ConstraintFault::Violation);
    }
    for subtree in of_kind(kind, excluded) {
        if within(&form, subtree, true, fold_excluded)? {
            return Err(ConstraintFault::Violation);
        }
    }
    Ok(())
}

fn of_kind<'l, 'a>(kind: u32, list: &'l [Subtree<'a>]) -> impl Iterator<Item = &'l Subtree<'a>> {
    list.iter().filter(move |subtree| subtree.base.kind == kind)
}

/// The part of a name that is compared, read once for all constraints.
enum Form<'n> {
    Directory(&'n Name),
    Host(&'n [u8]),
    Mailbox {
        local: &'n [u8],
        domain: &'n [u8],
    },
    /// The host of a URI.
    Authority(&'n [u8]),
    /// A name of another kind, or one that BoringSSL cannot compare, such as an address.
    Other,
}

impl<'n> Form<'n> {
    fn of(kind: u32, content: &'n [u8], directory: Option<&'n Name>) -> Self {
        let form = match kind {
            DIRECTORY => directory.map(Self::Directory),
            DNS => Some(Self::Host(content)),
            EMAIL => mailbox(content).map(|(local, domain)| Self::Mailbox { local, domain }),
            URI => authority(content).map(Self::Authority),
            _ => None,
        };
        form.unwrap_or(Self::Other)
    }
}

/// Whether a name is in a subtree of its kind.
fn within(name: &Form<'_>, subtree: &Subtree<'_>, excluding: bool, fold: bool) -> Result<bool, ConstraintFault> {
    if subtree.has_range {
        return Err(ConstraintFault::Unsupported);
    }
    let base = subtree.base.content;
    let within = match name {
        Form::Directory(name) => subtree.base.directory.as_ref().map(|base| name.is_below(base)),
        Form::Host(name) => Some(host(name, base, excluding)),
        Form::Mailbox { local, domain } => email(local, domain, base, fold),
        Form::Authority(name) => uri(name, base),
        Form::Other => None,
    };
    within.ok_or(ConstraintFault::Unsupported)
}

fn host(name: &[u8], base: &[u8], excluding: bool) -> bool {
    if base.is_empty() {
        return true;
    }
    let (name, base) = (name.strip_suffix(b".").unwrap_or(name), base.strip_suffix(b".").unwrap_or(base));
    // *.a.example may match the excluded b.a.example.
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

fn email(local: &[u8], domain: &[u8], base: &[u8], fold: bool) -> Option<bool> {
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
    let is_allowed = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(b);
    (!local.is_empty() && local.iter().all(is_allowed) && is_domain(domain)).then_some((local, domain))
}

fn is_domain(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// The host of a URI. Measured with Envoy 1.40: it applies RFC 3986 strictly, and a host that is not a plain name cannot be compared,
/// whatever the constraint is.
fn authority(name: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = name.split_at(name.iter().position(|b| *b == b':')?);
    let known = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    if !scheme.first()?.is_ascii_alphabetic() || !scheme.iter().all(known) {
        return None;
    }
    let rest = rest.strip_prefix(b"://")?;
    let authority = rest.split(|b| matches!(b, b'/' | b'?' | b'#')).next()?;
    let (host, port) = authority.split_at(authority.iter().position(|b| *b == b':').unwrap_or(authority.len()));
    if !port.iter().skip(1).all(u8::is_ascii_digit) {
        return None;
    }
    plain_host(host)
}

fn uri(host: &[u8], base: &[u8]) -> Option<bool> {
    match base.strip_prefix(b".") {
        Some(parent) => plain_host(parent).map(|_| ends_with(host, base)),
        None => plain_host(base).map(|base| base.eq_ignore_ascii_case(host)),
    }
}

/// A name of letters, digits and hyphens, without its final dot; not an address.
fn plain_host(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_suffix(b".").unwrap_or(text);
    let is_label = |label: &[u8]| {
        (1..=63).contains(&label.len())
            && label.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
            && !label.starts_with(b"-")
            && !label.ends_with(b"-")
    };
    let mut labels = text.split(|b| *b == b'.');
    let is_number = is_number(labels.clone().next_back()?);
    (labels.all(is_label) && !is_number).then_some(text)
}

/// Decimal, octal or hexadecimal: a host whose last label is a number is an address.
fn is_number(label: &[u8]) -> bool {
    let hex = label.strip_prefix(b"0x").or_else(|| label.strip_prefix(b"0X"));
    match hex {
        Some(digits) => digits.iter().all(u8::is_ascii_hexdigit),
        None => label.iter().all(u8::is_ascii_digit),
    }
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
        assert!(host(b"*.b.c", b"a.b.c", true), "a wildcard may match an excluded name");
    }

    #[test]
    fn rejects_hosts_outside_their_base() {
        for (name, base) in [("ab", "b"), ("b", "a.b"), ("b", ".b"), ("*.b.c", "a.b.c")] {
            assert!(!host(name.as_bytes(), base.as_bytes(), false), "{name} {base}");
        }
    }

    fn of_email(name: &[u8], base: &[u8], fold: bool) -> Option<bool> {
        mailbox(name).and_then(|(local, domain)| email(local, domain, base, fold))
    }

    fn of_uri(name: &[u8], base: &[u8]) -> Option<bool> {
        authority(name).and_then(|host| uri(host, base))
    }

    #[test]
    fn accepts_and_rejects_mailboxes_and_uris() {
        assert_eq!(of_email(b"a@b.c", b"b.c", false), Some(true));
        assert_eq!(of_email(b"a@x.b.c", b"b.c", false), Some(false));
        assert_eq!(of_email(b"a@x.b.c", b".b.c", false), Some(true));
        assert_eq!(of_email(b"A@b.c", b"a@b.c", false), Some(false));
        assert_eq!(of_email(b"A@b.c", b"a@b.c", true), Some(true));
        assert_eq!(of_email(b"a", b"b.c", false), None);
        assert_eq!(of_uri(b"spiffe://td/ns", b"td"), Some(true));
        assert_eq!(of_uri(b"spiffe://td/ns", b".td"), Some(false));
        assert_eq!(of_uri(b"urn:x", b"td"), None);
        assert_eq!(of_email(b"a@b.c", b"@b.c", false), None);
    }

    #[test]
    fn accepts_plain_hosts_of_uris() {
        for name in ["spiffe://a.b/x", "https://A.B:80/", "https://a.b:?x", "s+1://a.b#x", "x://a.b.", "x://a-1.b"] {
            assert!(of_uri(name.as_bytes(), b"a.c").is_some(), "{name}");
            assert_eq!(of_uri(name.as_bytes(), b".b"), Some(true), "{name}");
        }
    }

    #[test]
    fn does_not_compare_hosts_that_are_not_plain_names() {
        let long = format!("x://{}.b", "a".repeat(64));
        let hosts = [
            "10.0.0.1", "1.2", "123", "a.123", "a.0x1f", "0X", "[::1]", "me@a.b", "a_b.c", "-a.b", "a..b", "a%20b.c",
            "*.a.b", "\u{e4}.b", "",
        ];
        let names = hosts.map(|host| format!("x://{host}/y"));
        for name in names.iter().map(String::as_str).chain([
            "1x://a.b",
            " x://a.b",
            "x:a//a.b",
            "x://a.b:p",
            "x://a.b\\x",
            &long,
        ]) {
            assert_eq!(of_uri(name.as_bytes(), b"other"), None, "{name}");
        }
        for base in ["", ".", "10.0.0.1", "a_b"] {
            assert_eq!(of_uri(b"x://a.b/y", base.as_bytes()), None, "{base:?}");
        }
    }
}
