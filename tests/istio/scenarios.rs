//! The table of scenarios.

use anyhow::Result;

use crate::{
    acts::{self, MANAGED_CACERT, PARTNERS_CACERT, SOURCE_CACERT},
    adoption, copy, deadlines, distrust, elsewhere,
    expected::Expected::{self, Otherwise},
    issuer::SERVER,
    issuers, java, ml_dsa, paths, reissues, revoked, selectors, shared_clients, shim, unseen,
    world::{Layout, LayoutOf, World},
};

/// The host that every scenario serves.
pub(crate) const SHOP: &str = "shop.example.com";
/// Another host, of scenarios that need one.
pub(crate) const OTHER: &str = "partners.example.com";

/// A way in which Gateways get their clients' CAs.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Applies the objects of users before the rotation.
    pub(crate) apply: fn(&mut World<'_>) -> Result<()>,
    pub(crate) expected: Expected,
    /// The hosts to which declared clients connect.
    pub(crate) hosts: &'static [&'static str],
    /// The hosts that accept clients of the partner's CA.
    pub(crate) partner_hosts: &'static [&'static str],
    /// The hosts of the source Secret's certificate.
    pub(crate) certificate_hosts: &'static [&'static str],
    /// Whether istiod is paused before the CA is rotated.
    pub(crate) stops_istiod: bool,
    /// Whether it runs only with `TRUSTSPAN_ISTIO=full`.
    pub(crate) is_long: bool,
    /// Creates the issuer, and the clients in their namespaces.
    pub(crate) layout: LayoutOf,
}

