//! Reissues that the API server refuses: other Certificates go on, and a wait says what to do.

use super::renewal::promoted;
use super::scene::{Scene, pair, reissues, source};
use crate::api::{StepName, Wait};
use crate::rotation::RenewalPolicy;
use crate::rotation::planner::{ClientState, Issuance, Plan, Trust};
use crate::trust::fixtures::{Authority, ca, parsed};

const REFUSED: &str = "An admission webhook or policy of the cluster rejects a write of the agent.";

fn client(name: &str, old: &Authority, refused: bool) -> ClientState {
    let refused = refused.then(|| REFUSED.to_owned());
    ClientState {
        name: name.to_owned(),
        chain: pair(old, name).chain,
        trust: Trust::Read(source(old).anchors),
        loads_once: false,
        is_retired: false,
        certificate: Some(Issuance { name: name.to_owned(), refused, ..Issuance::default() }),
        pending: None,
    }
}

fn waits(plan: &Plan) -> Vec<&Wait> {
    plan.waits.iter().filter(|wait| wait.step == StepName::ReissueClients).collect()
}

fn scene(old: &Authority, new: &Authority) -> Scene {
    promoted(old, new, [RenewalPolicy::Anytime, RenewalPolicy::Anytime])
}

#[test]
fn a_refused_reissue_is_a_wait_with_the_reason_and_other_clients_go_on() {
    let (old, new) = (ca("old"), ca("new"));
    let plan = scene(&old, &new).plan_with(vec![client("apps/checkout", &old, true), client("payments", &old, false)]);
    assert_eq!(reissues(&plan), ["apps/checkout", "payments"], "a refused request is made again");
    let [refused, requested] = waits(&plan)[..] else { panic!("{:?}", plan.waits) };
    let said = "Certificate apps/checkout is not reissued. An admission webhook or policy of the cluster rejects a write of the agent. \
                Or renew it yourself: cmctl renew checkout -n apps";
    assert_eq!((refused.reason.as_str(), refused.needs_action), (said, true));
    assert_eq!((requested.reason.as_str(), requested.needs_action), ("cert-manager reissues payments", false));
}

#[test]
fn refused_reissues_take_no_place_of_others() {
    let (old, new) = (ca("old"), ca("new"));
    let refused = (0..20).map(|number| client(&format!("a-{number:02}"), &old, true));
    let clients = refused.chain([client("payments", &old, false)]).collect();
    let plan = scene(&old, &new).plan_with(clients);
    assert!(reissues(&plan).contains(&"payments"), "{:?}", plan.steps);
    let of_refused: Vec<_> = waits(&plan).into_iter().filter(|wait| wait.needs_action).collect();
    assert_eq!(of_refused.len(), 3, "the others are counted");
    assert!(of_refused[2].reason.ends_with("17 more Certificates may not be reissued now"), "{of_refused:?}");
}

#[test]
fn a_refused_reissue_of_the_serving_certificate_is_a_wait() {
    let (old, new) = (ca("old"), ca("new"));
    let mut scene = scene(&old, &new);
    scene.client = pair(&new, "client");
    scene.client.anchors.push(parsed(old.der()));
    scene.pass(super::scene::HOUR);
    scene.refused = Some(REFUSED.to_owned());
    let plan = scene.reconcile();
    assert_eq!(reissues(&plan), ["gateway"]);
    let wait = plan.waits.iter().find(|wait| wait.step == StepName::ReissueServingCertificate).expect("a wait");
    assert!(wait.needs_action && wait.reason.starts_with("Certificate gateway is not reissued. "), "{wait:?}");
}

#[test]
fn a_reissue_that_is_blocked_is_not_requested_and_predicted() {
    let (old, new) = (ca("old"), ca("new"));
    let blocked = "Certificates a, b write the same Secret checkout";
    let mut client = client("checkout", &old, false);
    client.certificate.as_mut().unwrap().blocked = Some(blocked.to_owned());
    let plan = scene(&old, &new).plan_with(vec![client]);
    assert!(reissues(&plan).is_empty(), "{:?}", plan.steps);
    let [wait] = waits(&plan)[..] else { panic!("{:?}", plan.waits) };
    assert_eq!(
        (wait.reason.as_str(), wait.needs_action),
        (&*format!("Certificate checkout is not reissued. {blocked}"), true)
    );
}
