#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::api::{LaggingClient, LeafKind, StepName, Wait};
use crate::registry::tests::entry;
use crate::registry::{Place, Registry, RewriteBlocker};
use crate::trust::fixtures::now;

fn gateway(namespace: &str, name: &str, hosts: Vec<String>) -> GatewayUse {
    let group = "networking.istio.io".to_owned();
    GatewayUse { group, namespace: namespace.to_owned(), name: name.to_owned(), hosts }
}

fn fitted(change: impl FnOnce(&mut GatewaySecretStatus)) -> GatewaySecretStatus {
    let mut entry = entry("mesh", "root", "gw");
    change(&mut entry.status);
    let mut status = entry.status.clone();
    fit(&entry, &mut status, now());
    status
}

fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_string(value).unwrap().len()
}

#[test]
fn a_thousand_hostile_gateways_displace_no_other() {
    let long = |number: usize| (0..480).map(move |host| format!("{host}.{number}.{}.example.com", "x".repeat(200)));
    let hostile = (0..1_000).map(|number| gateway("hostile", &format!("gateway-{number}"), long(number).collect()));
    let others: Vec<_> = [("mesh", 20), ("apps", 20), ("zz", 20)]
        .iter()
        .flat_map(|(namespace, many)| (0..*many).map(move |number| (*namespace, number)))
        .map(|(namespace, number)| {
            gateway(namespace, &format!("shop-{number}"), vec![format!("{namespace}-{number}.example.com")])
        })
        .collect();
    let mut all: Vec<_> = hostile.chain(others.clone()).collect();
    all.sort();
    let status = fitted(|status| status.gateways = Some(all));
    let listed = status.gateways.as_deref().unwrap();
    for other in &others {
        assert!(listed.contains(other), "{other:?}");
    }
    assert!(listed.iter().any(|gateway| gateway.namespace == "hostile" && !gateway.hosts.is_empty()));
    assert!(listed.is_sorted());
    let bytes = json_bytes(&listed);
    assert!(bytes <= GATEWAYS.bytes + HOSTS.bytes, "{bytes}");
}

#[test]
fn what_people_read_is_less_than_256_kib_however_much_there_is() {
    let name = |number: usize| format!("{number:0253}");
    let status = fitted(|status| {
        let hosts = |number| (0..100).map(|host| format!("{host}.{number}.{}", "\u{1}".repeat(250))).collect();
        status.gateways = Some((0..2_000).map(|n| gateway(&format!("{:063}", n % 700), &name(n), hosts(n))).collect());
        let lagging = |number| LaggingClient { name: name(number), since: now(), overdue: true };
        status.lagging = (0..5_000).map(lagging).collect();
        status.cut_off_by_copy = Some((0..5_000).map(name).collect());
        let wait = Wait {
            step: StepName::SwitchServingCertificate,
            reason: "ä".repeat(100_000),
            until: None,
            needs_action: false,
        };
        status.waits = vec![wait.clone(); 1_000];
        status.waits.push(Wait { needs_action: true, ..wait });
        let namespaces = |from: usize, to: usize| Some((from..to).map(|number| format!("{number:063}")).collect());
        status.workload_namespaces = namespaces(0, 300);
        status.ungranted_namespaces = namespaces(0, 200);
        let condition = crate::api::Condition { message: "x".repeat(50_000), ..status.conditions[0].clone() };
        let types = (0..13).map(|number| format!("Type{number}"));
        status.conditions = types.map(|type_| crate::api::Condition { type_, ..condition.clone() }).collect();
    });
    let bytes = json_bytes(&status);
    println!("status that is cut everywhere: {bytes} bytes");
    assert!(bytes < 256 << 10, "{bytes}");
    assert!(status.workload_namespaces.is_some() && status.ungranted_namespaces.is_some());
    assert!(status.waits[0].reason.ends_with('…'));
    assert!(status.waits[0].needs_action && !status.waits[1].needs_action, "what a person has to do stays");
    let reduced = json_bytes(&reduced(&status));
    assert!(reduced < bytes / 2, "{reduced}");
}

#[test]
fn those_that_lag_longest_are_listed() {
    let at = |second: usize| Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
    let lagging = |number: usize| LaggingClient {
        name: format!("{number}-{}", "x".repeat(200)),
        since: at(10_000 - number),
        overdue: false,
    };
    let status = fitted(|status| status.lagging = (0..5_000).map(lagging).collect());
    assert_eq!(status.lagging[0].since, at(5_001));
    assert!(status.lagging.is_sorted_by_key(|client| client.since) && status.lagging.len() < 1_000);
}

