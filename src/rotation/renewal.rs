//! `spec.renewal` of a Certificate: when its owner allows a renewal. cert-manager applies it to its own renewals, but not to an issuance that is
//! requested with condition `Issuing`.
//!
//! Source: cert-manager 1.21.2, `pkg/util/pki/renewaltime.go` and `pkg/controller/certificates/readiness/readiness_controller.go`.

use jiff::Timestamp;
use serde_json::Value;

/// When a Certificate may be reissued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenewalPolicy {
    /// A renewal is allowed at any time.
    #[default]
    Anytime,
    /// `policy: Disabled`.
    Disabled,
    /// `windows`: from `status.renewalTime` on, when cert-manager renews the certificate itself. It is in a window if the certificate is valid
    /// during one after the renewal is due. `None` until the readiness controller has computed it, or if it cannot read a window.
    Windows(Option<Timestamp>),
}

/// Why a Certificate may not be reissued now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RenewalBlocker {
    /// When cert-manager renews it.
    pub(super) until: Option<Timestamp>,
    /// The field that blocks the renewal, and its value.
    pub(super) reason: String,
}

impl RenewalPolicy {
    /// Reads `spec.renewal` and `status.renewalTime` of a Certificate.
    pub fn of(certificate: &Value) -> Self {
        let renewal = &certificate["spec"]["renewal"];
        match renewal["windows"].as_array() {
            _ if renewal["policy"] == "Disabled" => Self::Disabled,
            Some(windows) if !windows.is_empty() => {
                let at = certificate["status"]["renewalTime"].as_str();
                Self::Windows(at.and_then(|at| at.parse().ok()))
            }
            _ => Self::Anytime,
        }
    }

    /// Why the Certificate may not be reissued now.
    pub(super) fn blocker(self, now: Timestamp) -> Option<RenewalBlocker> {
        let (until, reason) = match self {
            Self::Disabled => (None, "spec.renewal.policy is Disabled".to_owned()),
            Self::Windows(None) => {
                (None, "it has spec.renewal.windows, and cert-manager has set no status.renewalTime".to_owned())
            }
            Self::Windows(Some(at)) if now < at => {
                (Some(at), format!("spec.renewal.windows allows no renewal before {at} (status.renewalTime)"))
            }
            Self::Windows(Some(_)) | Self::Anytime => return None,
        };
        Some(RenewalBlocker { until, reason })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spec_renewal_and_the_renewal_time_say_when_a_certificate_may_be_reissued() {
        let at = "2026-07-04T20:00:00Z";
        let windows = json!([{"cron": "0 22 * * Sat", "windowDuration": "4h", "timezone": "Europe/Berlin"}]);
        let due = Some(at.parse().unwrap());
        for (renewal, time, expected) in [
            (json!(null), json!(at), RenewalPolicy::Anytime),
            (json!({"policy": "RenewBefore"}), json!(at), RenewalPolicy::Anytime),
            (json!({"policy": "RenewBefore", "windows": []}), json!(at), RenewalPolicy::Anytime),
            (json!({"policy": "Disabled"}), json!(null), RenewalPolicy::Disabled),
            (json!({"policy": "RenewBefore", "windows": windows}), json!(at), RenewalPolicy::Windows(due)),
            (json!({"policy": "RenewBefore", "windows": windows}), json!(null), RenewalPolicy::Windows(None)),
        ] {
            let certificate = json!({"spec": {"renewal": renewal}, "status": {"renewalTime": time}});
            assert_eq!(RenewalPolicy::of(&certificate), expected, "{certificate}");
        }
    }

    #[test]
    fn windows_block_until_the_renewal_time() {
        let at: Timestamp = "2026-07-04T20:00:00Z".parse().unwrap();
        let before = at - jiff::SignedDuration::from_secs(1);
        let blocker = RenewalPolicy::Windows(Some(at)).blocker(before).unwrap();
        let said = "spec.renewal.windows allows no renewal before 2026-07-04T20:00:00Z (status.renewalTime)";
        assert_eq!((blocker.until, blocker.reason.as_str()), (Some(at), said));
        assert_eq!(RenewalPolicy::Windows(Some(at)).blocker(at), None);
        assert_eq!(RenewalPolicy::Anytime.blocker(before), None);
        for blocked in [RenewalPolicy::Disabled, RenewalPolicy::Windows(None)] {
            assert_eq!(blocked.blocker(at).map(|blocker| blocker.until), Some(None), "{blocked:?}");
        }
    }
}
