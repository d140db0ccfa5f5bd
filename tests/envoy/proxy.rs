//! A real Envoy with many gateways, each with its own secrets.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::{Context, Result, bail};

pub(crate) use crate::testbed::Content;
use crate::testbed::{Envoy, Gateway, PATIENCE, Scratch, wait_for};

/// The number of gateways with trust anchors, and so the size of a batch of cases. Envoy opens an inotify instance for
/// each secret, and Linux allows a user 128 of them.
pub(crate) const TRUST_SLOTS: usize = 48;
/// The number of gateways with a serving pair.
pub(crate) const PAIR_SLOTS: usize = 12;

/// Envoy's reaction to an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Accepted,
    Rejected,
}

/// The running Envoy.
pub(crate) struct Proxy {
    envoy: Envoy,
    /// The last content of each secret.
    last: BTreeMap<String, Content>,
    baseline: (Content, Content),
    // Declared last, so that it is dropped last: Envoy must end before its files are removed.
    _scratch: Scratch,
}

/// The name of a secret with trust anchors, which is also the host of the gateway that uses it.
pub(crate) fn trust_slot(number: usize) -> String {
    format!("trust-{number}.test")
}

/// The same for a secret with a serving pair.
pub(crate) fn pair_slot(number: usize) -> String {
    format!("pair-{number}.test")
}

impl Proxy {
    /// Starts Envoy; all gateways begin with the same valid secrets.
    pub(crate) fn start(trust: Content, pair: Content) -> Result<Self> {
        let scratch = Scratch::new()?;
        let mut last = BTreeMap::new();
        last.insert("serving".to_owned(), pair.clone());
        last.extend((0..TRUST_SLOTS).map(|number| (trust_slot(number), trust.clone())));
        last.extend((0..PAIR_SLOTS).map(|number| (pair_slot(number), pair.clone())));
        let mutual = |host: String| Gateway { trust: Some(host.clone()), host, pair: "serving".to_owned() };
        let simple = |host: String| Gateway { pair: host.clone(), host, trust: None };
        let gateways = (0..TRUST_SLOTS).map(|number| mutual(trust_slot(number)));
        let gateways: Vec<_> = gateways.chain((0..PAIR_SLOTS).map(|number| simple(pair_slot(number)))).collect();
        let envoy = Envoy::start(&scratch, "envoy", &gateways, &last)?;
        Ok(Self { envoy, last, baseline: (trust, pair), _scratch: scratch })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.envoy.address()
    }

    /// Replaces the secrets, all at once, and waits for Envoy's reaction to each.
    pub(crate) fn load(&mut self, secrets: &[(String, Content)]) -> Result<Vec<Update>> {
        // Envoy accepts an update that does not change the last content, even if that content was rejected. Such a
        // secret is reset first.
        let same: Vec<_> = secrets.iter().filter(|(name, content)| self.last.get(name) == Some(content)).collect();
        let reset: Vec<_> = same
            .into_iter()
            .map(|(name, content)| {
                let (trust, pair) = self.baseline.clone();
                (name.clone(), if matches!(content, Content::Trust { .. }) { trust } else { pair })
            })
            .collect();
        if !reset.is_empty() {
            self.replace(&reset)?;
        }
        self.replace(secrets)
    }

    fn replace(&mut self, secrets: &[(String, Content)]) -> Result<Vec<Update>> {
        let before = self.envoy.secrets().updates()?;
        for (name, content) in secrets {
            self.envoy.secrets().replace(name, content)?;
            self.last.insert(name.clone(), content.clone());
        }
        let mut after = BTreeMap::new();
        let waited = wait_for(&format!("{} updates", secrets.len()), PATIENCE, || {
            after = self.envoy.secrets().updates()?;
            let failed =
                secrets.iter().find(|(name, _)| after.get(name).is_some_and(|u| u.failed > before[name].failed));
            if let Some((name, _)) = failed {
                bail!("Envoy could not read the file of {name}");
            }
            Ok(secrets.iter().all(|(name, _)| after.get(name).is_some_and(|u| u.done() > before[name].done())))
        });
        waited.with_context(|| self.envoy.log_tail())?;
        secrets
            .iter()
            .map(|(name, _)| {
                match (after[name].accepted - before[name].accepted, after[name].rejected - before[name].rejected) {
                    (1, 0) => Ok(Update::Accepted),
                    (0, 1) => Ok(Update::Rejected),
                    (accepted, rejected) => bail!("{name}: one update, {accepted} times accepted, {rejected} rejected"),
                }
            })
            .collect()
    }
}
