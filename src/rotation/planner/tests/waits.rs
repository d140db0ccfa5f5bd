//! Whether a person has to act on each kind of wait, as a table. Every plan of a scene or of the simulated cluster is
//! compared with it.

use super::scene::{HOUR, Scene, before_the_switch, pair, source};
use crate::api::{SecretRef, Wait};
use crate::rotation::RenewalPolicy;
use crate::rotation::planner::{FurtherCertificate, Pending};
use crate::rotation::readers::{ReaderTrust, TlsReader};
use crate::trust::fixtures::ca;

/// Whether a person has to act on a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Yes,
    No,
    /// In some states only: see the tests below.
    Sometimes,
}

/// A part of the reason, and whether a person has to act. More specific texts come first.
const WAITS: [(&str, Act); 52] = [
    // Gateways of other GatewaySecrets with the same clients: steps PromoteIssuer and ReissueClients.
    ("too, and some may not trust the new CA yet", Act::No),
    ("too, and do not have the new CA. Add it to", Act::Sometimes),
    // Requests of certificates.
    ("its issuer has not answered since", Act::Yes),
    ("its issuance failed at", Act::Yes),
    ("certificates at once, and next for", Act::No),
    ("and does not have the new CA. If this lasts", Act::Sometimes),
    // Bundles.
    ("is not added to the bundle", Act::Yes),
    ("and is left out of the bundle", Act::Yes),
    ("Clients that are not declared may use certificates of the previous CA", Act::Yes),
    ("is still accepted", Act::Yes),
    // Waits of several steps.
    ("may have earlier CAs of", Act::Sometimes),
    // Waits of probes. Without a probe, the propagation delay ends the wait, even if the canary is not renewed.
    ("Gateways have earlier content of the managed Secret", Act::Sometimes),
    ("so propagationDelays.gateways is assumed", Act::No),
    // A refused write: every step that reissues a Certificate.
    ("is not reissued. ", Act::Yes),
    // Pauses, change windows and renewal policies.
    ("spec.paused is true", Act::Yes),
    ("No change window of the RotationPolicy is open", Act::No),
    ("No change window of the RotationPolicy ever opens", Act::Yes),
    ("spec.renewal.policy is Disabled", Act::Yes),
    ("spec.renewal.windows allows no renewal before", Act::No),
    ("cert-manager has set no status.renewalTime", Act::Yes),
    // Step ExpandTrust.
    ("Revocation lists are in use", Act::Yes),
    ("Configure the issuer to use one CA", Act::Yes),
    ("is being reissued to obtain the CA", Act::No),
    ("to obtain the CA", Act::No),
    ("If this CA is yours, append its certificate", Act::Yes),
    ("names Secret gw itself", Act::Yes),
    ("or remove it from spec.additionalTrust", Act::Yes),
    ("is not changed: its readers may take the CAs in any order", Act::Yes),
    // Other sources of trust: steps ExpandTrust, PromoteIssuer and ReissueClients.
    ("The agent adds it", Act::No),
    ("may not have loaded the new CA from", Act::No),
    ("which no Gateway names any more", Act::No),
    ("takes its clients' CAs from", Act::Yes),
    ("cannot be listed", Act::Yes),
    ("no longer holds a CA that signs client certificates", Act::Yes),
    ("ConfigMap partners", Act::Yes),
    // Step PromoteIssuer.
    ("Create it empty, with the annotation", Act::Yes),
    ("holds no CA to sign with", Act::Yes),
    ("Not every gateway trusts the new CA yet", Act::No),
    // Step ReissueClients.
    ("Renew manually, and include the new CA in ca.crt", Act::Yes),
    ("only by the hash of the present certificate or key", Act::Yes),
    ("Java finds only one of several CAs", Act::Yes),
    ("The webhook may not know the clients' new bundle yet", Act::No),
    ("cert-manager reissues", Act::No),
    // Step ReissueServingCertificate.
    ("Gateways also present Secret", Act::Yes),
    ("itself, so it would switch as soon as that is reissued", Act::Yes),
    ("Not every client trusts the new CA yet", Act::Sometimes),
    // Step SwitchServingCertificate.
    ("Not every client trusts the CA of the new serving certificate yet", Act::Sometimes),
    ("Clients that are not declared may trust only the old CA", Act::Yes),
    ("The agent cannot list Certificates", Act::Yes),
    // Step DropOldCA.
    ("Certificates in use need", Act::No),
    ("Unknown certificates of the previous CA may be in use", Act::No),
    ("Cannot remove", Act::Yes),
];

