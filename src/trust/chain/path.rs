//! Path building as in BoringSSL (`X509_verify_cert`, crypto/x509/x509_vfy.cc).

use std::borrow::Cow;

use jiff::Timestamp;

use super::name::Name;
use super::parsed_cert::{KEY_CERT_SIGN, ParsedCert};
use super::{Accepted, Anchor, Budget, Refused, Store};
use crate::trust::Certificate;
use crate::trust::limits::MAX_PATHS;
use crate::trust::signature_verdict::SignatureFault;

/// `X509_VERIFY_PARAM`'s default depth of 100 counts neither the leaf nor the anchor.
const MAX_PATH: usize = 102;

/// A path from the leaf up.
pub(super) struct Path<'p> {
    pub(super) links: Vec<&'p ParsedCert<'p>>,
    /// Number of links from the leaf on that are not from the bundle.
    pub(super) untrusted: usize,
}

impl Path<'_> {
    /// The verdict on a path that has been checked.
    pub(super) fn accepted(&self) -> Accepted {
        let anchor = self.links[self.untrusted.min(self.links.len() - 1)].certificate;
        Accepted {
            path: self.links.iter().map(|parsed| parsed.certificate.subject.clone()).collect(),
            anchor: anchor.fingerprint.clone(),
            until: self.until(),
        }
    }

    /// The earliest end of validity.
    pub(super) fn until(&self) -> Timestamp {
        self.links.iter().map(|parsed| parsed.certificate.not_after).min().unwrap_or(Timestamp::MIN)
    }
}

/// The CA that is taken at each step where more than one fits.
pub(super) struct Choices {
    /// Whether all combinations are tried; otherwise the first CA is always used.
    explores: bool,
    /// For each step: the choice, the number of choices, and the index in the bundle.
    script: Vec<(usize, usize, usize)>,
    at: usize,
}

impl Choices {
    pub(super) fn new(explores: bool) -> Self {
        Self { explores, script: Vec::new(), at: 0 }
    }

    /// Whether no step had more than one CA.
    fn is_empty(&self) -> bool {
        self.script.is_empty()
    }

    /// Advances to the next combination; `false` if there is none.
    pub(super) fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((taken, count, _)) = self.script.last_mut() {
            *taken += 1;
            if taken < count {
                return true;
            }
            self.script.pop();
        }
        false
    }

    /// The first choice that was not the first CA: its subject, and the number of CAs that fit.
    pub(super) fn taken(&self, store: &Store<'_>) -> Option<(String, usize)> {
        let (_, count, anchor) = self.script.iter().find(|(taken, ..)| *taken > 0)?;
        Some((store.anchors[*anchor].certificate.subject.clone(), *count))
    }

    fn choose(&mut self, fitting: &[usize]) -> Option<usize> {
        if !self.explores || fitting.len() < 2 {
            return fitting.first().copied();
        }
        if self.at == self.script.len() {
            self.script.push((0, fitting.len(), fitting[0]));
        }
        let step = self.script.get_mut(self.at)?;
        self.at += 1;
        step.2 = *fitting.get(step.0)?;
        Some(step.2)
    }
}

impl<'a> Anchor<'a> {
    pub(super) fn parsed(&self) -> Option<&ParsedCert<'a>> {
        self.parsed.get_or_init(|| ParsedCert::read(self.certificate)).as_ref()
    }
}

/// `X509_check_issued`: by name, authority key identifier and key usage; no date, no signature, no CA bit.
pub(super) fn issued(issuer: &ParsedCert<'_>, subject: &ParsedCert<'_>) -> bool {
    issuer.subject == subject.issuer
        && subject.authority.as_ref().is_none_or(|id| id.fits(issuer))
        && issuer.may(KEY_CERT_SIGN)
}

/// Whether BoringSSL can read all extensions that it supports. Otherwise it does not take the certificate as an issuer.
pub(crate) fn has_valid_extensions(certificate: &Certificate) -> bool {
    ParsedCert::read(certificate).is_some()
}

/// Whether extendedKeyUsage allows a CA to be an intermediate of clients, and of servers. BoringSSL ignores it in a CA of the bundle
/// (measured).
pub(crate) fn may_issue_for(certificate: &Certificate) -> (bool, bool) {
    let usage = ParsedCert::read(certificate).and_then(|parsed| parsed.extended_usage);
    usage.map_or((true, true), |usage| (usage.client, usage.server))
}

