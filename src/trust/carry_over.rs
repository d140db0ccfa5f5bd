//! Which old CAs a bundle keeps after new ones.

use std::collections::HashSet;

use jiff::Timestamp;

use super::Certificate;

/// The new CAs, and after them the old ones that are kept: in their order, which is newest first, up to a number.
///
/// Expired CAs are dropped, and so are those that a CA with the same name and key replaces, as in [`Certificate::supersedes`].
pub fn carry_over(
    new: &[Certificate],
    old: impl IntoIterator<Item = Certificate>,
    most: usize,
    now: Timestamp,
) -> Vec<Certificate> {
    let mut whole = new.to_vec();
    // In a set, since a hostile bundle has thousands.
    let mut present: HashSet<_> = new.iter().map(|ca| (ca.subject_der.clone(), ca.public_key.clone())).collect();
    let kept = old.into_iter().filter(|ca| {
        ca.is_ca && !ca.is_expired(now) && present.insert((ca.subject_der.clone(), ca.public_key.clone()))
    });
    whole.extend(kept.take(most));
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::fixtures::{Authority, ca, ca_between, certificates, now};

    fn kept(new: &[&Authority], old: &[&Authority], most: usize) -> Vec<String> {
        let read = |cas: &[&Authority]| certificates(&cas.iter().map(|ca| ca.pem()).collect::<String>());
        carry_over(&read(new), read(old), most, now()).into_iter().map(|ca| ca.subject).collect()
    }

    #[test]
    fn old_cas_follow_in_their_order() {
        let (new, old, older) = (ca("new"), ca("old"), ca("older"));
        assert_eq!(kept(&[&new], &[&old, &older], 1), ["CN=new", "CN=old"]);
        assert_eq!(kept(&[&new], &[&old, &older], 2), ["CN=new", "CN=old", "CN=older"]);
        assert_eq!(kept(&[&new], &[&old], 0), ["CN=new"]);
        assert_eq!(kept(&[], &[&old], 1), ["CN=old"]);
    }

    #[test]
    fn expired_and_repeated_cas_do_not_count() {
        let (new, old, older, expired) = (ca("new"), ca("old"), ca("older"), ca_between("expired", 2020, 2025));
        assert_eq!(kept(&[&new], &[&expired, &new, &old, &older], 1), ["CN=new", "CN=old"]);
        assert_eq!(kept(&[&new], &[&old, &old, &older], 2), ["CN=new", "CN=old", "CN=older"]);
        assert_eq!(kept(&[&new.renewed(2029, 2045)], &[&new, &old], 1), ["CN=new", "CN=old"]);
    }
}
