//! Change windows: when disruptive steps of a rotation may be taken.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::civil::{DateTime, Time, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp, ToSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Days ahead in which the next change is searched: first a few, which mostly suffice. A weekly window that a clock change skips opens in
/// the following week.
const DAYS_AHEAD: [i64; 2] = [2, 16];

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A span of local time on each day, or on some days of each week. It is in local time: a time that a clock change skips does not occur, and one that
/// it repeats occurs twice.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeWindow {
    /// The days on which it starts. Default: every day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 7, "x-kubernetes-list-type" = "set"))]
    pub days: Vec<Day>,
    /// When it starts, as `HH:MM`.
    pub from: TimeOfDay,
    /// When it ends, as `HH:MM`. If this is not later than `from`, it ends on the next day.
    pub to: TimeOfDay,
    /// The time zone: a name of the IANA Time Zone Database, such as `Europe/Berlin`. Default: `UTC`.
    #[serde(default = "utc")]
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Za-z0-9][-+_/A-Za-z0-9]*$"))]
    pub time_zone: String,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum Day {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

/// A time of day, to the minute: `00:00` to `23:59`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String", extend("pattern" = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
pub struct TimeOfDay(Time);

/// The state of change windows at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowState {
    /// Whether one is open.
    pub is_open: bool,
    /// When that changes next; absent when it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A time zone that the IANA Time Zone Database does not have.
#[derive(Debug, thiserror::Error)]
#[error("no such time zone: {0}. expected a name of the IANA Time Zone Database, such as Europe/Berlin or UTC")]
pub struct UnknownZone(String);

impl WindowState {
    /// The state at an instant. A window in an unknown time zone never opens: see [`ChangeWindow::zone`].
    pub fn of(windows: &[ChangeWindow], now: Timestamp) -> Self {
        let zoned: Vec<_> = windows.iter().filter_map(|window| Some((window, window.zone().ok()?))).collect();
        let is_open = |at| zoned.iter().any(|(window, zone)| window.contains(zone.to_datetime(at)));
        let open_now = is_open(now);
        let change = |days: i64| {
            let changes = zoned.iter().flat_map(|(window, zone)| window.changes(zone, now, days));
            // The days of all zones have this in common.
            let common = now.saturating_add(SignedDuration::from_hours(24 * (days - 1))).unwrap_or(Timestamp::MAX);
            let mut ahead: Vec<_> = changes.filter(|at| (now..common).contains(at)).collect();
            ahead.sort_unstable();
            ahead.into_iter().find(|at| is_open(*at) != open_now)
        };
        Self { is_open: open_now, until: DAYS_AHEAD.into_iter().find_map(change) }
    }
}

impl ChangeWindow {
    /// The time zone, from the database in this binary, so that all replicas use the same.
    ///
    /// # Errors
    /// When the database has no such name.
    pub fn zone(&self) -> Result<TimeZone, UnknownZone> {
        ZONES.get(&self.time_zone).map_err(|_| UnknownZone(self.time_zone.clone()))
    }

    fn contains(&self, local: DateTime) -> bool {
        let (from, to, time) = (self.from.0, self.to.0, local.time());
        let begins_on = |day: Weekday| self.days.is_empty() || self.days.iter().any(|named| named.weekday() == day);
        let overnight = to <= from;
        let of_today = begins_on(local.weekday()) && from <= time && (overnight || time < to);
        of_today || overnight && time < to && begins_on(local.weekday().previous())
    }

    /// All instants of the next days at which it may open or close, in no particular order.
    fn changes(&self, zone: &TimeZone, now: Timestamp, days: i64) -> Vec<Timestamp> {
        let today = zone.to_datetime(now).date();
        let dates = (0..=days).filter_map(|days| today.checked_add(days.days()).ok());
        let times = dates.flat_map(|date| [self.from, self.to].map(|time| date.to_datetime(time.0)));
        let instants = times.flat_map(|time| {
            let at = zone.to_ambiguous_timestamp(time);
            [at.earlier(), at.later()].into_iter().flatten()
        });
        let end = now.saturating_add(SignedDuration::from_hours(24 * days)).unwrap_or(Timestamp::MAX);
        let shifts = zone.following(now).map(|shift| shift.timestamp()).take_while(|at| *at <= end);
        instants.chain(shifts).collect()
    }
}

impl fmt::Display for ChangeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days: Vec<_> = self.days.iter().map(|day| format!("{day:?}")).collect();
        let days = if days.is_empty() { "daily".to_owned() } else { days.join(",") };
        write!(f, "{days} {}-{} {}", self.from, self.to, self.time_zone)
    }
}