/// Whether a CA issued a certificate: names and key identifiers fit, the CA may sign such a certificate (RFC 5280 sections 4.2.1.3 and 4.2.1.9),
/// and its signature verifies. One that cannot be verified here does not count.
pub(crate) fn has_issued(ca: &Certificate, certificate: &Certificate) -> bool {
    let (Some(issuer), Some(subject)) = (ParsedCert::read(ca), ParsedCert::read(certificate)) else { return false };
    // A CA with path length 0 issues no other CA, except itself again.
    let is_long_enough = issuer.path_length != Some(0) || !subject.is_ca() || ca.public_key == certificate.public_key;
    let verified = || matches!(Budget::for_issuers().link(&subject, &issuer), Ok(Ok(())));
    ca.may_sign && issued(&issuer, &subject) && is_long_enough && verified()
}

/// Whether others may be the issuer of a certificate, and signed it. Signatures beyond the budget count as invalid, and those that
/// cannot be verified here as valid.
pub(crate) fn signers(certificate: &Certificate) -> impl FnMut(&Certificate) -> bool {
    let (subject, mut budget) = (ParsedCert::read(certificate), Budget::for_issuers());
    move |issuer| {
        let issuer = ParsedCert::read(issuer);
        let Some((subject, issuer)) = subject.as_ref().zip(issuer.as_ref()) else { return false };
        issued(issuer, subject)
            && budget.link(subject, issuer).is_ok_and(|verdict| verdict != Err(SignatureFault::Wrong))
    }
}

/// For each certificate, whether another one of the list may be its issuer: by name, key identifier and key usage.
pub(crate) fn may_issue<'c>(certificates: &[&'c Certificate]) -> impl Fn(usize, usize) -> bool + use<'c> {
    let parsed: Vec<_> = certificates.iter().map(|certificate| ParsedCert::read(certificate)).collect();
    move |issuer, subject| {
        let pair = parsed[issuer].as_ref().zip(parsed[subject].as_ref());
        issuer != subject && pair.is_some_and(|(issuer, subject)| issued(issuer, subject))
    }
}

