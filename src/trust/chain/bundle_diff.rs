//! The effect of an update of a bundle on chains that are accepted now.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use super::name::Name;
use super::{Budget, Presented, Purpose, Refused, Store};
use crate::trust::Certificate;

/// The effect of an update on a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It is accepted after the update, or was refused before.
    Unharmed,
    /// It was accepted before, and is refused after.
    Lost,
    /// The budget did not suffice.
    Undecided,
}

/// A bundle before and after an update, prepared for many chains. Their total cost is limited.
pub(crate) struct Update<'s> {
    before: &'s Store<'s>,
    after: &'s Store<'s>,
    /// Subjects of CAs from which paths may continue differently than before.
    touched: HashSet<Name>,
    budget: Budget,
}

impl<'s> Update<'s> {
    pub(crate) fn new(before: &'s Store<'s>, after: &'s Store<'s>) -> Self {
        Self { before, after, touched: touched(before, after), budget: Budget::default() }
    }

    /// Whether the budget is exhausted, so that the remaining chains cannot be judged.
    pub(crate) fn is_used_up(&self) -> bool {
        self.budget.is_used_up()
    }

    /// The effect on a chain at an instant.
    pub(crate) fn effect<'c>(
        &mut self,
        chain: impl IntoIterator<Item = &'c Certificate>,
        purpose: Purpose<'_>,
        now: Timestamp,
    ) -> Effect {
        let chain = Presented::read(chain);
        if self.is_out_of_reach(&chain, purpose) {
            return Effect::Unharmed;
        }
        self.budget.next_chain();
        // Signatures cost most. Those on the only path before the update are assumed to be valid: if one is not, the
        // update loses nothing.
        let path = match self.before.only_path(&chain.parsed, &self.budget) {
            Err(Refused::Budget) => Vec::new(),
            Err(_) => return Effect::Unharmed,
            Ok(path) if path.iter().any(|link| !link.certificate.is_valid_at(now)) => return Effect::Unharmed,
            Ok(path) => path,
        };
        self.budget.grant(&path);
        let after = self.after.first_refusal(&chain, purpose, now, &mut self.budget);
        self.budget.grant(&[]);
        let Err(refused) = after else { return Effect::Unharmed };
        match (self.before.first_refusal(&chain, purpose, now, &mut self.budget), refused) {
            (Ok(()), Refused::Budget) | (Err(Refused::Budget), _) => Effect::Undecided,
            (Ok(()), _) => Effect::Lost,
            (Err(_), _) => Effect::Unharmed,
        }
    }

    /// Whether an update may change the verdict on a chain.
    pub(crate) fn concerns<'c>(&self, chain: impl IntoIterator<Item = &'c Certificate>, purpose: Purpose<'_>) -> bool {
        !self.is_out_of_reach(&Presented::read(chain), purpose)
    }

    /// Whether each lookup on the chain's paths has the same result as before, so that the verdict is the same.
    fn is_out_of_reach(&self, chain: &Presented<'_>, purpose: Purpose<'_>) -> bool {
        let is_touched = |name: &Name| self.touched.contains(name);
        let issuers = || chain.parsed.iter().flatten().map(|parsed| &parsed.issuer);
        // The leaf may be an anchor itself.
        let leaf = chain.leaf().is_some_and(|leaf| is_touched(&leaf.subject));
        self.after.check_bundle(purpose).is_ok() && !leaf && !issuers().any(is_touched)
    }
}

impl Store<'_> {
    /// Issuer and subject of the CAs that are not self-issued.
    fn cross_signs(&self) -> impl Iterator<Item = (Name, &Name)> {
        self.by_subject.iter().flat_map(|(subject, group)| {
            let group = group.iter().map(|at| self.anchors[*at].certificate);
            let issued = group.filter(|ca| ca.subject_der != ca.issuer_der);
            issued.filter_map(move |ca| Some((Name::read(&ca.issuer_der)?, subject)))
        })
    }
}