fn expected(wait: &Wait) -> Act {
    let row = WAITS.iter().find(|(words, _)| wait.reason.contains(words));
    row.unwrap_or_else(|| panic!("a kind of wait without a row in WAITS: {wait:?}")).1
}

/// Compares the waits of a plan with the table.
pub(super) fn compare(waits: &[Wait]) {
    for wait in waits {
        let act = expected(wait);
        assert!(act == Act::Sometimes || wait.needs_action == (act == Act::Yes), "{act:?} expected: {wait:?}");
    }
}

/// Whether a person has to act on the wait whose reason has these words.
pub(super) fn needs_action(waits: &[Wait], words: &str) -> bool {
    waits
        .iter()
        .find(|wait| wait.reason.contains(words))
        .unwrap_or_else(|| panic!("no {words} in {waits:?}"))
        .needs_action
}

#[test]
fn a_client_that_loads_its_secret_at_start_needs_a_person_once_its_secret_has_the_new_ca() {
    let (old, new) = (ca("old"), ca("new"));
    for (served, words) in [
        (&old, "Not every client trusts the new CA yet"),
        (&new, "Not every client trusts the CA of the new serving certificate yet"),
    ] {
        let mut loaded = before_the_switch(&old, &new, true);
        loaded.source = pair(served, "gateway");
        assert!(needs_action(&loaded.reconcile().waits, words), "the agent cannot restart it: {words}");
        for loads_once in [false, true] {
            let mut scene = Scene::steady(&old);
            (scene.ca, scene.loads_once) = (source(&new), loads_once);
            scene.take(&scene.plan());
            scene.pass(HOUR);
            scene.take(&scene.plan());
            scene.pass(HOUR);
            scene.source = pair(served, "gateway");
            assert!(!needs_action(&scene.reconcile().waits, words), "the agent has it reissued: {words}");
        }
    }
}

/// The kinds of waits that occur in no other test.
#[test]
fn every_other_kind_of_wait_says_whether_it_needs_a_person() {
    let (old, new) = (ca("old"), ca("new"));
    let rotating = || {
        let mut scene = Scene::steady(&old);
        scene.ca = source(&new);
        scene
    };
    let mut elsewhere = rotating();
    elsewhere.has_issuer = false;
    elsewhere.entry.resolved.ca_secret_ref =
        Some(SecretRef { namespace: Some("cert-manager".to_owned()), name: "ca".to_owned() });
    let mut unlisted = rotating();
    let trust = ReaderTrust::Unlisted("forbidden".to_owned());
    unlisted.readers.push(TlsReader::of("ClientTrafficPolicies", "", trust));
    unlisted.take(&unlisted.plan());
    unlisted.pass(HOUR);
    let mut also = rotating();
    let chain = Some(pair(&old, "public").chain);
    also.presented_also = vec![FurtherCertificate { name: "public".to_owned(), chain, certificate: None }];
    let mut reissued = Scene::steady(&old);
    reissued.entry.resolved.ca_secret_ref = None;
    reissued.entry.spec.issuer_secret_name = None;
    reissued.pending = Some(Pending { chain: pair(&new, "client").chain, at: reissued.now });
    reissued.is_issuing = true;
    let mut never = before_the_switch(&old, &new, false);
    never.client = pair(&old, "client");
    never.renewal[0] = RenewalPolicy::Windows(None);
    for (mut scene, words) in [
        (elsewhere, "Create it empty, with the annotation"),
        (unlisted, "cannot be listed"),
        (also, "Gateways also present Secret"),
        (reissued, "is being reissued to obtain the CA"),
        (never, "cert-manager has set no status.renewalTime"),
    ] {
        let waits = scene.reconcile().waits;
        assert_eq!(needs_action(&waits, words), words != "is being reissued to obtain the CA", "{words}");
    }
}
