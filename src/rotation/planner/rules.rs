//! The planner's rules that a test can take back, one at a time: the simulated cluster then has to find that a connection fails.

/// A rule that a test can take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "some are rules of the simulated agent only"))]
pub(in crate::rotation) enum Rule {
    /// Certificates are requested with growing intervals while a request does not help.
    Pace,
    /// Certificates whose issuance gets no answer do not delay others.
    StuckRequestsDoNotDelayOthers,
    /// A client whose certificate is unknown has not followed.
    UnknownIsLagging,
    /// A CA is not retired while an Issuer signs with an intermediate CA below it.
    IssuersKeepTheirRoot,
    /// A certificate that is unknown may be of the CA that ends first.
    UnknownMayEndFirst,
    /// The end of a CA overrides waits for single clients.
    TheEndOverridesClients,
    /// The end of a CA overrides waits for gateways that were seen with an earlier bundle.
    TheEndOverridesGateways,
    /// Before a CA ends, its certificates are reissued with what the Issuer signs, even if a newer CA is not promoted yet.
    TheEndOverridesPromotion,
    /// A CA stays in the bundle while a certificate of it is not admitted yet.
    PendingCertificatesKeepTheirCa,
    /// Certificates are reissued before an intermediate CA of their chain ends.
    ChainsAreReissued,
    /// A client whose truststore would hide a CA that it needs is not reissued.
    TruststoresHideCas,
    /// The delays of a policy that does not exist any more stay in force for a while.
    DelaysOutliveTheirPolicy,
    /// Gateways are probed until the rotation is over, and contents are compared that were out of use before.
    ProbeUntilSteady,
    /// What gateways have shown counts after they cannot be probed any more.
    SightingsOutliveTheirTarget,
    /// A gateway that refuses the canary for another reason than its CA may trust that CA.
    RefusalsNameTheirReason,
    /// A CA that has expired is not a successor of one that has not.
    ExpiredCasHoldNothing,
    /// A bundle with which gateways would refuse a client that they accept is not written.
    WritesKeepConnections,
    /// A step that fails does not stop others.
    IndependentSteps,
    /// A client whose owner says that no workload uses it counts for the propagation delay only.
    RetiredClientsAreNotAwaited,
    /// The clients of a namespace count for a day after it was deleted.
    DeletedNamespacesAreRemembered,
}

/// Whether a rule applies: always, except in a test that takes it back.
#[cfg(not(test))]
pub(in crate::rotation) const fn applies(_: Rule) -> bool {
    true
}

#[cfg(test)]
pub(in crate::rotation) use taken_back::{applies, without};

#[cfg(test)]
mod taken_back {
    use std::cell::Cell;

    use super::Rule;

    thread_local!(static TAKEN_BACK: Cell<Option<Rule>> = const { Cell::new(None) });

    /// Whether a rule applies on this thread.
    pub(in crate::rotation) fn applies(rule: Rule) -> bool {
        TAKEN_BACK.get() != Some(rule)
    }

    /// The result of a function that runs without a rule. It must not panic.
    pub(in crate::rotation) fn without<T>(rule: Rule, run: impl FnOnce() -> T) -> T {
        TAKEN_BACK.set(Some(rule));
        let result = run();
        TAKEN_BACK.set(None);
        result
    }
}