/// The subjects of CAs that differ before and after, and of those below them.
fn touched(before: &Store<'_>, after: &Store<'_>) -> HashSet<Name> {
    let keeps_order = before.is_ordered() == after.is_ordered();
    let is_same = |name: &Name| {
        let (old, new) = (before.group(name), after.group(name));
        (keeps_order || old.len() < 2) && old.iter().map(|ca| &ca.fingerprint).eq(new.iter().map(|ca| &ca.fingerprint))
    };
    let names = before.by_subject.keys().chain(after.by_subject.keys());
    let mut todo: Vec<_> = names.filter(|name| !is_same(name)).cloned().collect();
    let mut below: HashMap<Name, Vec<&Name>> = HashMap::new();
    for (issuer, subject) in before.cross_signs().chain(after.cross_signs()) {
        below.entry(issuer).or_default().push(subject);
    }
    let mut touched = HashSet::new();
    while let Some(name) = todo.pop() {
        todo.extend(below.remove(&name).into_iter().flatten().cloned());
        touched.insert(name);
    }
    touched
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::trust::chain::UNORDERED;
    use crate::trust::fixtures::{Authority, Leaf, ca, ca_between, ca_without_key_id, now, parsed};

    fn read<'c>(cas: impl IntoIterator<Item = &'c Authority>) -> Vec<Certificate> {
        cas.into_iter().map(|ca| parsed(ca.der())).collect()
    }

    fn effect(before: &[Certificate], after: &[Certificate], chain: &[Certificate], budget: Budget) -> Effect {
        let (before, after) = (Store::new(before, None), Store::new(after, None));
        Update { budget, ..Update::new(&before, &after) }.effect(chain, Purpose::Client, now())
    }

    fn plain(ca: &Authority) -> Leaf {
        ca.leaf_with("client", |_| {})
    }

    #[test]
    fn removing_the_ca_of_a_chain_loses_it() {
        let (one, two, unknown) = (ca("one"), ca("two"), ca("unknown"));
        let (both, rest) = (read([&one, &two]), read([&two]));
        let of = |ca: &Authority| effect(&both, &rest, &[parsed(plain(ca).der())], Budget::default());
        assert_eq!([of(&one), of(&two), of(&unknown)], [Effect::Lost, Effect::Unharmed, Effect::Unharmed]);
    }

    /// Signatures are verified only where a client could be lost: a cluster may have thousands of clients.
    #[test]
    fn additions_and_renewals_need_no_signature() {
        let (one, two) = (ca_between("one", 2020, 2040), ca("two"));
        let renewed = one.renewed(2024, 2050);
        let chain = [parsed(plain(&one).der())];
        for after in [read([&one, &two]), read([&two, &one]), read([&renewed]), read([&renewed, &one])] {
            assert_eq!(effect(&read([&one]), &after, &chain, Budget::of(0, 0)), Effect::Unharmed);
        }
        assert_eq!(effect(&read([&one]), &read([&two]), &chain, Budget::of(0, 0)), Effect::Undecided);
    }

    #[test]
    fn judges_a_plain_chain_when_others_have_exhausted_the_budget() {
        let (root, other) = (ca("root"), ca("other"));
        let mut chain = vec![root.intermediate("0", |_| {})];
        for name in 1..8 {
            chain.push(chain[name - 1].intermediate(&name.to_string(), |_| {}));
        }
        let long = [&plain(&chain[7])].map(|leaf| parsed(leaf.der())).into_iter().chain(read(chain.iter().rev()));
        let (long, short) = (long.collect::<Vec<_>>(), [parsed(plain(&root).der())]);
        let (before, after) = (read([&root]), read([&other]));
        let judge = |chain: &[Certificate], budget| effect(&before, &after, chain, budget);
        assert_eq!(judge(&long, Budget::default()), Effect::Lost);
        assert_eq!(judge(&long, Budget::of(0, 100)), Effect::Undecided);
        assert_eq!(judge(&short, Budget::of(0, 100)), Effect::Lost);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// The shortcuts never change a verdict.
        #[test]
        fn agrees_with_verifying_each_chain_before_and_after(
            before in proptest::sample::subsequence((0..9_usize).collect::<Vec<_>>(), 1..9).prop_shuffle(),
            after in proptest::sample::subsequence((0..9_usize).collect::<Vec<_>>(), 1..9).prop_shuffle(),
            fill in proptest::sample::select(vec![[0, 0], [0, UNORDERED], [UNORDERED, 0], [UNORDERED, UNORDERED]]),
        ) {
            let (root, old) = (ca("root"), ca_between("old", 2020, 2025));
            let (sub, lost) = (root.intermediate("sub", |_| {}), ca("lost"));
            let cas = [
                ca_without_key_id("same"), ca_without_key_id("same"), ca("root"), old.renewed(2024, 2050),
                root.renewed(2024, 2050), old, sub, lost.intermediate("root", |_| {}), root,
            ];
            let others: Vec<_> = (0..UNORDERED).map(|number| ca(&format!("other {number}"))).collect();
            let bundle = |which: &[usize], fill: usize| read(which.iter().map(|at| &cas[*at]).chain(&others[..fill]));
            let (before, after) = (bundle(&before, fill[0]), bundle(&after, fill[1]));
            for ca in &cas {
                for chain in [vec![parsed(plain(ca).der())], vec![parsed(plain(ca).der()), parsed(ca.der())]] {
                    let accepts = |bundle: &[Certificate]| {
                        Store::new(bundle, None).verify(&chain, Purpose::Client, now()).is_ok()
                    };
                    let expected = if accepts(&before) && !accepts(&after) { Effect::Lost } else { Effect::Unharmed };
                    prop_assert_eq!(effect(&before, &after, &chain, Budget::default()), expected);
                    prop_assert_eq!(Store::new(&after, None).accepts(&chain, Purpose::Client, now()), accepts(&after));
                }
            }
        }
    }
}
