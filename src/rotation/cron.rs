//! Cron schedules as cert-manager reads them: its own copy of robfig/cron, five fields or a descriptor.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// The number of days to search for the next time. As in cert-manager, it covers the gap of leap days around the year
/// 2100.
const DAYS: i32 = 9 * 366;

/// A schedule: instants that recur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Schedule {
    /// Five cron fields: the times at which all of them match.
    Clock(Box<Clock>),
    /// `@every`: counted from the given instant, so there is always a next time.
    Every,
}

/// Five fields, each a set of numbers as bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether the days of the month, or those of the week, begin with `*`: then a day must match both fields,
    /// otherwise one of them.
    both_days: bool,
}

/// A field: its name, its smallest and largest value, and the names of its values (`jan`, `feb`), from the smallest on.
struct Field(&'static str, u32, u32, &'static [&'static str]);

const MINUTE: Field = Field("minute", 0, 59, &[]);
const HOUR: Field = Field("hour", 0, 23, &[]);
const DAY: Field = Field("day of the month", 1, 31, &[]);
const MONTH: Field =
    Field("month", 1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]);
const WEEKDAY: Field = Field("day of the week", 0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]);

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// What is wrong with it: a phrase.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ if text.starts_with("@every ") => return Ok(Self::Every),
            other => other,
        };
        let fields: Vec<_> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(format!("expected five fields, found {}: {text}", fields.len()));
        };
        let ((days, any_day), (weekdays, any_weekday)) = (DAY.read(day)?, WEEKDAY.read(weekday)?);
        Ok(Self::Clock(Box::new(Clock {
            minutes: MINUTE.read(minute)?.0,
            hours: HOUR.read(hour)?.0,
            days,
            months: MONTH.read(month)?.0,
            weekdays,
            both_days: any_day || any_weekday,
        })))
    }

    /// The last scheduled instant that is not after `now`.
    pub(super) fn last(&self, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
        let Self::Clock(clock) = self else { return Some(now) };
        let today = zone.to_datetime(now).date();
        clock.days_from(today, -1).find_map(|date| clock.on(date, zone).filter(|at| *at <= now).max())
    }

    /// The first scheduled instant after `now`.
    pub(super) fn next(&self, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
        let Self::Clock(clock) = self else { return Some(now) };
        let today = zone.to_datetime(now).date();
        clock.days_from(today, 1).find_map(|date| clock.on(date, zone).filter(|at| *at > now).min())
    }
}

impl Clock {
    /// The days that match, starting with `from`, forwards or backwards.
    fn days_from(&self, from: Date, step: i32) -> impl Iterator<Item = Date> {
        let dates = (0..DAYS).map_while(move |days| from.checked_add((days * step).days()).ok());
        dates.filter(|date| self.fits(*date))
    }

    fn fits(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month()) && if self.both_days { day && weekday } else { day || weekday }
    }

    /// The scheduled instants of a day. A local time that a clock change skips is left out; one that is repeated occurs
    /// twice.
    fn on(&self, date: Date, zone: &TimeZone) -> impl Iterator<Item = Timestamp> {
        let minutes =
            |hour| (0..60).filter(|minute| has(self.minutes, *minute)).map(move |minute| date.at(hour, minute, 0, 0));
        let times: Vec<DateTime> = (0..24).filter(|hour| has(self.hours, *hour)).flat_map(minutes).collect();
        times.into_iter().flat_map(move |time| {
            let at = zone.to_ambiguous_timestamp(time);
            let instants = [at.earlier(), at.later()].into_iter().flatten();
            instants.filter(|at| zone.to_datetime(*at) == time).collect::<Vec<_>>()
        })
    }
}

impl Field {
    /// The values of a list of ranges, and whether one of them leaves the field open.
    fn read(&self, list: &str) -> Result<(u64, bool), String> {
        let mut read = (0, false);
        for range in list.split(',').filter(|range| !range.is_empty()) {
            let (bits, is_open) = self.range(range)?;
            read = (read.0 | bits, read.1 || is_open);
        }
        Ok(read)
    }

