//! A [`StatusSummary`] or a [`ConsumerSummary`] for a terminal.

mod consumer;

use std::fmt::{self, Write};

use jiff::{SignedDuration, SpanRound, Timestamp, Unit};

use crate::api::{Endpoints, StepName, Wait, WindowState};
use crate::consumer::ConsumerSummary;
use crate::rotation::{CaRole, CaSummary, ClientSummary, StatusSummary, Validity, counted, sentence};
use crate::text::printable;

/// Columns of the timeline.
const WIDTH: usize = 56;
/// Client names on a line.
const NAMED: usize = 4;
/// Characters of a fingerprint: enough to distinguish two CAs of one subject.
const FINGERPRINT: usize = 8;
/// Width of a label, with the indentation.
const LABEL: usize = 16;

/// The text, which ends with a line break.
pub(super) fn draw(summary: &StatusSummary, now: Timestamp) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_summary(&mut text, summary, now);
    text
}

/// The same for a TrustConsumer.
pub(super) fn draw_consumer(summary: &ConsumerSummary, now: Timestamp) -> String {
    let mut text = String::new();
    let _ = consumer::write_summary(&mut text, summary, now);
    text
}

fn write_summary(text: &mut String, summary: &StatusSummary, now: Timestamp) -> fmt::Result {
    let name = printable(&format!("{}/{}", summary.namespace, summary.name));
    let since = summary.phase_since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    let phase = summary.phase.map(|phase| format!(" ({phase:?}{since})")).unwrap_or_default();
    writeln!(text, "{name}   {}{phase}", printable(&summary.headline))?;
    write_actions(text, (&summary.actions, &summary.troubles), summary.act_before, now)?;
    let waits = summary.waits.iter().map(|wait| waiting(wait, summary, now));
    let waits: Vec<_> = waits.collect();
    let propagating = waits.is_empty().then(|| propagating(summary, now)).flatten();
    for (index, wait) in waits.iter().chain(&propagating).enumerate() {
        line(text, if index == 0 { "Waiting:" } else { "" }, wait)?;
    }
    if let Some(endpoints) = summary.endpoints {
        line(text, "Gateways:", &gateways(endpoints))?;
    }
    if summary.phase.is_some() {
        line(text, "Clients:", &clients(summary))?;
    }
    if let Some(windows) = &summary.change_windows {
        line(text, "Change windows:", &change_windows(windows, now))?;
    }
    line(text, "Managed Secret:", &format!("{}, mode {:?}", printable(&summary.secret_name), summary.mode))?;
    write_timeline(text, summary, now)?;
    if let Some(expiry) = &summary.next_expiry {
        line(text, "Next expiry:", &format!("{}: {}", date(expiry.at, now), printable(&expiry.what)))?;
    }
    write_conditions(text, &summary.actions, &summary.troubles)
}

fn line(text: &mut String, label: &str, value: &str) -> fmt::Result {
    writeln!(text, "  {label:LABEL$} {value}")
}

/// The conditions that are not an action already.
fn write_conditions(text: &mut String, actions: &[String], troubles: &[String]) -> fmt::Result {
    let is_action = |trouble: &&String| actions.iter().any(|action| trouble.ends_with(action.as_str()));
    for (index, trouble) in troubles.iter().filter(|trouble| !is_action(trouble)).enumerate() {
        line(text, if index == 0 { "Conditions:" } else { "" }, &printable(trouble))?;
    }
    Ok(())
}

fn write_actions(
    text: &mut String,
    (actions, troubles): (&[String], &[String]),
    act_before: Option<Timestamp>,
    now: Timestamp,
) -> fmt::Result {
    if actions.is_empty() {
        return line(text, "Act:", "nothing to do");
    }
    let before = act_before.map(|at| format!("before {}", date(at, now)));
    for (index, action) in actions.iter().enumerate() {
        let condition = troubles.iter().find(|trouble| trouble.ends_with(action.as_str()));
        let said = printable(condition.unwrap_or(action));
        match &before {
            Some(before) if index == 0 => line(text, "Act:", &format!("{before}: {said}"))?,
            _ => line(text, if index == 0 { "Act:" } else { "" }, &said)?,
        }
    }
    Ok(())
}

