//! Generates docs/what-names-certificates.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::Class;
use crate::by_hand::{BUILT_IN, SETTINGS};
use crate::crds::Place;
use crate::listed::GROUPS;
use crate::rules::EXCLUSIONS;

const HEAD: &str = "<!-- Generated: TRUSTSPAN_WRITE=1 cargo test --test schemas -->
# What names certificates

Every field by which objects of Istio, the Gateway API, Envoy Gateway and cert-manager name a Secret, a ConfigMap, a certificate, a CA or a
file, and what trustspan does with it. A test reads the CRDs of the pinned versions and fails when a field is added that is not here.

`[]` is any element of a list, `{}` any key of a map, `**` any path.
";

/// The page.
pub(crate) fn markdown(classes: &BTreeMap<Place, Class>) -> String {
    let mut page = HEAD.to_owned();
    let count = |is: fn(&Class) -> bool| classes.values().filter(|class| is(class)).count();
    let handled = count(|class| class.handled.is_some());
    let (listed, excluded) = (count(|class| !class.listed.is_empty()), count(|class| !class.excluded.is_empty()));
    // Writing to a String does not fail.
    let _ = writeln!(
        page,
        "\nOf {} fields that could name something, {handled} are handled, {listed} are not, and {excluded} are left out by a rule.",
        classes.len()
    );
    page += "\n## Handled\n\n| kind | field | what trustspan does | what is left to do |\n|---|---|---|---|\n";
    for (place, class) in classes {
        if let Some(handling) = class.handled {
            let _ = writeln!(page, "| {} | `{}` | {} | {} |", kind(place), place.path, handling.how, handling.advice);
        }
    }
    for field in BUILT_IN.iter().filter(|field| field.unhandled.is_none()) {
        let kinds = field.kinds.join(", ");
        let _ = writeln!(page, "| {kinds} | `{}` | renamed to the managed Secret | nothing |", field.path);
    }
    page += "\n## Not handled\n";
    for group in GROUPS {
        let _ = writeln!(page, "\n### {}\n", capitalised(group.names));
        let _ = writeln!(page, "**Why not:** {}. **What to do:** {}.\n", group.why, group.advice);
        page += "| kind | field |\n|---|---|\n";
        for (place, _) in classes.iter().filter(|(_, class)| class.listed.iter().any(|one| std::ptr::eq(*one, group))) {
            let _ = writeln!(page, "| {} | `{}` |", kind(place), place.path);
        }
    }
    page +=
        "\n## Kinds of Kubernetes itself\n\n| kind | field | why it is not handled | what to do |\n|---|---|---|---|\n";
    for field in BUILT_IN {
        if let Some((why, advice)) = field.unhandled {
            let _ = writeln!(page, "| {} | `{}` | {why} | {advice} |", field.kinds.join(", "), field.path);
        }
    }
    page += "\n## Settings, annotations and options\n\nNo CRD shows these; none of them is handled.\n\n";
    page += "| where | what it names | why it is not handled | what to do |\n|---|---|---|---|\n";
    for setting in SETTINGS {
        let _ = writeln!(page, "| {} | {} | {} | {} |", setting.place, setting.names, setting.why, setting.advice);
    }
    page += "\n## Left out by a rule\n\n";
    for rule in EXCLUSIONS {
        let fitting = |class: &&Class| class.excluded.iter().any(|one| std::ptr::eq(*one, rule));
        let number = classes.values().filter(fitting).count();
        let patterns: Vec<_> = rule.fields.iter().map(|field| format!("`{field}`")).collect();
        let _ = writeln!(page, "- **{}** ({number}): {}", capitalised(rule.reason), patterns.join(", "));
    }
    let naming: BTreeSet<_> =
        classes.iter().filter(|(_, class)| class.excluded.is_empty()).map(|(place, _)| kind(place)).collect();
    let all: BTreeSet<_> = classes.keys().map(kind).collect();
    let others: Vec<_> = all.difference(&naming).cloned().collect();
    let _ = writeln!(page, "\nNo field of these kinds names any: {}.", others.join(", "));
    page
}

fn kind(place: &Place) -> String {
    format!("{}/{}", place.group, place.kind)
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
