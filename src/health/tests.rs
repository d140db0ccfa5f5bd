use super::*;

fn check(name: &str, requirement: Requirement, result: CheckResult) -> Check {
    Check { name: name.to_owned(), requirement, result }
}

fn down() -> CheckResult {
    CheckResult::Unreachable("connection refused".to_owned())
}

fn forbidden() -> CheckResult {
    CheckResult::Misconfigured("secrets \"root\" is forbidden".to_owned())
}

/// A webhook with an agent that reconciles two GatewaySecrets.
fn health(api_server: CheckResult, source: CheckResult) -> Health {
    let checks = vec![
        check("api-server", Requirement::AtStart, api_server),
        check("serving-certificate", Requirement::Always, CheckResult::Ok),
        check("source-secret/mesh/root", Requirement::Never, source),
        check("source-secret/shop/root", Requirement::Never, CheckResult::Ok),
    ];
    Health { checks, has_started: true, is_shutting_down: false }
}

fn get(health: &Health, detail: Detail, target: &str) -> (u16, String) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = HealthRequest::parse(path, query).expect("a path of an endpoint");
    let response = health.respond(&request, detail);
    (response.code, response.text)
}

fn names(health: &Health, target: &str) -> (u16, String) {
    get(health, Detail::Names, target)
}

#[test]
fn a_success_is_ok_and_verbose_lists_all_checks() {
    let health = health(CheckResult::Ok, CheckResult::Ok);
    for path in ["/livez", "/readyz", "/healthz", "/healthz/ping", "/readyz/source-secret/mesh/root"] {
        assert_eq!(names(&health, path), (200, "ok".to_owned()), "{path}");
    }
    assert_eq!(names(&health, "/livez?verbose"), (200, "[+]ping ok\nlivez check passed\n".to_owned()));
    let (code, text) = names(&health, "/healthz?verbose");
    let expected = "[+]ping ok\n[+]api-server ok\n[+]serving-certificate ok\n[+]source-secret/mesh/root ok\n\
                    [+]source-secret/shop/root ok\nhealthz check passed\n";
    assert_eq!((code, text.as_str()), (200, expected));
}

#[test]
fn of_two_checks_of_one_kind_the_one_that_fails_is_named() {
    let health = health(CheckResult::Ok, forbidden());
    let (code, text) = names(&health, "/healthz");
    let expected = "[+]ping ok\n[+]api-server ok\n[+]serving-certificate ok\n\
                    [-]source-secret/mesh/root failed: reason withheld\n[+]source-secret/shop/root ok\n\
                    healthz check failed\n";
    assert_eq!((code, text.as_str()), (500, expected));
    assert_eq!(names(&health, "/healthz/source-secret/shop/root").0, 200);
    let (code, text) = names(&health, "/healthz/source-secret/mesh/root");
    assert_eq!(code, 500);
    assert_eq!(text, "internal server error: misconfigured: secrets \"root\" is forbidden\n");
}

#[test]
fn unreachable_and_misconfigured_differ_in_code_and_text() {
    let unreachable = health(down(), CheckResult::Ok);
    assert_eq!(names(&unreachable, "/healthz").0, 503);
    let (code, text) = names(&unreachable, "/healthz/api-server");
    assert_eq!((code, text.as_str()), (503, "service unavailable: unreachable, retrying: connection refused\n"));
    assert_eq!(names(&health(CheckResult::Ok, forbidden()), "/healthz").0, 500);
    assert_eq!(names(&health(down(), forbidden()), "/healthz").0, 500, "one of them needs a change");
}