/// What a step waits for. What a person has to do about it is not repeated.
fn waiting(wait: &Wait, summary: &StatusSummary, now: Timestamp) -> String {
    let step = match wait.step {
        StepName::ExpandTrust => "to add a CA",
        StepName::PromoteIssuer => "to sign with the new CA",
        StepName::ReissueClients => "to reissue client certificates",
        StepName::ReissueServingCertificate => "to reissue the serving certificate",
        StepName::SwitchServingCertificate => "to switch the serving certificate",
        StepName::DropOldCA => "to remove the old CA",
    };
    let said = sentence(&wait.reason);
    let is_action = summary.actions.iter().any(|action| action.contains(said.trim_end_matches('.')));
    let reason = if is_action { "see Act".to_owned() } else { printable(&wait.reason) };
    let until = wait.until.map(|until| format!("; no later than {}", date(until, now))).unwrap_or_default();
    format!("{step} ({:?}): {reason}{until}", wait.step)
}

/// What is waited for while no step waits, but gateways do not have the newest content yet.
fn propagating(summary: &StatusSummary, now: Timestamp) -> Option<String> {
    let endpoints = summary.endpoints?;
    let (stale, unverified) = (endpoints.stale, not_verified(endpoints));
    let gateways = |number: u32| counted(number as usize, "gateway");
    match (stale, summary.gateways_expected_by) {
        (0, _) if unverified == 0 => None,
        (0, _) => Some(format!("for a probe of {}", gateways(unverified))),
        (_, Some(at)) => Some(format!(
            "for {} to load the new content of the managed Secret; if that is not done by {}, Act says what to do",
            gateways(stale),
            date(at, now)
        )),
        (_, None) => Some(format!("for {} to load the new content of the managed Secret: see Act", gateways(stale))),
    }
}

/// How many gateways were not probed yet.
fn not_verified(Endpoints { total, current, stale, unreachable }: Endpoints) -> u32 {
    total.saturating_sub(current + stale + unreachable)
}

fn gateways(endpoints: Endpoints) -> String {
    let Endpoints { total, current, stale, unreachable } = endpoints;
    let pending = not_verified(endpoints);
    let numbers = [(stale, "stale"), (unreachable, "unreachable"), (pending, "not verified yet")];
    let others = numbers.iter().filter(|(number, _)| *number > 0);
    let others: String = others.map(|(number, what)| format!(", {number} {what}")).collect();
    format!("{current} of {total} updated{others}")
}

fn clients(summary: &StatusSummary) -> String {
    let ClientSummary { declared, migrated, lagging, overdue, all_declared } = summary.clients;
    let is_rotating = summary.bundle.iter().any(|ca| ca.role == CaRole::New);
    let migrated = if is_rotating { format!(", {migrated} with a certificate of the new CA") } else { String::new() };
    let numbers = [(lagging.saturating_sub(overdue), "being reissued"), (overdue, "overdue")];
    let lagging = numbers.iter().filter(|(number, _)| *number > 0);
    let lagging: String = lagging.map(|(number, what)| format!(", {number} {what}")).collect();
    let others = if all_declared { "" } else { "; others are assumed (spec.clients.allDeclared is false)" };
    format!("{declared} declared{migrated}{lagging}{others}")
}

fn change_windows(windows: &WindowState, now: Timestamp) -> String {
    match (windows.is_open, windows.until) {
        (true, Some(end)) => format!("open until {}", date(end, now)),
        (true, None) => "always open".to_owned(),
        (false, Some(start)) => format!("closed until {}", date(start, now)),
        (false, None) => "never open: correct changeWindows in the RotationPolicy".to_owned(),
    }
}

