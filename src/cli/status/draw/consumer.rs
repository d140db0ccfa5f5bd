//! A [`ConsumerSummary`].

use std::fmt::{self, Write};

use jiff::Timestamp;

use super::{age, date, line, write_actions, write_conditions};
use crate::api::LoadedObject;
use crate::consumer::ConsumerSummary;
use crate::text::printable;

pub(super) fn write_summary(text: &mut String, summary: &ConsumerSummary, now: Timestamp) -> fmt::Result {
    let name = printable(&format!("{}/{}", summary.namespace, summary.name));
    let since = summary.pending_since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    let reason = summary.reason.as_ref().map(|reason| format!(" ({}{since})", printable(reason))).unwrap_or_default();
    writeln!(text, "{name}   TrustConsumer: {}{reason}", summary.headline)?;
    let act_before = summary.act_before.filter(|at| *at > now);
    write_actions(text, (&summary.actions, &summary.troubles), act_before, now)?;
    let see_act = || summary.reason.as_ref().map(|_| "see Act".to_owned());
    if let Some(waits) = summary.waits_for.as_deref().map(printable).or_else(see_act) {
        line(text, "Waiting:", &waits)?;
    }
    let workloads: Vec<_> = summary.workloads.iter().map(|workload| printable(&workload.label())).collect();
    line(text, "Workloads:", &workloads.join(", "))?;
    let loads: Vec<_> = summary.loads.iter().map(|object| printable(&loaded(object))).collect();
    line(text, "Loads:", &loads.join(", "))?;
    if let Some(expiry) = summary.first_expiry {
        let expiry = if expiry > now { date(expiry, now) } else { format!("{expiry} ({} ago)", age(expiry, now)) };
        line(text, "First expiry:", &format!("{expiry}, of the CAs that the workloads have loaded"))?;
    }
    write_conditions(text, &summary.actions, &summary.troubles)
}

fn loaded(object: &LoadedObject) -> String {
    let keys: Vec<_> = object.all_keys().into_keys().collect();
    format!("{} {} ({})", object.kind.name(), object.name, keys.join(", "))
}