#[test]
fn after_the_start_only_a_replicas_own_faults_make_it_unready() {
    let mut health = health(down(), forbidden());
    let (code, text) = names(&health, "/readyz?verbose");
    let expected = "[+]ping ok\n[+]shutdown ok\n[+]api-server excluded: ok\n[+]serving-certificate ok\n\
                    [+]source-secret/mesh/root excluded: ok\n[+]source-secret/shop/root ok\nreadyz check passed\n";
    assert_eq!((code, text.as_str()), (200, expected));
    assert_eq!(names(&health, "/readyz/api-server").0, 503, "asked for by name, it is not excluded");
    health.checks[1].result = CheckResult::Misconfigured("expired".to_owned());
    assert_eq!(names(&health, "/readyz").0, 500);
    health.checks[1].result = CheckResult::Ok;
    health.is_shutting_down = true;
    let (code, text) = names(&health, "/readyz");
    assert!(code == 503 && text.contains("[-]shutdown failed"), "{text}");
    assert_eq!(names(&health, "/livez").0, 200);
}

#[test]
fn serving_starts_once_all_dependencies_were_healthy() {
    let mut health = Health { has_started: false, ..health(down(), forbidden()) };
    assert!(!health.may_start());
    let (code, text) = names(&health, "/readyz");
    assert!(code == 503 && text.contains("[-]api-server failed: reason withheld\n"), "{text}");
    assert!(text.contains("[+]source-secret/mesh/root excluded: ok\n"), "of one GatewaySecret: {text}");
    health.checks[0].result = CheckResult::Ok;
    assert!(health.may_start());
    assert_eq!(names(&health, "/readyz").0, 200);
}

#[test]
fn excluded_checks_are_not_counted_and_unknown_ones_are_warned_about() {
    let health = health(down(), forbidden());
    let (code, text) = names(&health, "/healthz?exclude=api-server&verbose&exclude=source-secret%2Fmesh%2Froot");
    assert_eq!(code, 200);
    assert!(text.contains("[+]api-server excluded: ok\n[+]serving-certificate ok\n"), "{text}");
    assert!(text.contains("[+]source-secret/mesh/root excluded: ok\n"), "{text}");
    let (code, text) =
        names(&health, "/healthz?exclude=source-secret/mesh/root&exclude=nope&exclude=a%22b&exclude=nope");
    assert_eq!(code, 503);
    let warning =
        "warn: some health checks cannot be excluded: no matches for \"a\\\"b\",\"nope\"\nhealthz check failed\n";
    assert!(text.ends_with(warning), "{text}");
}

#[test]
fn totals_show_no_name_and_no_reason() {
    let health = health(down(), forbidden());
    let totals = |target: &str| get(&health, Detail::Totals, target);
    assert_eq!(totals("/healthz"), (500, "3 of 5 checks ok\nhealthz check failed\n".to_owned()));
    assert_eq!(totals("/readyz"), (200, "ok".to_owned()));
    assert_eq!(totals("/readyz?verbose"), (200, "6 of 6 checks ok\nreadyz check passed\n".to_owned()));
    for name in ["api-server", "source-secret/mesh/root", "nope"] {
        let path = format!("/healthz/{name}");
        assert_eq!(totals(&path), (404, "404 page not found\n".to_owned()));
        let excluding = format!("/healthz?exclude={name}");
        assert_eq!(totals(&excluding), totals("/healthz"), "names that exist must not differ from others");
    }
}

#[test]
fn unknown_names_and_paths_are_not_found() {
    let health = health(CheckResult::Ok, CheckResult::Ok);
    for path in ["/healthz/nope", "/healthz/source-secret", "/readyz/", "/livez/api-server", "/healthz/shutdown"] {
        assert_eq!(names(&health, path).0, 404, "{path}");
    }
    for path in ["/", "/healthzy", "healthz", "/metrics"] {
        assert_eq!(HealthRequest::parse(path, ""), None, "{path}");
    }
}

#[test]
fn an_unreachable_dependency_is_one_state_whatever_its_error_says() {
    assert!(down().is_same_state(&CheckResult::Unreachable("connection reset".to_owned())));
    assert!(!down().is_same_state(&forbidden()) && !down().is_same_state(&CheckResult::Ok));
    assert!(!forbidden().is_same_state(&CheckResult::Misconfigured("no such CRD".to_owned())));
    assert_eq!([CheckResult::Ok, down(), forbidden()].map(|result| result.gauge_value()), [1, 0, -1]);
}