impl Day {
    fn weekday(self) -> Weekday {
        match self {
            Self::Mon => Weekday::Monday,
            Self::Tue => Weekday::Tuesday,
            Self::Wed => Weekday::Wednesday,
            Self::Thu => Weekday::Thursday,
            Self::Fri => Weekday::Friday,
            Self::Sat => Weekday::Saturday,
            Self::Sun => Weekday::Sunday,
        }
    }
}

impl FromStr for TimeOfDay {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let two = |digits: &str| match digits.as_bytes() {
            [a, b] if a.is_ascii_digit() && b.is_ascii_digit() => digits.parse::<i8>().ok(),
            _ => None,
        };
        let time = text.split_once(':').and_then(|(hour, minute)| Time::new(two(hour)?, two(minute)?, 0, 0).ok());
        time.map(Self).ok_or("expected a time of day such as 08:30 or 22:00")
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0.hour(), self.0.minute())
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

fn utc() -> String {
    "UTC".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn window(days: &[&str], from: &str, to: &str, zone: &str) -> ChangeWindow {
        ChangeWindow::deserialize(json!({ "days": days, "from": from, "to": to, "timeZone": zone })).expect("a window")
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    /// Whether one is open, and until when.
    fn state(windows: &[ChangeWindow], now: &str) -> (bool, Option<String>) {
        let state = WindowState::of(windows, at(now));
        (state.is_open, state.until.map(|until| until.to_string()))
    }

    fn open(until: &str) -> (bool, Option<String>) {
        (true, Some(until.to_owned()))
    }

    fn closed(until: &str) -> (bool, Option<String>) {
        (false, Some(until.to_owned()))
    }

    #[test]
    fn is_open_from_start_to_end() {
        // 2026-07-01 is a Wednesday; Berlin is two hours ahead.
        let night = [window(&["Wed"], "22:00", "23:30", "Europe/Berlin")];
        assert_eq!(state(&night, "2026-07-01T19:59:59Z"), closed("2026-07-01T20:00:00Z"));
        assert_eq!(state(&night, "2026-07-01T20:00:00Z"), open("2026-07-01T21:30:00Z"));
        assert_eq!(state(&night, "2026-07-01T21:30:00Z"), closed("2026-07-08T20:00:00Z"));
        assert_eq!(
            state(&[window(&[], "08:00", "09:00", "UTC")], "2026-07-01T09:00:00Z"),
            closed("2026-07-02T08:00:00Z")
        );
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_starts() {
        let night = [window(&["Sat"], "22:00", "04:00", "UTC")];
        assert_eq!(state(&night, "2026-07-04T21:00:00Z"), closed("2026-07-04T22:00:00Z"));
        assert_eq!(state(&night, "2026-07-05T03:59:59Z"), open("2026-07-05T04:00:00Z"));
        assert_eq!(state(&night, "2026-07-05T22:00:00Z"), closed("2026-07-11T22:00:00Z"));
        // From a time to the same is 24 hours.
        let sunday = [window(&["Sun"], "00:00", "00:00", "UTC")];
        assert_eq!(state(&sunday, "2026-07-05T12:00:00Z"), open("2026-07-06T00:00:00Z"));
        assert_eq!(state(&[window(&[], "06:00", "06:00", "UTC")], "2026-07-05T12:00:00Z"), (true, None));
    }

    #[test]
    fn adjacent_windows_are_one() {
        let both = [window(&[], "22:00", "00:00", "UTC"), window(&[], "00:00", "02:00", "UTC")];
        assert_eq!(state(&both, "2026-07-04T23:00:00Z"), open("2026-07-05T02:00:00Z"));
    }

    #[test]
    fn a_time_that_a_clock_change_skips_does_not_occur() {
        // In Berlin, 2026-03-29 has no time from 02:00 to 03:00.
        let skipped = [window(&["Sun"], "02:00", "03:00", "Europe/Berlin")];
        assert_eq!(state(&skipped, "2026-03-28T12:00:00Z"), closed("2026-04-05T00:00:00Z"));
        let begun = [window(&["Sun"], "02:30", "04:00", "Europe/Berlin")];
        assert_eq!(state(&begun, "2026-03-29T00:30:00Z"), closed("2026-03-29T01:00:00Z"));
        let ended = [window(&["Sun"], "01:00", "02:30", "Europe/Berlin")];
        assert_eq!(state(&ended, "2026-03-29T00:30:00Z"), open("2026-03-29T01:00:00Z"));
    }

    #[test]
    fn a_time_that_a_clock_change_repeats_occurs_twice() {
        // In Berlin, 2026-10-25 has the time from 02:00 to 03:00 twice, from 00:00 and from 01:00 UTC.
        let twice = [window(&["Sun"], "02:00", "02:30", "Europe/Berlin")];
        assert_eq!(state(&twice, "2026-10-25T00:00:00Z"), open("2026-10-25T00:30:00Z"));
        assert_eq!(state(&twice, "2026-10-25T00:30:00Z"), closed("2026-10-25T01:00:00Z"));
        assert_eq!(state(&twice, "2026-10-25T01:00:00Z"), open("2026-10-25T01:30:00Z"));
        let over = [window(&["Sun"], "01:00", "04:00", "Europe/Berlin")];
        assert_eq!(state(&over, "2026-10-24T23:00:00Z"), open("2026-10-25T03:00:00Z"));
    }

    #[test]
    fn rejects_an_unknown_zone_and_never_opens() {
        let windows = [window(&[], "00:00", "00:00", "Europe/Berlni")];
        let message = windows[0].zone().expect_err("no zone").to_string();
        assert!(message.starts_with("no such time zone: Europe/Berlni. expected"), "{message}");
        assert_eq!(state(&windows, "2026-07-04T21:00:00Z"), (false, None));
        for zone in ["UTC", "Asia/Kolkata", "America/Argentina/Buenos_Aires", "Etc/GMT+5"] {
            assert!(window(&[], "00:00", "01:00", zone).zone().is_ok(), "{zone}");
        }
    }

    #[test]
    fn accepts_times_to_the_minute_and_rejects_others() {
        for text in ["00:00", "09:05", "23:59"] {
            assert_eq!(text.parse::<TimeOfDay>().expect(text).to_string(), text);
        }
        for text in ["", "24:00", "9:05", "09:60", "09:05:00", "+9:05", "0905", "09:5"] {
            assert!(text.parse::<TimeOfDay>().is_err(), "{text}");
        }
        let written = json!({ "days": ["Mon", "Fri"], "from": "22:00", "to": "04:00", "timeZone": "Europe/Berlin" });
        let window = ChangeWindow::deserialize(&written).expect("a window");
        assert_eq!(serde_json::to_value(&window).expect("JSON"), written);
        assert_eq!(window.to_string(), "Mon,Fri 22:00-04:00 Europe/Berlin");
    }

    /// Checks the state each five minutes around clock changes against the previous one.
    #[test]
    fn changes_when_it_said_it_would() {
        // The last one changes its clock by half an hour.
        for (zone, changes) in [
            ("Europe/Berlin", ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"]),
            ("America/New_York", ["2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"]),
            ("Australia/Lord_Howe", ["2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"]),
        ] {
            let windows = [window(&["Sun"], "01:30", "02:15", zone), window(&["Sat", "Sun"], "23:10", "02:20", zone)];
            for change in changes {
                let mut now = at(change) - SignedDuration::from_hours(12);
                let mut said = WindowState::of(&windows, now);
                for _ in 0..24 * 12 {
                    now += SignedDuration::from_mins(5);
                    let state = WindowState::of(&windows, now);
                    let changed = said.until.is_some_and(|until| until <= now);
                    assert_eq!(state.is_open != said.is_open, changed, "{zone} at {now}: {said:?}, then {state:?}");
                    said = state;
                }
            }
        }
    }
}
