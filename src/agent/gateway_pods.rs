//! Which pods with the labels of gateways can be gateways. istiod gives a proxy a Secret with a key only if the proxy's ServiceAccount may
//! list the Secrets of its namespace (istio/istio, `pilot/pkg/credentials/kube/secrets.go`, `Authorize`).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Api, Client};

use super::cluster_state;
use crate::store::cluster;

/// Requests in each read of the cluster snapshot. Namespaces without an answer come first, then those that were asked about longest ago.
const REQUESTS: u32 = 64;
/// ServiceAccounts of one namespace that are asked about. The gateways of a namespace have one or two.
const SERVICE_ACCOUNTS: usize = 8;
/// Pods of one namespace whose ServiceAccounts are asked about.
const PODS: u32 = 100;

/// Labels of pods, and their namespace.
pub(super) type PodGroup = (BTreeMap<String, String>, String);

/// The answers about namespaces other than the GatewaySecrets' own.
#[derive(Clone, Debug, Default)]
pub(super) struct ServedNamespaces {
    answers: BTreeMap<PodGroup, Answer>,
    /// How often they were read.
    reads: u64,
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    is_served: bool,
    /// In which read.
    read: u64,
}

/// Equal when the answers are, whenever they were read.
impl PartialEq for ServedNamespaces {
    fn eq(&self, other: &Self) -> bool {
        let [one, other] =
            [self, other].map(|served| served.answers.iter().map(|(group, answer)| (group, answer.is_served)));
        one.eq(other)
    }
}

impl ServedNamespaces {
    /// Asks about these groups of pods, within the budget of one read.
    pub(super) async fn read(client: &Client, groups: BTreeSet<PodGroup>, before: &Self) -> Self {
        let mut answers = before.answers.clone();
        answers.retain(|group, _| groups.contains(group));
        let mut read = Self { answers, reads: before.reads + 1 };
        let mut budget = REQUESTS;
        for group in read.in_order(groups) {
            if budget == 0 {
                break;
            }
            match is_served(client, &group, &mut budget).await {
                Ok(is_served) => {
                    let before = read.answers.insert(group.clone(), Answer { is_served, read: read.reads });
                    if !is_served && before.is_none_or(|before| before.is_served) {
                        let (labels, namespace) = &group;
                        tracing::info!(
                            namespace,
                            "pods with labels {labels:?} are not taken for gateways: no ServiceAccount of theirs may list Secrets, so istiod \
                             gives them none"
                        );
                    }
                }
                Err(error) => {
                    tracing::debug!("pods of {} not asked about: {}", group.1, cluster::error_message(&error))
                }
            }
        }
        read
    }

    fn in_order(&self, groups: BTreeSet<PodGroup>) -> Vec<PodGroup> {
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by_key(|group| self.answers.get(group).map(|answer| answer.read));
        groups
    }

    /// Whether istiod gives these pods no Secret. Without an answer it may.
    pub(super) fn is_unserved(&self, labels: &BTreeMap<String, String>, namespace: &str) -> bool {
        let answer = self.answers.get(&(labels.clone(), namespace.to_owned()));
        answer.is_some_and(|answer| !answer.is_served)
    }
}

/// Whether a ServiceAccount of these pods may list the Secrets of their namespace.
async fn is_served(client: &Client, (labels, namespace): &PodGroup, budget: &mut u32) -> kube::Result<bool> {
    let selector = labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    *budget = budget.saturating_sub(1);
    let pods = cluster_state::objects(client, namespace, "", "v1", "Pod");
    let pods = pods.list(&ListParams::default().labels(&selector).limit(PODS)).await?;
    let name = |pod: &DynamicObject| Some(pod.data["spec"]["serviceAccountName"].as_str()?.to_owned());
    let names = pods.iter().filter_map(name);
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    for name in names.collect::<BTreeSet<_>>().into_iter().take(SERVICE_ACCOUNTS) {
        let text = |text: &str| Some(text.to_owned());
        let attributes = ResourceAttributes {
            verb: text("list"),
            version: text("v1"),
            resource: text("secrets"),
            namespace: text(namespace),
            ..ResourceAttributes::default()
        };
        let user = Some(format!("system:serviceaccount:{namespace}:{name}"));
        // Like istiod, without the groups of the ServiceAccount.
        let spec = SubjectAccessReviewSpec { user, resource_attributes: Some(attributes), ..Default::default() };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        *budget = budget.saturating_sub(1);
        let answer = reviews.create(&PostParams::default(), &review).await?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_without_an_answer_count_and_are_asked_about_first() {
        let group = |namespace: &str| (BTreeMap::from([("istio".to_owned(), "gw".to_owned())]), namespace.to_owned());
        let answer = |is_served, read| Answer { is_served, read };
        let answers = [(group("a"), answer(false, 2)), (group("b"), answer(true, 1))];
        let known = ServedNamespaces { answers: answers.into(), reads: 2 };
        let order = known.in_order([group("a"), group("b"), group("c")].into());
        assert_eq!(order, [group("c"), group("b"), group("a")]);
        let labels = &group("").0;
        assert!(known.is_unserved(labels, "a") && !known.is_unserved(labels, "b") && !known.is_unserved(labels, "c"));
        assert!(!known.is_unserved(&BTreeMap::new(), "a"), "pods with other labels have other ServiceAccounts");
    }
}
