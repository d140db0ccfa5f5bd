//! Carry-over: a Secret that asks for it by annotation keeps its old CAs beside the new ones in the very write that rotates
//! them, whoever writes it. Stateless: from `object` and `oldObject` alone.

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::api::names::CARRY_OVER;
use crate::trust::{Certificate, Secret, bundle, credential};

/// Old CAs that are kept unless the annotation says otherwise.
const DEFAULT: usize = 1;

/// The CA key of a Secret, and the bundle that it shall hold; `None` when nothing is to be carried over.
///
/// The old CAs are taken in their order, which is new first, up to the number in the annotation; expired ones, and those
/// that a CA of the same name and key replaces, are left out. A write that brings the old ones itself is not changed.
pub(super) fn bundle(object: &Value, old: &Value, now: Timestamp) -> Option<(&'static str, Vec<Certificate>)> {
    let most = most(object["metadata"]["annotations"][CARRY_OVER].as_str()?)?;
    let (key, new) = held(object)?;
    let (_, old) = held(old)?;
    let mut whole = new.clone();
    // By name and key, as [`Certificate::supersedes`] has it: a hostile bundle has thousands.
    let is_there: HashSet<_> = new.iter().map(|ca| (&ca.subject_der, &ca.public_key)).collect();
    let is_there = |ca: &Certificate| is_there.contains(&(&ca.subject_der, &ca.public_key));
    let kept = old.into_iter().filter(|ca| ca.is_ca && !ca.is_expired(now) && !is_there(ca));
    whole.extend(kept.take(most));
    (whole.len() > new.len()).then_some((key, whole))
}

/// How many old CAs the annotation wants kept; `None` for a value that has no effect.
pub(super) fn most(annotation: &str) -> Option<usize> {
    match annotation {
        "true" => Some(DEFAULT),
        number => number.parse().ok(),
    }
}

/// The bundle in force; `None` for one that a proxy would not load whole: the validating webhook says why.
fn held(object: &Value) -> Option<(&'static str, Vec<Certificate>)> {
    let secret = Secret::from_value(object).ok()?;
    let ca = credential::ca_bundle(&secret)?;
    let read = bundle::read(ca.pem);
    (read.rejected.is_none() && !read.entries.is_empty()).then(|| (ca.key, read.into_certificates()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trust::fixtures::{Authority, ca, ca_between, now};

    fn secret(annotation: &str, cas: &[&Authority]) -> Value {
        let text: String = cas.iter().map(|ca| ca.pem()).collect();
        json!({"metadata": {"annotations": {CARRY_OVER: annotation}}, "stringData": {"ca.crt": text}})
    }

    fn carried(annotation: &str, new: &[&Authority], old: &[&Authority]) -> Option<Vec<String>> {
        let (key, whole) = bundle(&secret(annotation, new), &secret(annotation, old), now())?;
        assert_eq!(key, "ca.crt");
        Some(whole.into_iter().map(|ca| ca.subject).collect())
    }

    #[test]
    fn accepts_the_old_ca_beside_the_new() {
        let (old, new, newer) = (ca("old"), ca("new"), ca("newer"));
        let names = |names: &[&str]| Some(names.iter().map(|name| format!("CN={name}")).collect::<Vec<_>>());
        assert_eq!(carried("true", &[&new], &[&old]), names(&["new", "old"]));
        // The same manifest again, a write that brings both, and the next rotation.
        assert_eq!(carried("true", &[&new], &[&new, &old]), names(&["new", "old"]));
        assert_eq!(carried("true", &[&new, &old], &[&new, &old]), None);
        assert_eq!(carried("true", &[&newer], &[&new, &old]), names(&["newer", "new"]));
        assert_eq!(carried("2", &[&newer], &[&new, &old]), names(&["newer", "new", "old"]));
    }

    #[test]
    fn rejects_what_is_not_to_be_kept() {
        let (old, new, expired) = (ca("old"), ca("new"), ca_between("expired", 2020, 2025));
        assert_eq!(carried("true", &[&new], &[&expired]), None);
        assert_eq!(carried("true", &[&old.renewed(2029, 2045)], &[&old]), None);
        assert_eq!(carried("0", &[&new], &[&old]), None);
        assert_eq!(carried("many", &[&new], &[&old]), None);
        assert_eq!(carried("true", &[&new], &[]), None);
        assert_eq!(bundle(&json!({}), &secret("true", &[&old]), now()), None);
    }
}
