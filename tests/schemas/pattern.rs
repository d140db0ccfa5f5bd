//! Patterns of fields: `Gateway|Sidecar spec.**.tls.caCrl`.

use crate::crds::Place;

/// Whether a pattern fits a field: an optional list of kinds, then a path in which `**` is any number of steps, `*` is any part
/// of one, and `a|b` is either.
pub(crate) fn fits(pattern: &str, place: &Place) -> bool {
    let (kinds, path) = pattern.rsplit_once(' ').map_or((None, pattern), |(kinds, path)| (Some(kinds), path));
    let steps: Vec<_> = path.split('.').collect();
    let place_steps: Vec<_> = place.path.split('.').collect();
    kinds.is_none_or(|kinds| step_fits(kinds, &place.kind)) && steps_fit(&steps, &place_steps)
}

fn steps_fit(pattern: &[&str], steps: &[&str]) -> bool {
    match pattern.split_first() {
        None => steps.is_empty(),
        Some((&"**", rest)) => (0..=steps.len()).any(|at| steps_fit(rest, &steps[at..])),
        Some((first, rest)) => {
            steps.split_first().is_some_and(|(step, others)| step_fits(first, step) && steps_fit(rest, others))
        }
    }
}

fn step_fits(pattern: &str, step: &str) -> bool {
    pattern.split('|').any(|one| match one.split_once('*') {
        None => one == step,
        Some((before, after)) => {
            step.len() >= before.len() + after.len() && step.starts_with(before) && step.ends_with(after)
        }
    })
}

#[test]
fn a_pattern_fits_whole_steps_only() {
    let place = |path: &str| Place { group: String::new(), kind: "Gateway".to_owned(), path: path.to_owned() };
    let tls = place("spec.servers[].tls.caCrl");
    for fitting in ["spec.**.caCrl", "Gateway|Sidecar spec.**.tls.*", "spec.servers[].tls.caCrl", "spec.**.x|ca*"] {
        assert!(fits(fitting, &tls), "{fitting}");
    }
    for other in
        ["Sidecar spec.**.caCrl", "spec.**.ca", "spec.*.caCrl", "**.Crl", "spec.servers[].tls", "*Route **.caCrl"]
    {
        assert!(!fits(other, &tls), "{other}");
    }
}