impl<'a> Store<'a> {
    pub(super) fn path<'p>(
        &'p self,
        chain: &'p [Option<ParsedCert<'p>>],
        choices: &mut Choices,
        budget: &Budget,
    ) -> Result<Path<'p>, Refused> {
        let leaf = chain.first().and_then(Option::as_ref);
        let leaf = leaf.ok_or_else(|| Refused::InvalidExtension { subject: "the leaf".to_owned() })?;
        // Malformed intermediates cannot be issuers. The list includes the leaf.
        let mut rest: Vec<&ParsedCert<'_>> = chain.iter().flatten().collect();
        let mut links = vec![leaf];
        let mut x = leaf;
        while links.len() < MAX_PATH && !x.is_self_signed() && self.issuer(x, budget).next().is_none() {
            let Some(at) = rest.iter().position(|issuer| budget.take_issuer_step() && issued(issuer, x)) else { break };
            x = rest.remove(at);
            links.push(x);
        }
        let mut untrusted = links.len();
        if x.is_self_signed() {
            if links.len() == 1 {
                // A self-signed certificate must itself be in the bundle. Another one with its subject is not its issuer.
                let found = choices.choose(&self.fitting(x, budget)).and_then(|at| self.anchors[at].parsed());
                budget.check_issuer_steps()?;
                match found.filter(|found| found.certificate.der == x.certificate.der) {
                    Some(_) => untrusted = 0,
                    None => return Err(Refused::SelfSigned { subject: x.certificate.subject.clone() }),
                }
            } else {
                links.pop();
                untrusted -= 1;
                x = links[links.len() - 1];
            }
        }
        let mut fitting = Cow::Owned(self.fitting(x, budget));
        while links.len() < MAX_PATH && !x.is_self_signed() {
            let Some(at) = choices.choose(&fitting) else { break };
            let Some(next) = self.anchors[at].parsed() else { break };
            x = next;
            links.push(x);
            fitting = self.issuers(at, next, budget);
        }
        budget.check_issuer_steps()?;
        if untrusted == links.len() {
            if !self.holds(leaf) {
                return Err(self.no_issuer(x, budget));
            }
            untrusted = 0;
        }
        Ok(Path { links, untrusted })
    }

    /// The path of a chain if there is only one; empty if there are several.
    ///
    /// # Errors
    /// Why there is none, or that the budget is exhausted.
    pub(super) fn only_path<'p>(
        &'p self,
        chain: &'p [Option<ParsedCert<'p>>],
        budget: &Budget,
    ) -> Result<Vec<&'p ParsedCert<'p>>, Refused> {
        let mut choices = Choices::new(!self.is_ordered());
        let path = self.path(chain, &mut choices, budget)?;
        Ok(if choices.is_empty() { path.links } else { Vec::new() })
    }

    /// The bundle's certificates with a subject.
    pub(super) fn group(&self, subject: &Name) -> Vec<&Certificate> {
        self.same(subject).map(|at| self.anchors[at].certificate).collect()
    }

    /// A CA of the bundle and the CAs above it, which every path through it has.
    pub(super) fn above<'p>(
        &'p self,
        ca: &'p ParsedCert<'p>,
        budget: &Budget,
    ) -> Result<Vec<&'p ParsedCert<'p>>, Refused> {
        let (mut links, mut x) = (vec![ca], ca);
        let mut fitting: Cow<'_, [usize]> = Cow::Owned(self.issuer(x, budget).take(1).collect());
        while links.len() < MAX_PATH && !x.is_self_signed() {
            let Some(at) = fitting.first().copied() else { break };
            let Some(next) = self.anchors[at].parsed() else { break };
            links.push(next);
            x = next;
            fitting = self.issuers(at, x, budget);
        }
        budget.check_issuer_steps().map(|()| links)
    }

    /// The bundle's certificates that fit as an issuer, in their order.
    fn issuer(&self, subject: &ParsedCert<'_>, budget: &Budget) -> impl Iterator<Item = usize> {
        let same = self.same(&subject.issuer).take_while(|_| budget.take_issuer_step());
        same.filter(|at| self.anchors[*at].parsed().is_some_and(|issuer| issued(issuer, subject)))
    }

    /// The issuers that fit: at most one more than the number of paths that are tried.
    fn fitting(&self, subject: &ParsedCert<'_>, budget: &Budget) -> Vec<usize> {
        self.issuer(subject, budget).take(MAX_PATHS + 1).collect()
    }

    /// The issuers of a certificate of the bundle, computed once for the paths of many chains.
    fn issuers(&self, at: usize, parsed: &ParsedCert<'_>, budget: &Budget) -> Cow<'_, [usize]> {
        let known = &self.anchors[at].issuers;
        if let Some(known) = known.get() {
            return Cow::Borrowed(known);
        }
        let fitting = self.fitting(parsed, budget);
        match budget.check_issuer_steps() {
            Ok(()) => Cow::Borrowed(known.get_or_init(|| fitting)),
            // Incomplete, so not stored.
            Err(_) => Cow::Owned(fitting),
        }
    }

    fn same(&self, subject: &Name) -> impl Iterator<Item = usize> {
        self.by_subject.get(subject).into_iter().flatten().copied()
    }

    fn holds(&self, leaf: &ParsedCert<'_>) -> bool {
        self.same(&leaf.subject).any(|at| self.anchors[at].certificate.fingerprint == leaf.certificate.fingerprint)
    }

    fn no_issuer(&self, end: &ParsedCert<'_>, budget: &Budget) -> Refused {
        let (subject, issuer) = (end.certificate.subject.clone(), end.certificate.issuer.clone());
        let mut same = self
            .same(&end.issuer)
            .take_while(|_| budget.take_issuer_step())
            .filter_map(|at| self.anchors[at].parsed())
            .peekable();
        if same.peek().is_none() {
            Refused::UnknownIssuer { subject, issuer }
        } else if same.any(|issuer| !issuer.may(KEY_CERT_SIGN)) {
            Refused::IssuerMayNotSign { subject, issuer }
        } else {
            Refused::IssuerKeyId { subject, issuer }
        }
    }
}
