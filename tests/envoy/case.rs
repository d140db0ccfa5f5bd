//! A case, Envoy's result, trustspan's verdict, and whether the two agree.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use rustls::{pki_types::CertificateDer, sign::CertifiedKey};
use trustspan::trust::{
    Certificate, Finding, Proxy, Secret, SecretUsage, Severity, Verdict, bundle, chain::Refused, judge, judge_update,
};
use zeroize::Zeroizing;

use crate::{
    advice,
    client::{self, Outcome},
    expect, pki,
    proxy::{Content, Update},
};

/// A Secret to load into Envoy.
pub(crate) struct Case {
    /// Identifies the case for a replay.
    pub(crate) name: String,
    /// How the case was made, for messages.
    pub(crate) description: String,
    pub(crate) content: Content,
    /// The clients that test trust anchors.
    pub(crate) probes: Vec<Probe>,
    /// The certificates that a pair's chain was made of.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The only root that clients of a pair trust.
    pub(crate) root: Option<CertificateDer<'static>>,
    /// Trust anchors that are stored, if the case is also judged as an update of them.
    pub(crate) stored: Option<Vec<u8>>,
}

/// A client that connects.
pub(crate) struct Probe {
    pub(crate) label: String,
    pub(crate) identity: Arc<CertifiedKey>,
    /// The CA that Envoy must have loaded if it accepts the client; both certificates are valid.
    pub(crate) shows: Option<CertificateDer<'static>>,
    /// The CA that issued it, if nothing in the client's certificate can be a reason to refuse it.
    pub(crate) plain_of: Option<CertificateDer<'static>>,
}

/// The proxy that judges in this run.
static JUDGE: OnceLock<Proxy> = OnceLock::new();

/// Sets the proxy that judges in this run.
pub(crate) fn set_judge(proxy: Proxy) {
    JUDGE.get_or_init(|| proxy);
}

/// The proxy that judges in this run: the BoringSSL of Envoy 1.40, if none was set.
pub(crate) fn judge_proxy() -> Proxy {
    *JUDGE.get_or_init(|| Proxy::envoy(1, 40))
}

/// Envoy's result for a case.
pub(crate) struct Snapshot {
    pub(crate) update: Update,
    /// One for each probe; empty if the update was rejected. A pair has one probe, a client without a certificate.
    pub(crate) outcomes: Vec<Outcome>,
}

/// Envoy's result, for the confusion table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    /// Every certificate in the text is usable.
    Works,
    /// A CA or a certificate of a chain that is visible in the text is not loaded.
    Drops,
    /// No client is accepted: all CAs are invalid, or a chain has a gap.
    RefusesAll,
    /// The update is rejected.
    Rejects,
}

/// The rules that may deny Secrets that Envoy runs with; see `docs/envoy-differences.md`.
const POLICIES: &[&str] = &[
    "private-key-in-bundle",
    "not-a-ca",
    "dropped-by-proxy",
    "expired",
    "not-yet-valid",
    "pair-incomplete",
    "expired-beside-renewed",
    "same-subject-ambiguity",
    "broken-path",
    "crl-partial",
    "crl-expired",
    "chain-order",
    "weak-key",
    "weak-signature",
];

/// Reasons for which trustspan may refuse a client that Envoy accepts, because this part of BoringSSL is neither
/// modelled nor measured.
pub(crate) const CAUTIOUS: &[&str] = &["policy", "signature-algorithm", "budget", "order-undetermined"];

/// Whether trustspan refuses a client for one of these reasons, or for a list with an algorithm that it cannot verify.
pub(crate) fn is_cautious(refused: &Refused) -> bool {
    let is_unverified = matches!(refused, Refused::CrlUnusable { cause, .. } if cause.contains("cannot be verified"));
    CAUTIOUS.contains(&refused.id()) || is_unverified
}

/// Suffix of the labels of valid clients without a key identifier of their CA.
pub(crate) const BARE: &str = ", bare";

/// Whether trustspan is stricter than BoringSSL about this DER; see `docs/envoy-differences.md`.
fn is_stricter(message: &str) -> bool {
    [
        "criticality of an extension",
        "has an offset instead of Z",
        "the length of its signature",
        "a RELATIVE-OID is malformed",
    ]
    .iter()
    .any(|what| message.contains(what))
}

