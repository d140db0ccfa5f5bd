//! Whether the clients of a bundle's CA are accepted: the path that BoringSSL builds for a certificate of that CA, whatever the certificate.

use jiff::Timestamp;

use super::parsed_cert::ParsedCert;
use super::path::Choices;
use super::path_checks::Failure;
use super::{Budget, Purpose, Refused, Store, path_checks};
use crate::trust::Certificate;
use crate::trust::limits::MAX_PATHS;

/// What of a certificate decides about the issuer that BoringSSL takes for it (RFC 5280 section 4.2.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafShape {
    /// It has the key identifier of its CA, as those of cert-manager and Go have it.
    WithKeyId,
    /// It has no authority key identifier.
    WithoutKeyId,
}

/// Why the certificates of a CA are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked<'s> {
    /// The certificate of the bundle at which their path fails.
    pub(crate) by: &'s Certificate,
    /// Whether that certificate has the subject of the CA, so that it is taken instead.
    pub(crate) has_its_subject: bool,
    /// Whether that certificate names the CA as its issuer, so that the path leads back to the CA.
    pub(crate) leads_back: bool,
    pub(crate) refused: Refused,
}

impl<'a> Store<'a> {
    /// Why certificates of this shape that a CA of the bundle issues are refused for another certificate of the bundle; `None` if they are
    /// accepted, or if it is not known. Revocation lists are not judged.
    pub(crate) fn blocked<'s>(
        &'s self,
        ca: &'s Certificate,
        shape: LeafShape,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Option<Blocked<'s>> {
        self.issued(ca, shape, now, budget)?.err()?
    }

    /// Whether certificates of this shape that a CA issues are accepted, whether the bundle has the CA or not. `None` if it is not known.
    pub(crate) fn accepts_issued(
        &self,
        ca: &Certificate,
        shape: LeafShape,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Option<bool> {
        Some(self.issued(ca, shape, now, budget)?.is_ok())
    }

    /// The error is the certificate of the bundle that is the reason, if it is another one than the CA.
    fn issued<'s>(
        &'s self,
        ca: &'s Certificate,
        shape: LeafShape,
        now: Timestamp,
        budget: &mut Budget,
    ) -> Option<Result<(), Option<Blocked<'s>>>> {
        let parsed = ParsedCert::read(ca)?;
        let key_id = match (shape, parsed.subject_key_id) {
            (LeafShape::WithKeyId, None) => return None,
            (LeafShape::WithKeyId, key_id) => key_id,
            (LeafShape::WithoutKeyId, _) => None,
        };
        let certificate = Certificate::issued_by(ca);
        let chain = [Some(ParsedCert::issued_by(&parsed, &certificate, key_id)?)];
        let leaf = chain[0].as_ref()?;
        let mut choices = Choices::new(!self.is_ordered());
        for _ in 0..MAX_PATHS {
            budget.path().ok()?;
            let path = match self.path(&chain, &mut choices, budget) {
                Ok(path) => path,
                Err(Refused::Budget) => return None,
                Err(_) => return Some(Err(None)),
            };
            let issuer = path.links.get(1)?;
            if issuer.certificate.public_key != ca.public_key {
                let by = self.find(&issuer.certificate.fingerprint)?;
                let (subject, issuer) = (certificate.subject.clone(), ca.subject.clone());
                let refused = Refused::Signature { subject, issuer };
                return Some(Err(Some(Blocked { by, has_its_subject: true, leads_back: false, refused })));
            }
            budget.grant(&[leaf, issuer]);
            if let Err(Failure { at, refused }) = path_checks::path(self, &path, &[], Purpose::Client, now, budget) {
                if refused == Refused::Budget {
                    return None;
                }
                let link = |at: usize| self.find(&path.links.get(at)?.certificate.fingerprint);
                let by = link(at)?;
                let leads_back = by == ca && at > 1;
                let by = if leads_back { link(at - 1)? } else { by };
                return Some(Err((by != ca).then_some(Blocked { by, has_its_subject: at == 1, leads_back, refused })));
            }
            if !choices.next() {
                break;
            }
        }
        Some(Ok(()))
    }

    fn find(&self, fingerprint: &str) -> Option<&'a Certificate> {
        self.anchors.iter().map(|anchor| anchor.certificate).find(|ca| ca.fingerprint == fingerprint)
    }
}
