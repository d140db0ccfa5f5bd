//! What triggers a reconcile from the registry: a change of the GatewaySecret itself, or of a conflict with an older one over a name.
//! Other changes are ignored: otherwise each status write would cause a reconcile of every GatewaySecret.

use std::sync::Arc;

use tokio::sync::watch;

use crate::registry::{Entry, Registry};

/// Everything that a reconcile takes from the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReconcileInput {
    /// The GatewaySecret as last seen by the watch.
    pub(super) entry: Arc<Entry>,
    /// An older GatewaySecret claims one of its names, or two of its names are the same: nothing is written for it.
    pub(super) has_conflict: bool,
}

impl ReconcileInput {
    /// The reconciler's input for a GatewaySecret of a registry.
    pub(super) fn of(entry: &Arc<Entry>, registry: &Registry) -> Self {
        Self { entry: entry.clone(), has_conflict: registry.conflict(entry).is_some() }
    }
}

/// Sends the input of a newer registry to the reconciler, which reconciles if it differs.
pub(super) fn update(input: &watch::Sender<ReconcileInput>, entry: &Arc<Entry>, registry: &Registry) {
    input.send_if_modified(|input| {
        let has_conflict = registry.conflict(entry).is_some();
        let is_changed = input.has_conflict != has_conflict || input.entry != *entry;
        if is_changed {
            *input = ReconcileInput { entry: entry.clone(), has_conflict };
        }
        is_changed
    });
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::api::Phase;
    use crate::registry::tests::entry;

    /// Whether a newer registry triggers a reconcile of the first GatewaySecret. Also checks that the reconciler's
    /// input is then that of the newer registry.
    fn reconciles(before: &[Entry], after: &[Entry]) -> bool {
        let (first, last) = (Arc::new(before[0].clone()), Arc::new(after[0].clone()));
        let (old, new) = (Registry::new(before.to_vec()), Registry::new(after.to_vec()));
        let (sender, mut receiver) = watch::channel(ReconcileInput::of(&first, &old));
        receiver.mark_unchanged();
        update(&sender, &last, &new);
        assert_eq!(*receiver.borrow(), ReconcileInput::of(&last, &new));
        receiver.has_changed().expect("a sender")
    }

    fn changed(entry: &Entry, change: impl FnOnce(&mut Entry)) -> Entry {
        let mut entry = entry.clone();
        change(&mut entry);
        entry
    }

    #[test]
    fn does_not_reconcile_on_changes_of_other_gateway_secrets() {
        let (own, other) = (entry("mesh", "root", "gw"), entry("mesh", "root-2", "gw-2"));
        let both = [own.clone(), other.clone()];
        assert!(!reconciles(&both, &both), "an unchanged list");
        for after in [
            changed(&other, |other| other.status.phase = Some(Phase::Converged)),
            changed(&other, |other| other.resolved.source_secret_name = "root-3".to_owned()),
            changed(&other, |other| other.generation = Some(7)),
            changed(&other, |other| other.unread = Some("a bad duration".to_owned())),
            changed(&other, |other| other.being_deleted = true),
        ] {
            assert!(!reconciles(&both, &[own.clone(), after.clone()]), "{after:?}");
        }
        assert!(!reconciles(&both, &both[..1]) && !reconciles(&both[..1], &both), "it is deleted, and created");
        let elsewhere = changed(&entry("edge", "root", "gw"), |other| other.created = Some(Timestamp::MIN));
        assert!(!reconciles(&both[..1], &[own, elsewhere]), "the same names in another namespace");
    }

    #[test]
    fn reconciles_on_changes_of_the_gateway_secret() {
        let own = entry("mesh", "root", "gw");
        for after in [
            changed(&own, |own| own.spec.paused = true),
            changed(&own, |own| own.generation = Some(7)),
            changed(&own, |own| own.uid = Some("created again".to_owned())),
            // A status that another writer has changed is overwritten.
            changed(&own, |own| own.status.phase = Some(Phase::Converged)),
            changed(&own, |own| own.unread = Some("a bad duration".to_owned())),
            changed(&own, |own| own.being_deleted = true),
        ] {
            assert!(reconciles(std::slice::from_ref(&own), std::slice::from_ref(&after)), "{after:?}");
        }
    }

    #[test]
    fn reconciles_when_a_conflict_over_a_name_begins_or_ends() {
        let own = entry("mesh", "root", "gw");
        let older = changed(&entry("mesh", "other", "gw-2"), |other| other.created = Some(Timestamp::MIN));
        let apart = [own.clone(), older.clone()];
        for claimed in ["root", "gw"] {
            let conflicting =
                [own.clone(), changed(&older, |other| other.resolved.source_secret_name = claimed.to_owned())];
            assert!(reconciles(&apart, &conflicting) && reconciles(&conflicting, &apart), "{claimed}");
            assert!(reconciles(&apart[..1], &conflicting) && reconciles(&conflicting, &apart[..1]), "{claimed}");
        }
    }
}
