//! A duration, as users write it.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the API server accepts: values that can be parsed, in the order in which they can.
const PATTERN: &str = "^([0-9]{1,7}h)?([0-9]{1,8}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$";

/// A duration, zero or more, such as `30s`, `2m`, `1h30m` or `24h`. Days and longer units have no fixed length and are rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String", extend("pattern" = PATTERN, "minLength" = 2))]
pub struct Period(SignedDuration);

impl Period {
    /// A number of seconds.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(SignedDuration::from_secs(seconds))
    }

    /// As a duration.
    pub fn duration(self) -> SignedDuration {
        self.0
    }

    /// The instant this long after another, at most the latest that can be represented.
    pub fn after(self, start: Timestamp) -> Timestamp {
        start.saturating_add(self.0).unwrap_or(Timestamp::MAX)
    }
}

impl FromStr for Period {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = "expected a duration such as 30s, 2m or 1h30m";
        let duration: SignedDuration = text.parse().map_err(|_| expected)?;
        if duration.is_negative() { Err(expected) } else { Ok(Self(duration)) }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.to_string().replace(' ', ""))
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_users_write() {
        for (text, seconds) in [("30s", 30), ("2m", 120), ("1h30m", 5400), ("0s", 0)] {
            let period: Period = serde_json::from_value(text.into()).expect("a period");
            assert_eq!(period, Period::from_secs(seconds), "{text}");
            assert_eq!(serde_json::to_value(period).expect("a text"), text);
        }
        // The longest that the schema accepts.
        assert!("9999999h99999999m999999999s999999999ms".parse::<Period>().is_ok());
        assert_eq!(Period(SignedDuration::MAX).after(Timestamp::UNIX_EPOCH), Timestamp::MAX);
    }

    #[test]
    fn rejects_other_texts() {
        for text in ["", "30", "-5s", "1d", "1 month", "soon", "30s2m", "99999999999999999999h"] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }
}