/// What uses a CA.
fn users(ca: &CaSummary) -> String {
    let shown = ca.clients.iter().take(NAMED).map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    let more = if ca.clients.len() > NAMED { ", …" } else { "" };
    let clients = (!ca.clients.is_empty()).then(|| format!("{}: {shown}{more}", counted(ca.clients.len(), "client")));
    let serving = ca.serves.then(|| "the serving certificate".to_owned());
    let users: Vec<_> = serving.into_iter().chain(clients).collect();
    match (users.is_empty(), ca.role) {
        (false, _) => format!("used by {}", users.join(" and ")),
        (true, CaRole::New) => "not used by any certificate yet".to_owned(),
        (true, CaRole::Current) => "not used by any known certificate".to_owned(),
        (true, CaRole::Old) => "no longer used by any known certificate".to_owned(),
    }
}

/// The CAs and the serving certificate, each with a bar from the start to the end of its validity.
fn write_timeline(text: &mut String, summary: &StatusSummary, now: Timestamp) -> fmt::Result {
    let cas = summary.bundle.iter().map(|ca| {
        let fingerprint: String = ca.fingerprint.chars().take(FINGERPRINT).collect();
        let (role, subject) = (ca.role.words(), printable(&ca.validity.subject));
        (format!("{role} {subject} (SHA-256 {fingerprint}…): {}", users(ca)), &ca.validity)
    });
    let served = summary.served.iter();
    let served = served.map(|served| (format!("serving certificate {}", printable(&served.subject)), served));
    let rows: Vec<_> = cas.chain(served).collect();
    let Some(start) = rows.iter().map(|(_, validity)| validity.not_before.min(now)).min() else { return Ok(()) };
    let end = rows.iter().map(|(_, validity)| validity.not_after.max(now)).max().unwrap_or(now);
    let scale = Scale { start, length: end.duration_since(start) };
    for (title, validity) in &rows {
        writeln!(text, "    {title}")?;
        writeln!(text, "    {}  {} to {}", scale.bar(validity, now), validity.not_before, validity.not_after)?;
    }
    writeln!(text, "    {}now", " ".repeat(scale.column(now)))?;
    writeln!(text, "    (━ valid, · not valid yet or expired, │ now)")
}

/// The span of time that the timeline shows.
struct Scale {
    start: Timestamp,
    length: SignedDuration,
}

impl Scale {
    fn column(&self, at: Timestamp) -> usize {
        let share = at.duration_since(self.start).as_secs_f64() / self.length.as_secs_f64().max(1.0);
        // Between 0 and WIDTH - 1: a share is between 0 and 1.
        ((share * (WIDTH - 1) as f64) as usize).min(WIDTH - 1)
    }

    fn bar(&self, validity: &Validity, now: Timestamp) -> String {
        let (from, to, now) = (self.column(validity.not_before), self.column(validity.not_after), self.column(now));
        let cell = |column| match column {
            _ if column == now => '│',
            _ if (from..=to).contains(&column) => '━',
            _ => '·',
        };
        (0..WIDTH).map(cell).collect()
    }
}

/// An instant in the future, and how far away it is.
fn date(at: Timestamp, now: Timestamp) -> String {
    format!("{at} (in {})", age(now, at))
}

/// The time between two instants, in its two greatest units.
fn age(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs().max(0);
    let smallest = match seconds {
        ..3600 => Unit::Second,
        3600..86400 => Unit::Minute,
        _ => Unit::Hour,
    };
    let round = SpanRound::new().largest(Unit::Day).smallest(smallest).days_are_24_hours();
    let span = jiff::Span::new().seconds(seconds).round(round);
    span.map_or_else(|_| format!("{seconds}s"), |span| format!("{span:#}"))
}

#[cfg(test)]
mod tests;
