//! A [`StatusSummary`] for a terminal.

use std::fmt::Write;

use jiff::{SignedDuration, SpanRound, Timestamp, Unit};

use crate::api::Endpoints;
use crate::cli::sanitize::printable;
use crate::rotation::{StatusSummary, Validity};

/// Columns of the timeline.
const WIDTH: usize = 56;
/// Client names that one line gives.
const NAMED: usize = 4;

/// The whole story, ending with a line break.
pub(super) fn draw(story: &StatusSummary, now: Timestamp) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = tell(&mut text, story, now);
    text
}

fn tell(text: &mut String, story: &StatusSummary, now: Timestamp) -> std::fmt::Result {
    let phase = story.phase.map_or("not observed".to_owned(), |phase| format!("{phase:?}"));
    let since = story.phase_since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    writeln!(text, "{}: {phase}{since}", printable(&format!("{}/{}", story.namespace, story.name)))?;
    writeln!(text, "  managed Secret {}, mode {:?}", printable(&story.secret_name), story.mode)?;
    for trouble in &story.troubles {
        writeln!(text, "  ! {}", printable(trouble))?;
    }
    for wait in &story.waits {
        let until = wait.until.map(|until| format!(" (at the latest in {})", age(now, until))).unwrap_or_default();
        writeln!(text, "  waits: {:?}: {}{until}", wait.step, printable(&wait.reason))?;
    }
    if let Some(Endpoints { total, current, former, unreachable }) = story.endpoints {
        let text_of = format!("{current} current, {former} with a former content, {unreachable} not reached");
        let silent = total.saturating_sub(current + former + unreachable);
        let silent = if silent > 0 { format!(", {silent} that did not tell") } else { String::new() };
        writeln!(text, "  seen: {total} endpoint(s), {text_of}{silent}")?;
    }
    if let Some(windows) = &story.change_windows {
        let until = |word, at| format!("{word} {at}, in {}", age(now, at));
        let said = match (windows.is_open, windows.until) {
            (true, Some(end)) => until("open until", end),
            (true, None) => "always open".to_owned(),
            (false, Some(start)) => until("closed; the next opens at", start),
            (false, None) => "never open: see changeWindows".to_owned(),
        };
        writeln!(text, "  change windows: {said}")?;
    }
    let rows = story.bundle.iter().map(|held| {
        let mut users = Vec::new();
        if held.serves {
            users.push("gateways' leaf".to_owned());
        }
        let shown = held.clients.iter().take(NAMED).map(|name| printable(name)).collect::<Vec<_>>().join(", ");
        match held.clients.len() {
            0 => {}
            n @ 1..=NAMED => users.push(format!("{n} client(s): {shown}")),
            n => users.push(format!("{n} clients: {shown}, …")),
        }
        let users = if users.is_empty() { "nobody known".to_owned() } else { users.join("; ") };
        ("CA", &held.validity, format!("needed by {users}"))
    });
    let served = story.served.iter().map(|leaf| ("leaf", leaf, "served".to_owned()));
    let rows: Vec<_> = rows.chain(served).collect();
    let Some(start) = rows.iter().map(|(_, validity, _)| validity.not_before.min(now)).min() else { return Ok(()) };
    let end = rows.iter().map(|(_, validity, _)| validity.not_after.max(now)).max().unwrap_or(now);
    let scale = Scale { start, length: end.duration_since(start) };
    for (kind, validity, note) in &rows {
        writeln!(text, "  {kind:4} {} until {}: {note}", printable(&validity.subject), validity.not_after)?;
        writeln!(text, "       {}", scale.bar(validity, now))?;
    }
    writeln!(text, "       {}now", " ".repeat(scale.column(now)))?;
    if let Some(deadline) = story.next_deadline {
        writeln!(text, "  next deadline: {deadline}, in {}", age(now, deadline))?;
    }
    Ok(())
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

/// The time between two instants, for people: its two greatest units.
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
mod tests {
    use super::*;
    use crate::api::{Mode, Phase, StepName, Wait, WindowState};
    use crate::rotation::Held;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    fn story() -> StatusSummary {
        let validity = |name: &str, from: &str, to: &str| Validity {
            subject: format!("CN={name}"),
            not_before: at(from),
            not_after: at(to),
        };
        let held = |name: &str, from, to, clients: &[&str], serves| Held {
            validity: validity(name, from, to),
            fingerprint: String::new(),
            clients: clients.iter().map(|name| (*name).to_owned()).collect(),
            serves,
        };
        StatusSummary {
            namespace: "mesh".to_owned(),
            name: "gateway".to_owned(),
            secret_name: "gateway-managed".to_owned(),
            mode: Mode::Bundle,
            phase: Some(Phase::Converged),
            phase_since: Some(at("2030-05-31T23:57:30Z")),
            troubles: vec!["SourcesUsable (Unusable): Secret root does not exist".to_owned()],
            waits: vec![Wait {
                step: StepName::ReissueServingCertificate,
                reason: "clients that may not trust the new CA yet: till".to_owned(),
                until: Some(at("2030-06-01T01:00:00Z")),
            }],
            endpoints: Some(Endpoints { total: 3, current: 1, former: 1, unreachable: 1 }),
            change_windows: Some(WindowState { is_open: false, until: Some(at("2030-06-01T22:00:00Z")) }),
            bundle: vec![
                held("new", "2030-05-01T00:00:00Z", "2031-05-01T00:00:00Z", &["a", "b", "c", "d", "e"], false),
                held("old", "2029-06-15T00:00:00Z", "2030-06-15T00:00:00Z", &["till"], true),
            ],
            served: Some(validity("shop", "2030-04-01T00:00:00Z", "2030-06-12T00:00:00Z")),
            next_deadline: Some(at("2030-06-12T00:00:00Z")),
        }
    }

    #[test]
    fn rejects_control_characters_in_what_a_cluster_says() {
        let mut story = story();
        let hostile = "a\u{1b}[2J\nb";
        (story.namespace, story.name, story.secret_name) = (hostile.into(), hostile.into(), hostile.into());
        story.troubles = vec![hostile.into()];
        story.waits[0].reason = hostile.into();
        story.bundle[0].clients = vec![hostile.into()];
        story.bundle[0].validity.subject = hostile.into();
        story.served.as_mut().expect("a leaf").subject = hostile.into();
        let drawn = draw(&story, at("2030-06-01T00:00:00Z"));
        assert!(drawn.chars().all(|c| c == '\n' || !c.is_control()), "{drawn:?}");
        assert_eq!(drawn.matches("a\u{fffd}[2J\u{fffd}b").count(), 8);
    }

    #[test]
    fn draws_a_rotation() {
        insta::assert_snapshot!(draw(&story(), at("2030-06-01T00:00:00Z")));
    }
}
