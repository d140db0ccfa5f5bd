//! What a keeper goes by of all GatewaySecrets: its own, and whether an older one has taken its names. It is woken by a change of
//! that: woken by each, a hundred keepers would look a hundred times whenever one of them writes its status.

use tokio::sync::watch;

use crate::registry::{Entry, Registry};

/// All that a look takes from the registry. What it does not hold, a keeper cannot depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The GatewaySecret, as it was heard of last.
    pub(super) entry: Entry,
    /// An older one claims one of its names, or two of its names are one: nothing is kept for it.
    pub(super) is_held_off: bool,
}

impl Known {
    /// What a registry says of one of its GatewaySecrets.
    pub(super) fn of(entry: &Entry, registry: &Registry) -> Self {
        Self { entry: entry.clone(), is_held_off: registry.conflict(entry).is_some() }
    }
}

/// Hands a keeper what another registry says of its GatewaySecret, and wakes it if that is something else.
pub(super) fn renew(known: &watch::Sender<Known>, entry: &Entry, registry: &Registry) {
    known.send_if_modified(|known| {
        let is_held_off = registry.conflict(entry).is_some();
        // A status holds certificates: it is copied only when it has changed.
        let wakes = known.is_held_off != is_held_off || known.entry != *entry;
        if wakes {
            *known = Known { entry: entry.clone(), is_held_off };
        }
        wakes
    });
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::api::Phase;
    use crate::registry::tests::entry;

    /// Whether the keeper of the first wakes when one registry follows another. What it then has is what the new one says.
    fn wakes(before: &[Entry], after: &[Entry]) -> bool {
        let (old, new) = (Registry::new(before.to_vec()), Registry::new(after.to_vec()));
        let (sender, mut receiver) = watch::channel(Known::of(&before[0], &old));
        receiver.mark_unchanged();
        renew(&sender, &after[0], &new);
        assert_eq!(*receiver.borrow(), Known::of(&after[0], &new));
        receiver.has_changed().expect("a sender")
    }

    fn changed(entry: &Entry, change: impl FnOnce(&mut Entry)) -> Entry {
        let mut entry = entry.clone();
        change(&mut entry);
        entry
    }

    #[test]
    fn rejects_a_change_of_another() {
        let (own, other) = (entry("mesh", "root", "gw"), entry("mesh", "root-2", "gw-2"));
        let both = [own.clone(), other.clone()];
        assert!(!wakes(&both, &both), "a list that says the same once more");
        for after in [
            changed(&other, |other| other.status.phase = Some(Phase::Converged)),
            changed(&other, |other| other.resolved.source_secret_name = "root-3".to_owned()),
            changed(&other, |other| other.generation = Some(7)),
            changed(&other, |other| other.unread = Some("a bad duration".to_owned())),
            changed(&other, |other| other.being_deleted = true),
        ] {
            assert!(!wakes(&both, &[own.clone(), after.clone()]), "{after:?}");
        }
        assert!(!wakes(&both, &both[..1]) && !wakes(&both[..1], &both), "it goes, and comes");
        let elsewhere = changed(&entry("edge", "root", "gw"), |other| other.created = Some(Timestamp::MIN));
        assert!(!wakes(&both[..1], &[own, elsewhere]), "the same names in another namespace");
    }

    #[test]
    fn accepts_a_change_of_its_own() {
        let own = entry("mesh", "root", "gw");
        for after in [
            changed(&own, |own| own.spec.paused = true),
            changed(&own, |own| own.generation = Some(7)),
            changed(&own, |own| own.uid = Some("made anew".to_owned())),
            // Somebody else's write of the status is undone.
            changed(&own, |own| own.status.phase = Some(Phase::Converged)),
            changed(&own, |own| own.unread = Some("a bad duration".to_owned())),
            changed(&own, |own| own.being_deleted = true),
        ] {
            assert!(wakes(std::slice::from_ref(&own), std::slice::from_ref(&after)), "{after:?}");
        }
    }

    #[test]
    fn accepts_that_another_takes_or_leaves_one_of_its_names() {
        let own = entry("mesh", "root", "gw");
        let older = changed(&entry("mesh", "other", "gw-2"), |other| other.created = Some(Timestamp::MIN));
        let alone = [own.clone(), older.clone()];
        for takes in ["root", "gw"] {
            let taken = [own.clone(), changed(&older, |other| other.resolved.source_secret_name = takes.to_owned())];
            assert!(wakes(&alone, &taken) && wakes(&taken, &alone), "{takes}");
            assert!(wakes(&alone[..1], &taken) && wakes(&taken, &alone[..1]), "{takes}");
        }
    }
}
