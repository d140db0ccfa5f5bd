//! What a controller that keeps the objects of a profile does: when it creates and rotates, and which objects it leaves to other writers.

use jiff::Timestamp;
use serde_json::Value;

use super::pending::CERTIFICATE;
use super::{Blocked, Intent, ObjectKind, Objects, Options, Profile};
use crate::api::names::{ADOPT, is_ca_injected};
use crate::json::Json;
use crate::trust::{Secret, bundle};

/// A certificate is renewed when less than this part of its lifetime is left, as by cert-manager.
const RENEWED_PART: i32 = 3;

/// The options with which a controller computes its next step ([`super::next`]). It creates what is missing, and rotates when two thirds of
/// the profile's `duration` have passed since a leaf was issued. Once all leaves have expired, there is no connection that stages could keep.
///
/// # Errors
/// When another writer keeps an object of the profile.
pub fn upkeep(profile: &Profile, objects: &Objects, now: Timestamp) -> Result<Options, Blocked> {
    check_writers(profile, objects)?;
    let stored = profile.certificates.iter().filter_map(|one| objects.get(ObjectKind::Secret, &one.secret_name));
    let ends: Vec<_> = stored.map(end_of_leaf).collect();
    let is_due = |end: &Option<Timestamp>| end.is_none_or(|end| now >= renewal(profile, end));
    let is_partial = !ends.is_empty() && ends.len() < profile.certificates.len();
    let intent = if objects.get(ObjectKind::Secret, &profile.pending_secret_name).is_some() {
        Intent::Resume
    } else if is_partial || ends.iter().any(is_due) {
        Intent::Rotate
    } else {
        Intent::Create
    };
    let is_expired = |end: &Option<Timestamp>| end.is_some_and(|end| end < now);
    Ok(Options { intent, single_write: !ends.is_empty() && ends.iter().all(is_expired) })
}

/// When a leaf that is valid until `end` is renewed.
fn renewal(profile: &Profile, end: Timestamp) -> Timestamp {
    end.saturating_sub(profile.duration.duration() / RENEWED_PART).unwrap_or(Timestamp::MIN)
}

/// The end of validity of the leaf in a Secret; `None` if it cannot be read.
fn end_of_leaf(secret: &Value) -> Option<Timestamp> {
    let secret = Secret::from_value(secret).ok()?;
    let chain = bundle::read_chain(secret.data.get(CERTIFICATE)?).into_certificates();
    chain.first().map(|leaf| leaf.not_after)
}

/// Fails if cert-manager writes one of the objects, or if a Secret is neither of this profile nor adopted.
fn check_writers(profile: &Profile, objects: &Objects) -> Result<(), Blocked> {
    let by_cert_manager = |what: String| {
        Err(Blocked(format!(
            "cert-manager writes {what}: let one of the two keep the certificate, and remove the other's objects"
        )))
    };
    for (reference, object) in &objects.0 {
        match reference.kind {
            ObjectKind::MutatingWebhookConfiguration | ObjectKind::ValidatingWebhookConfiguration
                if is_ca_injected(&Json::from(object)) =>
            {
                return by_cert_manager(format!(
                    "the caBundle of {reference} (annotation cert-manager.io/inject-ca-from)"
                ));
            }
            ObjectKind::Secret => {
                let (labels, annotations) = (&object["metadata"]["labels"], &object["metadata"]["annotations"]);
                if !annotations["cert-manager.io/certificate-name"].is_null() {
                    return by_cert_manager(reference.to_string());
                }
                let is_pending = reference.name == profile.pending_secret_name;
                let is_ours = profile.labels.iter().all(|(name, value)| labels[name] == value.as_str());
                if !is_pending && !is_ours && annotations[ADOPT] != "true" {
                    return Err(Blocked(format!(
                        "{reference} was not created for profile {}: delete it, or let trustspan adopt it with the annotation {ADOPT}: \"true\"",
                        profile.name
                    )));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
