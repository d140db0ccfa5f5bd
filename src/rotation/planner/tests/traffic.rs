//! Connections of each client to each gateway, which are tried after each event.

use jiff::{SignedDuration, Timestamp};

use super::clients::has_ended;
use super::cluster::{Cluster, Content};
use crate::connectivity;
use crate::rotation::planner::deadlines::switch_margin;
use crate::trust::Certificate;

impl Cluster {
    /// # Panics
    /// When a connection fails because of the agent.
    pub(super) fn try_connections(&mut self) {
        if self.claims
            && let Some(failure) = self.failure()
        {
            panic!("{}", self.log_text(&failure));
        }
    }

    /// The first connection that fails.
    pub(super) fn failure(&mut self) -> Option<String> {
        for gateway in 0..self.gateways.len() {
            let Some((trusted, served)) = self.read_by_readers().zip(self.gateways[gateway].clone()) else { continue };
            let is_frozen = self.prober.frozen == Some(gateway);
            let may_fail = is_frozen || has_ended(&served, self.now) || self.is_late(&served);
            if !may_fail && !self.verifies(&trusted, &served) {
                let (trusted, served) = (self.named(&trusted.facts.anchors), self.named(&served.facts.chain));
                return Some(format!(
                    "readers of what is distributed, which trust {trusted}, refuse {served} of gateway {gateway}"
                ));
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].is_gone {
                continue;
            }
            let presented = self.clients[client].loaded.clone();
            for gateway in 0..self.gateways.len() {
                // Nothing helps the clients of a gateway that takes nothing over while its CA ends.
                let Some(served) = self.gateways[gateway].clone().filter(|_| self.prober.frozen != Some(gateway))
                else {
                    continue;
                };
                if has_ended(&presented, self.now) || has_ended(&served, self.now) || self.is_late(&served) {
                    continue;
                }
                if self.is_excused(client, &served) {
                    continue;
                }
                // At the end of a CA both certificates are switched, also for clients that did not follow.
                let leaf = served.facts.chain.first();
                let is_forced = leaf.is_some_and(|leaf| self.forced.contains_key(&leaf.fingerprint));
                if let Some(second) = self.second_at(gateway)
                    && (self.follows(client) || !is_forced)
                    && !has_ended(&second, self.now)
                    && !self.verifies(&presented, &second)
                    && self.verifies(&presented, &served)
                {
                    let (who, leaf) = (&self.clients[client].name, self.named(&second.facts.chain));
                    return Some(format!(
                        "{who} that trusts {} refuses {leaf}, which gateway {gateway} presents, too",
                        self.named(&presented.facts.anchors)
                    ));
                }
                if self.works(&presented, &served) {
                    match self.refused_by_foreign(&presented, gateway) {
                        None => continue,
                        Some(server) => {
                            let (who, leaf) = (&self.clients[client].name, self.named(&presented.facts.chain));
                            return Some(format!(
                                "{who} with {leaf} is refused by the server of {server} at gateway {gateway}"
                            ));
                        }
                    }
                }
                return Some(format!(
                    "{} ({} with {}) and gateway {gateway} ({} with {}) do not get on",
                    self.clients[client].name,
                    self.named(&presented.facts.anchors),
                    self.named(&presented.facts.chain),
                    self.named(&served.facts.anchors),
                    self.named(&served.facts.chain),
                ));
            }
        }
        None
    }

    /// Whether a gateway takes a write over too late, and serves a chain whose CA has ended.
    fn is_late(&self, served: &Content) -> bool {
        self.prober.hangs && self.end_of(&served.facts.chain).is_some_and(|end| self.now >= end)
    }

    /// Whether a connection fails because a CA has ended, or gateways have switched before it ends, and the client could not follow in time:
    /// the status has named it before.
    fn is_excused(&self, client: usize, served: &Content) -> bool {
        if self.follows(client) {
            return false;
        }
        let margin = switch_margin(&self.delays);
        let loaded = &self.clients[client].loaded.facts;
        let chains = [&loaded.chain, &served.facts.chain];
        let signers = chains.into_iter().filter_map(|chain| chain.first()).filter_map(|leaf| self.signer_of(leaf));
        let mut relied_on = loaded.anchors.iter().chain(loaded.chain.iter().skip(1)).chain(signers);
        relied_on.any(|ca| self.now >= ca.not_after - margin)
    }

    /// A server with foreign CAs that rejects a client, and the CAs of the server.
    fn refused_by_foreign(&mut self, client: &Content, gateway: usize) -> Option<String> {
        for (server, trusted) in self.foreign_trust(gateway) {
            let key = (client.id, trusted.id);
            let known = self.verdicts.get(&key).filter(|(_, until)| self.now < *until).map(|(admits, _)| *admits);
            let admits = known.unwrap_or_else(|| {
                let admits = connectivity::admits(&trusted.facts.anchors, &client.facts.chain, self.now);
                let all = [&client.facts.chain, &trusted.facts.anchors];
                let until = all.into_iter().flatten().filter_map(|certificate| self.next_date(certificate)).min();
                self.verdicts.insert(key, (admits, until.unwrap_or(Timestamp::MAX)));
                admits
            });
            if !admits {
                return Some(format!("{server} ({})", self.named(&trusted.facts.anchors)));
            }
        }
        None
    }

    pub(super) fn works(&mut self, client: &Content, gateway: &Content) -> bool {
        let key = (client.id, gateway.id);
        if let Some((works, until)) = self.verdicts.get(&key)
            && self.now < *until
        {
            return *works;
        }
        let (presented, served) = (&client.facts, &gateway.facts);
        let works = connectivity::admits(&served.anchors, &presented.chain, self.now) && self.verifies(client, gateway);
        let all = [&presented.anchors, &presented.chain, &served.anchors, &served.chain];
        let until = all.into_iter().flatten().filter_map(|certificate| self.next_date(certificate)).min();
        self.verdicts.insert(key, (works, until.unwrap_or(Timestamp::MAX)));
        works
    }

    /// Whether a client verifies a gateway, or rejected it before already.
    fn verifies(&self, client: &Content, gateway: &Content) -> bool {
        let (trust, served) = (&client.facts.anchors, &gateway.facts.chain);
        let refused = |former: &Certificate| {
            let at = self.now.min(former.not_after - SignedDuration::from_secs(1));
            !connectivity::verifies(trust, std::slice::from_ref(former), at)
        };
        let forced = served.first().and_then(|leaf| self.forced.get(&leaf.fingerprint));
        let forced = forced.is_some_and(|former| former.as_ref().is_none_or(refused));
        forced || connectivity::verifies(trust, served, self.now)
    }

    /// The next instant at which the validity of a certificate begins or ends.
    fn next_date(&self, certificate: &Certificate) -> Option<Timestamp> {
        [certificate.not_before, certificate.not_after].into_iter().find(|date| *date > self.now)
    }
}