/// Rules on CAs with one subject. Each generated case with a finding has clients that are refused for that reason.
const SAME_SUBJECT: &[&str] = &["expired-beside-renewed", "same-subject-ambiguity"];

/// Reasons for which the revocation lists of a Secret refuse a client. Such a bundle must have a finding.
const LISTS: &[&str] = &["crl-missing", "crl-issuer-missing", "crl-outdated", "crl-unusable"];

/// The comparison of one case, for the tables.
pub(crate) struct Result {
    pub(crate) verdict: Verdict,
    pub(crate) effect: Effect,
    /// The verdicts of trustspan and of Envoy on each probe with a verdict.
    pub(crate) clients: Vec<(bool, bool)>,
    /// Clients without a verdict.
    pub(crate) unpredicted: usize,
    /// Why trustspan refuses clients that Envoy accepts.
    pub(crate) cautious: Vec<&'static str>,
    /// The rules that deny the Secret.
    pub(crate) rules: Vec<&'static str>,
    pub(crate) disagreements: Vec<String>,
    /// Whether a client that presents only its leaf is refused for a revocation list.
    lists_refuse: bool,
    /// Whether a client is refused because another CA has the subject of its CA.
    shadowed: bool,
    /// Whether a client that trusts only the root misses an issuer in the chain.
    lacks_issuer: bool,
}

fn secret(data: &[(&str, &[u8])]) -> Secret {
    let data = data.iter().map(|(key, bytes)| ((*key).to_owned(), Zeroizing::new(bytes.to_vec()))).collect();
    Secret { namespace: "istio-system".to_owned(), name: "gateway".to_owned(), data, ..Secret::default() }
}

impl Case {
    pub(crate) fn secret(&self) -> Secret {
        let data: Vec<(&str, &[u8])> = match &self.content {
            Content::Trust { ca, crl } => {
                let crl = crl.as_deref().map(|crl| ("ca.crl", crl));
                [("ca.crt", ca.as_slice())].into_iter().chain(crl).collect()
            }
            Content::Pair { chain, key } => vec![("tls.crt", chain), ("tls.key", key)],
        };
        secret(&data)
    }

    fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Trust { ca, .. } => ca,
            Content::Pair { chain, .. } => chain,
        }
    }

    /// Whether a client may be refused for a revocation list.
    fn has_lists(&self) -> bool {
        match &self.content {
            Content::Trust { ca, crl } => crl.is_some() || !bundle::read(ca).crls.is_empty(),
            Content::Pair { .. } => false,
        }
    }

    /// Whether a text contains revocation lists for any reader.
    fn names_lists(&self) -> bool {
        let names = |text: &[u8]| text.windows(8).any(|bytes| bytes == b"X509 CRL");
        match &self.content {
            Content::Trust { ca, crl } => names(ca) || crl.as_deref().is_some_and(names),
            Content::Pair { .. } => false,
        }
    }

    fn has_rejected_lists(&self) -> bool {
        match &self.content {
            Content::Trust { crl: Some(crl), .. } => bundle::read(crl).rejected.is_some(),
            _ => false,
        }
    }

    /// Compares trustspan's verdict with Envoy's result.
    pub(crate) fn compare(&self, seen: &Snapshot, now: Timestamp) -> Result {
        let ca_required = matches!(self.content, Content::Trust { .. });
        let usage = SecretUsage { ca_required, oldest_proxy: judge_proxy(), ..SecretUsage::default() };
        let findings = judge(&self.secret(), usage, now);
        let verdict = Verdict::of(&findings);
        let mut rules: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Deny).map(|f| f.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        let mut result = match &self.content {
            Content::Trust { ca, crl } => self.trust(seen, &bundle::read(ca), crl.as_deref(), now),
            Content::Pair { chain, .. } => self.pair(seen, &bundle::read_chain(chain)),
        };
        let mut disagreements = std::mem::take(&mut result.disagreements);
        disagreements.extend(self.unreported(seen, &findings, now));
        disagreements.extend(self.untaken(seen, usage, now));
        disagreements.extend(self.misadvised(&findings, usage, now));
        let mut disagree = |what: String| disagreements.push(what);
        match (verdict, result.effect) {
            (Verdict::Deny, Effect::Works) if !self.is_policy(&rules, &findings) => {
                disagree(format!("denied by {rules:?}, none of which is a policy, but it works"));
            }
            (Verdict::Allow, _) if result.lacks_issuer && self.is_accepted_next_to_its_root(now) => {
                disagree("allowed next to its root, and a client that trusts the root misses an issuer".to_owned());
            }
            (Verdict::Allow | Verdict::Warn, Effect::Rejects) => disagree("allowed, and Envoy rejects it".to_owned()),
            (Verdict::Deny, Effect::Rejects) if ca_required && rules.iter().all(|rule| POLICIES.contains(rule)) => {
                disagree(format!("denied by {rules:?}, which may be lowered, and Envoy rejects it"));
            }
            (Verdict::Deny, Effect::Works)
                if !result.shadowed && !self.has_lists() && rules.iter().all(|rule| SAME_SUBJECT.contains(rule)) =>
            {
                // The denial may be correct all the same: it may protect other clients than the tested ones.
                eprintln!("denied by {rules:?}, and no tested client is refused for a CA with the same subject");
            }
            (Verdict::Allow, _) if result.lists_refuse => {
                disagree("allowed, and a client is refused for revocation lists".to_owned());
            }
            (Verdict::Allow | Verdict::Warn, Effect::Drops) => {
                disagree("allowed, and Envoy drops a certificate of the text".to_owned());
            }
            _ => {}
        }
        Result { verdict, rules, disagreements, ..result }
    }

    /// CAs whose plain clients are refused without a finding about them, or accepted in spite of one that says otherwise.
    fn unreported(&self, seen: &Snapshot, findings: &[Finding], now: Timestamp) -> Vec<String> {
        let is_denied = Verdict::of(findings) == Verdict::Deny;
        let Content::Trust { ca, .. } = &self.content else { return Vec::new() };
        // The rules on revocation lists report the refusals by them.
        if self.has_lists() || seen.update == Update::Rejected {
            return Vec::new();
        }
        // A bundle without a usable CA has one finding about all of them.
        if is_denied && seen.outcomes.iter().all(|outcome| !outcome.passed()) {
            return Vec::new();
        }
        let bundle = bundle::read(ca);
        let probes = self.probes.iter().zip(&seen.outcomes);
        let mut disagreements = Vec::new();
        let is_sound = |entry: &bundle::BundleEntry| {
            let certificate = &entry.certificate;
            certificate.is_ca && certificate.may_sign && certificate.is_valid_at(now)
        };
        for entry in bundle.entries.iter().filter(|entry| !is_denied && is_sound(entry)) {
            let is_of = |probe: &Probe| probe.plain_of.as_ref().is_some_and(|ca| ca.as_ref() == entry.certificate.der);
            let mut own = probes.clone().filter(|(probe, _)| is_of(probe)).peekable();
            if own.peek().is_some() && own.all(|(_, outcome)| !outcome.passed()) {
                disagreements
                    .push(format!("not denied, and Envoy refuses all clients of the CA on line {}", entry.line));
            }
        }
        for (probe, outcome) in probes {
            let Some(issuer) = &probe.plain_of else { continue };
            let lines = bundle.entries.iter().filter(|entry| entry.certificate.der == issuer.as_ref());
            let lines: Vec<_> = lines.map(|entry| entry.line).collect();
            if lines.is_empty() {
                continue;
            }
            // One finding says that none of them is a CA.
            let is_about = |finding: &&Finding| {
                let names = lines.iter().any(|line| names_line(&finding.message, *line));
                names || finding.message.contains("nor is any other certificate here")
            };
            let label = &probe.label;
            if !outcome.passed() && findings.iter().all(|finding| !is_about(&finding)) {
                disagreements
                    .push(format!("trustspan reports nothing about a CA, and Envoy refuses its client {label}"));
            }
            let starts = |finding: &&Finding| {
                lines.iter().any(|line| finding.message.starts_with(&format!("ca.crt line {line}: ")))
            };
            let denied = findings.iter().filter(|finding| finding.rule == "broken-path").find(starts);
            // Where the order is not kept, the finding is about any of them.
            let is_certain = judge_proxy().keeps_order();
            if outcome.passed() && is_certain && denied.is_some_and(|finding| finding.severity == Severity::Deny) {
                disagreements.push(format!("trustspan reports a broken path, and Envoy accepts the client {label}"));
            }
        }
        disagreements
    }

    /// Clients that worked before an update and that Envoy refuses after it, without a finding on the update that takes them away.
    fn untaken(&self, seen: &Snapshot, usage: SecretUsage<'_>, now: Timestamp) -> Vec<String> {
        let (Some(stored), Content::Trust { ca, .. }) = (&self.stored, &self.content) else { return Vec::new() };
        if self.has_lists() || seen.update == Update::Rejected {
            return Vec::new();
        }
        let old = secret(&[("ca.crt", stored.as_slice())]);
        let findings = judge_update(&old, &self.secret(), usage, now);
        let (before, after) = (bundle::read(stored), bundle::read(ca));
        // What is refused below a CA that stays, with the same subject and key, is reported about that one.
        let stays = |issuer: &CertificateDer<'_>| {
            let issuer = Certificate::parse(issuer);
            issuer.is_ok_and(|issuer| after.entries.iter().any(|entry| entry.certificate.supersedes(&issuer)))
        };
        let lost = self.probes.iter().zip(&seen.outcomes).filter(|(probe, outcome)| {
            let worked = || expect::passes(&before, None, probe, now).is_some_and(|said| said.is_ok());
            !outcome.passed() && probe.plain_of.as_ref().is_some_and(|issuer| !stays(issuer)) && worked()
        });
        let is_reported = findings.iter().any(|finding| finding.rule == "taken-away");
        let labels: Vec<_> = lost.filter(|_| !is_reported).map(|(probe, _)| probe.label.as_str()).collect();
        let said =
            |label| format!("the update is reported to take nothing away, and its client {label} is refused now");
        labels.into_iter().map(said).collect()
    }

    /// Advices that are worse than none: a user who follows one loses a client, gets another denial, or the same finding again.
    fn misadvised(&self, findings: &[Finding], usage: SecretUsage<'_>, now: Timestamp) -> Vec<String> {
        let Content::Trust { ca, crl } = &self.content else { return Vec::new() };
        let Ok(text) = std::str::from_utf8(ca) else { return Vec::new() };
        let before = bundle::read(ca);
        let mut disagreements = Vec::new();
        // A block that the proxy skips may be damaged, so that it has no clear end.
        let is_edit = |finding: &&Finding| finding.field == "data[ca.crt]" && finding.rule != "dropped-by-proxy";
        for finding in findings.iter().filter(is_edit) {
            let (from, message) = match finding.message.split_once(" on: ") {
                Some((from, message)) => (from.strip_prefix("from ").and_then(|from| from.parse().ok()), message),
                None => (None, finding.message.as_str()),
            };
            for edited in advice::edits(text, message) {
                let mut disagree = |what: String| {
                    disagreements.push(format!("{}: {}: followed, {what}", finding.rule, finding.message))
                };
                let (edited, left) = self.followed(edited, finding.rule, usage, now);
                let after = bundle::read(edited.as_bytes());
                for at in [Some(now), from].into_iter().flatten() {
                    let passes = |bundle, probe| {
                        expect::passes(bundle, crl.as_deref(), probe, at).is_some_and(|said| said.is_ok())
                    };
                    let lost = self.probes.iter().find(|probe| passes(&before, probe) && !passes(&after, probe));
                    if let Some(probe) = lost {
                        disagree(format!("client {} is refused at {at}", probe.label));
                    }
                }
                let is_same = |other: &&Finding| {
                    other.rule == finding.rule && without_lines(&other.message) == without_lines(&finding.message)
                };
                let count = |findings: &[Finding]| findings.iter().filter(is_same).count();
                if count(&left) >= count(findings) {
                    disagree("the finding stays".to_owned());
                }
                // A rule that warned before names what is left to do. Lists have a CA above as their reason, which was refused before.
                let is_new = |other: &&Finding| {
                    let is_known = findings.iter().any(|old| old.rule == other.rule) || other.rule.starts_with("crl-");
                    other.severity == Severity::Deny && !is_known
                };
                if let Some(new) = left.iter().find(is_new) {
                    disagree(format!("it is denied by {}: {}", new.rule, new.message));
                }
            }
        }
        disagreements
    }

    /// The bundle once the advices of a rule, and of denials, have been followed until none is left, and the findings on it.
    fn followed(&self, mut text: String, rule: &str, usage: SecretUsage<'_>, now: Timestamp) -> (String, Vec<Finding>) {
        /// Advices that are followed one after the other.
        const STEPS: usize = 8;
        let Content::Trust { crl, .. } = &self.content else { return (text, Vec::new()) };
        let judged = |text: &str| {
            let data = [Some(("ca.crt", text.as_bytes())), crl.as_deref().map(|crl| ("ca.crl", crl))];
            judge(&secret(&data.into_iter().flatten().collect::<Vec<_>>()), usage, now)
        };
        for _ in 0..STEPS {
            let left = judged(&text);
            let next = left.iter().filter(|other| other.rule == rule || other.severity == Severity::Deny);
            match next.flat_map(|other| advice::edits(&text, &other.message)).next() {
                Some(edited) => text = edited,
                None => return (text, left),
            }
        }
        let left = judged(&text);
        (text, left)
    }

    /// Whether there is no finding on a pair with its root under `ca.crt`.
    fn is_accepted_next_to_its_root(&self, now: Timestamp) -> bool {
        let mut secret = self.secret();
        let root = self.root.as_ref().map(|root| pki::block("CERTIFICATE", root)).unwrap_or_default();
        secret.data.insert("ca.crt".to_owned(), Zeroizing::new(root.into_bytes()));
        judge(&secret, SecretUsage::default(), now).is_empty()
    }

    /// Whether the text has bytes beyond ASCII. trustspan's verdict is then the stricter one of x86-64 and arm64, and
    /// this Envoy runs on only one of them.
    fn is_platform_dependent(&self) -> bool {
        match &self.content {
            Content::Trust { ca, crl } => !ca.is_ascii() || crl.as_ref().is_some_and(|crl| !crl.is_ascii()),
            Content::Pair { chain, key } => !chain.is_ascii() || !key.is_ascii(),
        }
    }

    /// Whether a pair's leaf has a key below 2.16.840.1.101.3.4.3.
    fn serves_ml_dsa(&self) -> bool {
        let oid = [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 3];
        self.chain.first().is_some_and(|leaf| leaf.windows(oid.len()).any(|bytes| bytes == oid))
    }

    fn is_policy(&self, rules: &[&str], findings: &[Finding]) -> bool {
        let no_der = |f: &Finding| f.rule == "unparsable" && is_stricter(&f.message);
        // Envoy serves ML-DSA to clients that offer it, which few do.
        let no_client = |f: &Finding| f.rule == "key-mismatch" && self.serves_ml_dsa();
        if findings.iter().any(no_client) {
            return true;
        }
        self.is_platform_dependent() || rules.iter().any(|rule| POLICIES.contains(rule)) || findings.iter().any(no_der)
    }

    fn trust(&self, seen: &Snapshot, bundle: &bundle::Bundle, crl: Option<&[u8]>, now: Timestamp) -> Result {
        let mut result = Result::new(Effect::Rejects);
        if seen.update == Update::Rejected {
            return result;
        }
        let bytes = visible(self.bytes());
        let (mut dropped, mut passed) = (false, false);
        for (probe, outcome) in self.probes.iter().zip(&seen.outcomes) {
            passed |= outcome.passed();
            dropped |= !outcome.passed() && probe.shows.as_ref().is_some_and(|ca| holds(&bytes, ca));
            let said = expect::passes(bundle, crl, probe, now);
            let is_text_read = bundle.rejected.is_none() && !bundle.is_too_long && !self.has_rejected_lists();
            let Some(said) = said.filter(|said| !self.is_platform_dependent() || said.is_ok() && !self.names_lists())
            else {
                result.unpredicted += 1;
                let unread = expect::unread(probe).filter(|why| !is_stricter(why));
                if let Some(why) = unread.filter(|_| outcome.passed() && is_text_read) {
                    let label = &probe.label;
                    result
                        .disagreements
                        .push(format!("client {label}: trustspan reads no chain: {why}. Envoy accepts it"));
                }
                continue;
            };
            let for_lists = said.as_ref().is_err_and(|refused| LISTS.contains(&refused.id()));
            // An intermediate that only the client presents needs a list, too, which the Secret cannot have.
            result.lists_refuse |= for_lists && probe.identity.cert.len() == 1;
            let for_same_subject = said.as_ref().is_err_and(|refused| match refused.id() {
                "shadowed" => true,
                // The first CA has expired, and the next one would be refused for another reason.
                "expired" | "not-yet-valid" => probe.label.ends_with(BARE),
                _ => false,
            });
            result.shadowed |= !outcome.passed() && for_same_subject;
            result.clients.push((said.is_ok(), outcome.passed()));
            let label = &probe.label;
            match (said, outcome) {
                (Ok(()), Outcome::Refused(why)) => {
                    result.disagreements.push(format!("client {label}: trustspan accepts it, Envoy refuses it: {why}"));
                }
                // One order of several is refused.
                (Err(refused), Outcome::Passed(_)) if is_cautious(&refused) || !judge_proxy().keeps_order() => {
                    result.cautious.push(refused.id());
                }
                (Err(refused), Outcome::Passed(_)) => {
                    let id = refused.id();
                    result
                        .disagreements
                        .push(format!("client {label}: trustspan says {id}: {refused}. Envoy accepts it"));
                }
                _ => {}
            }
        }
        result.effect = match (dropped, passed) {
            (true, _) => Effect::Drops,
            (false, true) => Effect::Works,
            (false, false) => Effect::RefusesAll,
        };
        result
    }

    fn pair(&self, seen: &Snapshot, bundle: &bundle::Bundle) -> Result {
        let mut result = Result::new(Effect::Rejects);
        let [Outcome::Passed(shown)] = seen.outcomes.as_slice() else {
            if seen.update == Update::Accepted {
                result.effect = Effect::RefusesAll;
            }
            return result;
        };
        let read: Vec<_> = bundle.entries.iter().map(|entry| entry.certificate.der.as_slice()).collect();
        let bytes = visible(self.bytes());
        result.lacks_issuer = self.root.as_ref().is_some_and(|root| client::lacks_issuer(shown, root));
        let dropped = self.chain.iter().any(|certificate| holds(&bytes, certificate) && !shown.contains(certificate));
        // A leaf alone may be sufficient, since clients can have its issuer.
        result.effect = match (dropped, result.lacks_issuer && shown.len() > 1) {
            (true, _) => Effect::Drops,
            (false, true) => Effect::RefusesAll,
            (false, false) => Effect::Works,
        };
        if bundle.rejected.is_none()
            && !self.is_platform_dependent()
            && read != shown.iter().map(|c| c.as_ref()).collect::<Vec<_>>()
        {
            result.disagreements.push(format!(
                "trustspan reads {} certificates, Envoy presents {}, or others",
                read.len(),
                shown.len()
            ));
        }
        result
    }
}

