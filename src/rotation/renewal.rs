//! `spec.renewal` of a Certificate: when its owner allows a renewal. cert-manager applies it to its own renewals, but not to an issuance that is
//! requested with condition `Issuing`.
//!
//! Source: cert-manager 1.21, `pkg/apis/certmanager/v1/types_certificate.go` and `pkg/util/pki/renewaltime.go`.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::cron::Schedule;
use crate::api::time_zone;

/// When a Certificate may be reissued.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RenewalPolicy {
    /// A renewal is allowed at any time.
    #[default]
    Anytime,
    /// `policy: Disabled`.
    Disabled,
    /// While one of `windows` is open.
    Windows(Vec<RenewalWindow>),
}

/// A time in which a Certificate may be reissued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewalWindow {
    /// When it begins. `Err`: why that cannot be parsed; such a window never opens.
    opens: Result<(Schedule, TimeZone), String>,
    /// How long it is open.
    lasts: SignedDuration,
}

/// Why a Certificate may not be reissued now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RenewalBlocker {
    /// When a window opens.
    pub(super) until: Option<Timestamp>,
    /// The field that blocks the renewal, and its value.
    pub(super) reason: String,
}

impl RenewalPolicy {
    /// Reads `spec.renewal`.
    pub fn of(renewal: &Value) -> Self {
        if renewal["policy"] == "Disabled" {
            return Self::Disabled;
        }
        match renewal["windows"].as_array().filter(|windows| !windows.is_empty()) {
            None => Self::Anytime,
            Some(windows) => Self::Windows(windows.iter().map(RenewalWindow::of).collect()),
        }
    }

    /// Why the Certificate may not be reissued now.
    pub(super) fn blocker(&self, now: Timestamp) -> Option<RenewalBlocker> {
        let windows = match self {
            Self::Anytime => return None,
            Self::Disabled => {
                return Some(RenewalBlocker { until: None, reason: "spec.renewal.policy is Disabled".to_owned() });
            }
            Self::Windows(windows) => windows,
        };
        if windows.iter().any(|window| window.is_open(now)) {
            return None;
        }
        let until = windows.iter().filter_map(|window| window.next(now)).min();
        let unreadable = windows.iter().find_map(|window| window.opens.as_ref().err());
        let reason = match (until, unreadable) {
            (Some(until), _) => format!("no window of spec.renewal.windows is open until {until}"),
            (None, Some(error)) => format!("no window of spec.renewal.windows ever opens: {error}"),
            (None, None) => "no window of spec.renewal.windows ever opens".to_owned(),
        };
        Some(RenewalBlocker { until, reason })
    }
}

impl RenewalWindow {
    fn of(window: &Value) -> Self {
        let text = |key: &str| window[key].as_str().unwrap_or_default();
        let zone = match text("timezone") {
            "" => Ok(TimeZone::UTC),
            name => time_zone(name).map_err(|error| error.to_string()),
        };
        let schedule = || Schedule::parse(text("cron")).map_err(|error| format!("cron: {error}"));
        let lasts = duration(text("windowDuration"));
        let readable = zone.and_then(|zone| Ok((schedule()?, zone)));
        let opens = match lasts {
            Some(_) => readable,
            None => Err(format!("windowDuration {:?}: expected a duration such as 4h or 90m", text("windowDuration"))),
        };
        Self { opens, lasts: lasts.unwrap_or_default() }
    }

    fn is_open(&self, now: Timestamp) -> bool {
        let Ok((schedule, zone)) = &self.opens else { return false };
        schedule.last(zone, now).is_some_and(|from| now.duration_since(from) < self.lasts)
    }

    fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let (schedule, zone) = self.opens.as_ref().ok()?;
        schedule.next(zone, now)
    }
}

/// A positive duration in Go's notation, of the units that the CRD allows: `1h30m`, `1.5h`.
fn duration(text: &str) -> Option<SignedDuration> {
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.find(['h', 'm', 's'])?;
        let (number, unit) = rest.split_at(at);
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let unit_seconds = match &unit[..1] {
            "h" => 3600.0,
            "m" => 60.0,
            _ => 1.0,
        };
        seconds += number.parse::<f64>().ok().filter(|_| is_number)? * unit_seconds;
        rest = &unit[1..];
    }
    SignedDuration::try_from_secs_f64(seconds).ok().filter(SignedDuration::is_positive)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn blocker(renewal: &Value, now: &str) -> Option<(Option<String>, String)> {
        let blocker = RenewalPolicy::of(renewal).blocker(now.parse().expect("an instant"))?;
        Some((blocker.until.map(|until| until.to_string()), blocker.reason))
    }

    #[test]
    fn a_certificate_without_a_policy_or_windows_is_re_issued_at_any_time() {
        for anytime in
            [json!(null), json!({}), json!({"policy": "RenewBefore"}), json!({"policy": "RenewBefore", "windows": []})]
        {
            assert_eq!(blocker(&anytime, "2026-07-01T12:00:00Z"), None, "{anytime}");
        }
        let disabled = blocker(&json!({"policy": "Disabled"}), "2026-07-01T12:00:00Z");
        assert_eq!(disabled, Some((None, "spec.renewal.policy is Disabled".to_owned())));
    }

    #[test]
    fn a_window_is_open_from_its_cron_for_its_duration_in_its_zone() {
        let night = json!({"cron": "0 22 * * Sat", "windowDuration": "4h", "timezone": "Europe/Berlin"});
        let renewal = json!({"policy": "RenewBefore", "windows": [night]});
        for (now, until) in [
            ("2026-07-04T19:59:59Z", Some("2026-07-04T20:00:00Z")),
            ("2026-07-04T20:00:00Z", None),
            ("2026-07-04T23:59:59Z", None),
            ("2026-07-05T00:00:00Z", Some("2026-07-11T20:00:00Z")),
        ] {
            let held = blocker(&renewal, now);
            assert_eq!(held.map(|held| held.0.expect("an opening")).as_deref(), until, "{now}");
        }
        // The next of several windows, and a window that is longer than the interval of its schedule.
        let early = json!({"cron": "0 3 * * *", "windowDuration": "1h30m"});
        let both = json!({"windows": [night, early]});
        let held = blocker(&both, "2026-07-05T00:00:00Z").expect("a blocker");
        assert_eq!(held.1, "no window of spec.renewal.windows is open until 2026-07-05T03:00:00Z");
        let always = json!({"windows": [{"cron": "@daily", "windowDuration": "25h"}]});
        assert_eq!(blocker(&always, "2026-07-05T00:00:00Z"), None);
    }

    #[test]
    fn a_window_that_cannot_be_read_never_opens_and_says_why() {
        for (window, why) in [
            (json!({"cron": "0 25 * * *", "windowDuration": "1h"}), "cron: hour 25: expected"),
            (json!({"cron": "@daily", "windowDuration": "1d"}), "windowDuration \"1d\": expected"),
            (json!({"cron": "@daily"}), "windowDuration \"\": expected"),
            (
                json!({"cron": "@daily", "windowDuration": "1h", "timezone": "Mars/Base"}),
                "no such time zone: Mars/Base",
            ),
        ] {
            let (until, reason) = blocker(&json!({"windows": [window]}), "2026-07-05T00:00:00Z").expect("a blocker");
            assert!(until.is_none() && reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, seconds) in [("90m", 5400), ("1h30m", 5400), ("1.5h", 5400), ("10s", 10)] {
            assert_eq!(duration(text), Some(SignedDuration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "1", "h", "1d", "-1h", "0s", "1e3s", "1h 2m", "infs", "99999999999999999999h"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