#[test]
fn namespaces_that_do_not_fit_hold_every_rename() {
    let mut entry = entry("mesh", "root", "gw");
    entry.spec.workload_labels = [("istio".to_owned(), "gateway".to_owned())].into();
    let many = || Some((0..600).map(|number| format!("team-{number}")).collect::<Vec<_>>());
    entry.status.workload_namespaces = many();
    entry.status.workload_namespace_count = Some(600);
    entry.status.ungranted_namespaces = many();
    entry.status.ungranted_namespace_count = Some(600);
    let mut status = entry.status.clone();
    fit(&entry, &mut status, now());
    let complete = status.condition(COMPLETE).unwrap();
    assert_eq!(complete.status, ConditionStatus::False);
    assert!(complete.message.contains("600 namespaces"), "{}", complete.message);
    entry.status = status;
    let registry = Registry::new([entry.clone()]);
    let held = |place: Place<'_>| registry.rename(&place, "root").unwrap().unwrap_err();
    let selector = [("istio", "gateway")].into_iter().collect();
    let unlisted = RewriteBlocker::Unlisted { name: "gw".to_owned(), count: 600, secret: "root".to_owned() };
    assert_eq!(held(Place::Selected(std::sync::Arc::new(selector))), unlisted);
    assert_eq!(held(Place::Granted { namespace: "mesh", from: "apps" }), unlisted);
    // A list that was once too long stays absent, even if it would fit now.
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "mesh", "labels": {"istio": "gateway"}},
    });
    let mut inventory = crate::rotation::Inventory::new([entry]);
    inventory.take(&pod, "mesh", now());
    let seen = inventory.into_registry(crate::rotation::Outlook::Secrets, now());
    let status = &seen.entries()[0].status;
    assert_eq!((status.workload_namespaces.as_ref(), status.workload_namespace_count), (None, Some(600)));
}

#[test]
fn leaves_that_do_not_fit_are_counted() {
    let leaf = |number: usize, others: usize| Leaf {
        kind: LeafKind::Client,
        namespace: "mesh".to_owned(),
        name: format!("client-{number}"),
        subject: String::new(),
        not_after: now(),
        pem: "x".repeat(1_000),
        others: (0..others).map(|other| format!("client-{number}-{other}")).collect(),
        same_names: false,
    };
    let (kept, unlisted) = fit_leaves((0..1_000).map(|number| leaf(number, usize::from(number % 2 == 0))).collect());
    assert_eq!(kept.iter().map(Leaf::count).sum::<usize>() + unlisted as usize, 1_500);
    assert!(unlisted > 0 && kept.iter().filter(|leaf| !leaf.others.is_empty()).count() == 500, "{unlisted}");
    assert!(json_bytes(&kept) <= LEAVES);
    // A leaf with too many clients' names is left out, and the others stay.
    let (kept, unlisted) = fit_leaves(vec![leaf(1, 100_000), leaf(2, 0)]);
    assert_eq!((kept.len(), unlisted), (1, 100_001));
    let status = fitted(|status| status.unlisted_clients = Some(unlisted));
    assert!(status.condition(COMPLETE).unwrap().message.contains("100001 declared clients"));
}

proptest! {
    /// A failure prints its seed (proptest).
    #[test]
    fn no_namespace_gets_less_because_another_has_more(
        sizes in proptest::collection::vec((0..6_usize, 10..500_usize), 1..400),
        flood in 0..2_000_usize,
    ) {
        let limit = Limit { items: 10_000, bytes: 40_000 };
        let name = |namespace: usize| ["mesh", "a", "b", "c", "d", "e"][namespace];
        let items: Vec<_> = sizes.iter().map(|(namespace, bytes)| (name(*namespace), *bytes)).collect();
        let hostile = std::iter::repeat_n(("hostile", 499), flood);
        let flooded: Vec<_> = hostile.chain(items.iter().copied()).collect();
        let taken = |kept: &[usize], all: &[(&str, usize)], namespace: &str| -> usize {
            kept.iter().map(|at| all[*at]).filter(|(other, _)| *other == namespace).map(|(_, bytes)| bytes).sum()
        };
        let kept = fair(flooded.iter().copied(), "mesh", limit);
        prop_assert!(kept.is_sorted() && kept.iter().map(|at| flooded[*at].1).sum::<usize>() <= limit.bytes);
        let wanted = |namespace: &str| -> usize {
            items.iter().filter(|(other, _)| *other == namespace).map(|(_, bytes)| bytes).sum()
        };
        let own = taken(&kept, &flooded, "mesh");
        prop_assert!(own + 500 >= wanted("mesh").min(limit.bytes / 2), "mesh has {own} of {}", wanted("mesh"));
        for namespace in ["a", "b", "c", "d", "e"] {
            let got = taken(&kept, &flooded, namespace);
            // An equal share for six other namespaces of what the own namespace leaves, less one item each.
            let share = (limit.bytes / 2) / 6;
            prop_assert!(got + 1_000 >= wanted(namespace).min(share), "{namespace} has {got} of {}", wanted(namespace));
            let most = taken(&kept, &flooded, "hostile");
            prop_assert!(got == wanted(namespace) || most <= got + 1_000, "{namespace} has {got}, the hostile one {most}");
        }
    }
}