impl Result {
    pub(crate) fn new(effect: Effect) -> Self {
        Self {
            verdict: Verdict::Allow,
            effect,
            clients: Vec::new(),
            unpredicted: 0,
            cautious: Vec::new(),
            rules: Vec::new(),
            disagreements: Vec::new(),
            lists_refuse: false,
            shadowed: false,
            lacks_issuer: false,
        }
    }
}

/// A message without the numbers of lines, which an edit changes.
fn without_lines(message: &str) -> String {
    message
        .split(' ')
        .map(|word| if word.starts_with(|c: char| c.is_ascii_digit()) && word.len() < 8 { "N" } else { word })
        .collect()
}

/// Whether a message names a line of the text.
fn names_line(message: &str, line: usize) -> bool {
    let number = line.to_string();
    let mut words = message.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| word == number) && message.contains("line")
}

/// A text without line breaks, indentation and quotes.
fn visible(text: &[u8]) -> Vec<u8> {
    let lines = text.split(|b| *b == b'\n').filter(|line| !line.trim_ascii_start().starts_with(b"#"));
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    lines.flatten().copied().filter(base64).collect()
}

/// Whether a text contains a certificate, including one that a reader skips.
fn holds(visible: &[u8], certificate: &[u8]) -> bool {
    use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
    // It may begin at any of three places in a group of four characters, and share the first and the last with what is around it.
    [0, 2, 3].into_iter().enumerate().any(|(before, start)| {
        let bytes = [vec![0; before], certificate.to_vec()].concat();
        let text = STANDARD_NO_PAD.encode(&bytes);
        let text = &text[start..text.len() - usize::from(bytes.len() % 3 != 0)];
        visible.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Works => "works",
            Self::Drops => "drops",
            Self::RefusesAll => "refuses all",
            Self::Rejects => "rejects",
        })
    }
}
