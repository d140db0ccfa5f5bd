//! The flag `--severity`.

use crate::admission::RuleInfo;
use crate::api::Level;
use crate::trust::Severities;

/// Severities of rules, for all namespaces.
#[derive(Debug, clap::Args)]
pub(super) struct SeverityArgs {
    /// Severity of a rule: RULE=deny, RULE=warn or RULE=off. Repeatable. A RotationPolicy overrides it.
    #[arg(long = "severity", value_name = "RULE=LEVEL", value_parser = weight)]
    severities: Vec<(String, Level)>,
}

impl SeverityArgs {
    /// The weights; of two for one rule the last.
    pub(super) fn severities(&self) -> Severities {
        self.severities.iter().cloned().collect()
    }
}

fn weight(text: &str) -> Result<(String, Level), String> {
    let (rule, level) = text.split_once('=').ok_or("expected RULE=deny, RULE=warn or RULE=off")?;
    let level = match level {
        "deny" => Level::Deny,
        "warn" => Level::Warn,
        "off" => Level::Off,
        _ => return Err(format!("{level:?} is no level; expected deny, warn or off")),
    };
    match RuleInfo::find(rule) {
        Some(rule) if rule.is_fixed() => Err(format!("the weight of {} is fixed; see `trustspan rules`", rule.id)),
        Some(rule) => Ok((rule.id.to_owned(), level)),
        None => Err(format!("there is no rule {rule:?}; `trustspan rules` lists them")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_rules() {
        assert_eq!(weight("expired=off"), Ok(("expired".to_owned(), Level::Off)));
        for (text, why) in [
            ("expired", "expected RULE="),
            ("expired=Off", "no level"),
            ("no-such=off", "no rule"),
            ("unreadable=off", "fixed"),
        ] {
            let error = weight(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