const fn scenario(name: &'static str, apply: fn(&mut World<'_>) -> Result<()>, expected: Expected) -> Scenario {
    Scenario {
        name,
        apply,
        expected,
        hosts: &[SHOP],
        partner_hosts: &[],
        certificate_hosts: &[SHOP, OTHER],
        stops_istiod: false,
        is_long: false,
        layout: Layout::of_a_ca_issuer,
    }
}

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    // The longest scenarios start first.
    Scenario { stops_istiod: true, ..scenario("istiod_stopped", acts::slow_gateways, STALE_GATEWAYS) },
    Scenario { stops_istiod: true, ..scenario("istiod_stopped_with_a_canary", acts::probed_gateways, STALE_GATEWAYS) },
    Scenario {
        layout: elsewhere::layout,
        ..scenario("clients_in_other_namespaces", acts::credential_name, Expected::Otherwise(elsewhere::rotate))
    },
    Scenario {
        layout: issuers::not_staged,
        ..scenario("issuer_not_staged", acts::credential_name, Expected::Otherwise(issuers::clients_first))
    },
    Scenario {
        layout: issuers::minimal,
        ..scenario("minimal_gateway_secret", acts::credential_name, Expected::Otherwise(issuers::as_forecast))
    },
    Scenario {
        layout: issuers::intermediate,
        ..scenario(
            "issuer_is_an_intermediate",
            acts::credential_name,
            Expected::Otherwise(issuers::root_then_intermediate),
        )
    },
    Scenario {
        layout: issuers::external,
        ..scenario("issuer_without_a_local_key", acts::credential_name, Expected::Otherwise(issuers::unannounced))
    },
    Scenario {
        layout: reissues::derived,
        ..scenario(
            "clients_keep_the_old_issuer",
            acts::credential_name,
            Otherwise(reissues::clients_keep_the_old_issuer),
        )
    },
    Scenario {
        layout: reissues::named,
        is_long: true,
        ..scenario(
            "gateways_keep_the_old_issuer",
            acts::credential_name,
            Otherwise(reissues::gateways_keep_the_old_issuer),
        )
    },
    Scenario {
        layout: reissues::external,
        is_long: true,
        ..scenario("request_failed", acts::credential_name, Otherwise(reissues::request_failed))
    },
    Scenario {
        layout: reissues::stuck,
        ..scenario(
            "certificates_that_are_never_issued",
            acts::credential_name,
            Otherwise(reissues::others_are_reissued),
        )
    },
    Scenario {
        layout: Layout::of_few_clients,
        ..scenario("protected_certificate", acts::credential_name, Otherwise(reissues::protected))
    },
    Scenario {
        layout: deadlines::short_ca,
        is_long: true,
        ..scenario(
            "lagging_clients_at_the_end_of_the_ca",
            acts::credential_name,
            Otherwise(deadlines::others_outlive_the_ca),
        )
    },
    Scenario {
        layout: deadlines::short_intermediate,
        is_long: true,
        ..scenario("intermediate_renewed", acts::credential_name, Otherwise(deadlines::intermediate_renewed))
    },
    Scenario {
        layout: unseen::without_requests,
        ..scenario("client_without_a_request", acts::credential_name, Otherwise(unseen::still_connects))
    },
    Scenario {
        stops_istiod: true,
        layout: Layout::of_few_clients,
        is_long: true,
        ..scenario("debug_pod", unseen::narrow_service, Otherwise(unseen::debug_pod))
    },
    Scenario {
        stops_istiod: true,
        layout: Layout::of_few_clients,
        is_long: true,
        ..scenario("debug_pod_before_the_rotation", unseen::with_a_debug_pod, Otherwise(unseen::gateways_are_stale))
    },
    Scenario {
        stops_istiod: true,
        layout: Layout::of_few_clients,
        is_long: true,
        ..scenario("mode_copy_during_a_rotation", copy::probed_only, Otherwise(copy::during_a_rotation))
    },
    Scenario {
        layout: Layout::of_few_clients,
        is_long: true,
        ..scenario("gateways_scaled_up", acts::credential_name, Otherwise(unseen::gateways_scaled_up))
    },
    Scenario {
        hosts: &[SHOP],
        certificate_hosts: &[SHOP, OTHER],
        layout: shared_clients::layout,
        is_long: true,
        ..scenario(
            "clients_of_two_gateway_secrets",
            shared_clients::two_gateway_secrets,
            Otherwise(shared_clients::second_gateways_lag),
        )
    },
    Scenario {
        partner_hosts: &[OTHER],
        layout: Layout::of_few_clients,
        ..scenario("expired_root_in_additional_trust", paths::expired_root, Otherwise(paths::trust_the_expired_root))
    },
    Scenario {
        partner_hosts: &[OTHER],
        layout: Layout::of_few_clients,
        ..scenario("root_named_as_the_old_issuer", paths::unknown_root, Otherwise(paths::rotate_to_a_root_of_that_name))
    },
    Scenario {
        layout: distrust::intermediate,
        is_long: true,
        ..scenario("intermediate_distrusted", acts::credential_name, Otherwise(distrust::of_a_trusted_root))
    },
    Scenario {
        layout: Layout::of_few_clients,
        is_long: true,
        ..scenario("gateway_selects_other_pods", selectors::other_pods, Otherwise(selectors::waits_for_it))
    },
    Scenario {
        layout: Layout::of_few_clients,
        is_long: true,
        ..scenario("gateway_of_the_gateway_shim", acts::credential_name, Otherwise(shim::annotated))
    },
    Scenario {
        layout: revoked::one_more,
        is_long: true,
        ..scenario("revoked_client", revoked::revoke, Otherwise(revoked::stays_refused))
    },
    Scenario {
        layout: java::both,
        ..scenario("java_truststores_hide_a_ca", acts::credential_name, Expected::Otherwise(java::to_the_same_subject))
    },
    Scenario {
        layout: java::both,
        ..scenario("java_truststores", acts::credential_name, Expected::Otherwise(java::to_another_subject))
    },
    Scenario { layout: java::all_jks, ..scenario("java_truststores_jks", acts::credential_name, Expected::Clean) },
    scenario("credential_name", acts::credential_name, Expected::Clean),
    scenario("name_taken_over", adoption::not_adopted, Expected::Otherwise(adoption::take_over_and_give_back)),
    Scenario {
        hosts: &[SHOP, OTHER],
        partner_hosts: &[OTHER],
        ..scenario("ca_from_another_secret", acts::other_secret, holds(PARTNERS_CACERT, acts::run_printed))
    },
    Scenario {
        hosts: &[SHOP, OTHER],
        partner_hosts: &[OTHER],
        ..scenario("ca_from_a_config_map", acts::config_map, holds("partners", acts::run_printed))
    },
    Scenario {
        hosts: &[SHOP, OTHER],
        partner_hosts: &[OTHER],
        ..scenario("kept_config_map", acts::kept_config_map, Expected::Clean)
    },
    Scenario {
        hosts: &[SHOP, OTHER],
        partner_hosts: &[OTHER],
        ..scenario("kept_config_map_gateway_api", acts::gateway_api, Expected::Clean)
    },
    Scenario {
        partner_hosts: &[OTHER],
        ..scenario("ml_dsa_ca", ml_dsa::own_client_ca, Expected::Otherwise(ml_dsa::rotate))
    },
    scenario("ca_by_the_source_cacert_name", acts::source_cacert_name, Expected::Clean),
    scenario("ca_of_the_first_credential", acts::other_first, holds("other", acts::run_printed)),
    scenario("managed_cacert_secret", acts::managed_cacert, holds(MANAGED_CACERT, acts::run_printed)),
    scenario("ca_by_a_plain_secret_name", acts::plain_name, Expected::Denied(SERVER)),
    Scenario { is_long: true, ..scenario("gateway_in_deletion", acts::in_deletion, Expected::Clean) },
    scenario("pinned_clients", acts::pinned, holds("verifyCertificateHash", acts::let_in_by_name)),
    Scenario {
        hosts: &[SHOP, OTHER],
        certificate_hosts: &[SHOP],
        ..scenario("second_credential_not_managed", acts::second_credential, Expected::Clean)
    },
    Scenario {
        hosts: &[SHOP, OTHER],
        ..scenario("destination_rule_names_the_source", acts::destination_rule, Expected::Clean)
    },
    Scenario {
        partner_hosts: &[SHOP],
        ..scenario("missed_by_the_webhook", acts::missed_by_the_webhook, Expected::Clean)
    },
    Scenario {
        partner_hosts: &[SHOP],
        ..scenario("opted_out", acts::opted_out, holds(SOURCE_CACERT, acts::run_printed))
    },
];

const fn holds(names: &'static str, command: fn(&mut World<'_>) -> Result<()>) -> Expected {
    Expected::HoldsUntil { names, command }
}

/// A wait names the addresses of the gateways, which are known only at run time, so this text is expected instead.
const STALE_GATEWAYS: Expected = holds("content of the managed Secret", acts::continue_istiod);