    /// `*`, `N` or `N-M`, each with `/STEP`; `N/STEP` continues to the greatest value.
    fn range(&self, text: &str) -> Result<(u64, bool), String> {
        let Self(name, least, most, _) = *self;
        let wrong = || format!("{name} {text}: expected numbers from {least} to {most}, as in 1-5, */2 or 1,3");
        let (range, step) = match text.split_once('/') {
            None => (text, None),
            Some((range, step)) => (range, Some(step.parse::<u32>().map_err(|_| wrong())?)),
        };
        let is_star = matches!(range, "*" | "?");
        let (from, to) = match range.split_once('-') {
            _ if is_star => (least, most),
            None => {
                let one = self.value(range).ok_or_else(wrong)?;
                (one, if step.is_some() { most } else { one })
            }
            Some((from, to)) => (self.value(from).ok_or_else(wrong)?, self.value(to).ok_or_else(wrong)?),
        };
        if from < least || to > most || from > to || step == Some(0) {
            return Err(wrong());
        }
        let step = step.unwrap_or(1);
        let bits = (from..=to).step_by(step as usize).fold(0, |bits, value| bits | 1 << value);
        Ok((bits, is_star && step == 1))
    }

    fn value(&self, text: &str) -> Option<u32> {
        let Self(_, least, _, words) = self;
        let word = words.iter().zip(*least..).find(|(word, _)| word.eq_ignore_ascii_case(text));
        word.map(|(_, value)| value).or_else(|| text.parse().ok())
    }
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits >> value & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    /// The last and the next scheduled instant at a time.
    fn around(cron: &str, zone: &str, now: &str) -> (String, String) {
        let zone = TimeZone::get(zone).expect("a zone");
        let schedule = Schedule::parse(cron).expect("a schedule");
        let text = |at: Option<Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
        (text(schedule.last(&zone, at(now))), text(schedule.next(&zone, at(now))))
    }

    fn both(last: &str, next: &str) -> (String, String) {
        (last.to_owned(), next.to_owned())
    }

    #[test]
    fn instants_come_as_the_fields_say() {
        // 2026-07-01 is a Wednesday.
        let now = "2026-07-01T12:30:30Z";
        for (cron, last, next) in [
            ("30 12 * * *", "2026-07-01T12:30:00Z", "2026-07-02T12:30:00Z"),
            ("*/20 * * * *", "2026-07-01T12:20:00Z", "2026-07-01T12:40:00Z"),
            ("0 22 * * Mon-Fri", "2026-06-30T22:00:00Z", "2026-07-01T22:00:00Z"),
            ("0 2 * * sat,0", "2026-06-28T02:00:00Z", "2026-07-04T02:00:00Z"),
            ("0 0 13 * 5", "2026-06-26T00:00:00Z", "2026-07-03T00:00:00Z"),
            ("0 0 */13 * 5", "2026-07-01T00:00:00Z", "2026-07-03T00:00:00Z"),
            ("0 0 13 * *", "2026-06-13T00:00:00Z", "2026-07-13T00:00:00Z"),
            ("0 0 29 feb ?", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("50/5 12 1 7 *", "2025-07-01T12:55:00Z", "2026-07-01T12:50:00Z"),
            ("@monthly", "2026-07-01T00:00:00Z", "2026-08-01T00:00:00Z"),
            ("0 0 31 2 *", "", ""),
        ] {
            assert_eq!(around(cron, "UTC", now), both(last, next), "{cron}");
        }
    }

    #[test]
    fn the_clock_on_the_wall_counts() {
        let berlin = |now| around("30 2 * * *", "Europe/Berlin", now);
        assert_eq!(berlin("2026-07-01T12:00:00Z"), both("2026-07-01T00:30:00Z", "2026-07-02T00:30:00Z"));
        // 02:30 does not exist on 2026-03-29, and occurs twice on 2026-10-25.
        assert_eq!(berlin("2026-03-29T12:00:00Z"), both("2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"));
        assert_eq!(berlin("2026-10-25T00:45:00Z"), both("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"));
    }

    #[test]
    fn rejects_what_cert_manager_rejects() {
        for wrong in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* * 0 * *",
            "* * * * 7",
            "5-1 * * * *",
            "*/0 * * * *",
            "x * * * *",
            "@often",
            "TZ=UTC * * * * *",
            "1-2-3 * * * *",
            "-1 * * * *",
        ] {
            assert!(Schedule::parse(wrong).is_err(), "{wrong}");
        }
        let error = Schedule::parse("0 24 * * *").expect_err("no such hour");
        assert_eq!(error, "hour 24: expected numbers from 0 to 23, as in 1-5, */2 or 1,3");
    }
}
