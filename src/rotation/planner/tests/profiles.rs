//! Whole rotations with the CAs that well-known issuers write in `spec.caSecretRef`.

use std::iter::zip;

use jiff::SignedDuration;

use super::scene::{HOUR, Scene, reissues};
use crate::api::Phase;
use crate::rotation::SecretSummary;
use crate::rotation::planner::{PairOf, Step};
use crate::trust::ca_profiles::{Profile, profiles};
use crate::trust::fixtures::{now, parsed};
use crate::trust::{Secret, SecretUsage, Severities, UsageKind};

fn facts(secret: &Secret, kind: UsageKind) -> SecretSummary {
    SecretSummary::of(secret, SecretUsage { kind, ..SecretUsage::default() }, &Severities::default(), now())
}

fn pair(profile: &Profile, name: &str) -> SecretSummary {
    facts(&profile.leaf_secret(name), UsageKind::Serving)
}

fn signing(profile: &Profile) -> SecretSummary {
    facts(&profile.secret(), UsageKind::SigningCa)
}

#[test]
fn rotates_every_profile_that_may_sign() {
    let mut rotated = Vec::new();
    for (old, new) in zip(profiles("old"), profiles("new")) {
        let name = old.name;
        let mut scene = Scene::steady_with(signing(&old), pair(&old, "gateway"), pair(&old, "client"));
        if name == "public CA, code signing" {
            let trouble = scene.reconcile().trouble.unwrap_or_default();
            assert!(trouble.contains("not-a-ca"), "{name}: {trouble}");
            continue;
        }
        if name == "public CA, servers only" {
            // Gateways that trust only the root refuse clients of this CA.
            (scene.journal, scene.entry.status) = Default::default();
            scene.declared = false;
            scene.reconcile();
            scene.pass(HOUR);
        }
        let plan = scene.reconcile();
        assert_eq!(
            (plan.trouble.as_deref(), plan.phase, plan.steps.as_slice()),
            (None, Phase::Steady, &[][..]),
            "{name}"
        );
        scene.ca = signing(&new);
        let mut phases = Vec::new();
        for _ in 0..40 {
            let plan = scene.reconcile();
            assert_eq!(plan.trouble, None, "{name}");
            phases.push(plan.phase);
            if reissues(&plan).contains(&"client") {
                scene.client = pair(&new, "client");
                scene.client.anchors.push(parsed(old.anchor().der()));
            }
            if reissues(&plan).contains(&"gateway") {
                scene.source = pair(&new, "gateway");
            }
            scene.take(&plan);
            let is_switched =
                plan.steps.iter().any(|step| matches!(step, Step::WriteManaged { pair: PairOf::Source, .. }));
            scene.now += if is_switched { HOUR } else { SignedDuration::from_mins(5) };
        }
        phases.dedup();
        assert_eq!(
            (phases.first(), phases.last()),
            (Some(&Phase::TrustExpanded), Some(&Phase::Steady)),
            "{name}: {phases:?}"
        );
        assert_eq!(scene.issuer.chain, [parsed(new.ca.der())], "{name}");
        let managed = scene.managed.as_ref().expect("a managed Secret");
        assert_eq!(managed.anchors, [parsed(new.anchor().der())], "{name}");
        assert_eq!(managed.chain, scene.source.chain, "{name}");
        rotated.push(name);
    }
    assert_eq!(rotated.len(), 12, "{rotated:?}");
}
