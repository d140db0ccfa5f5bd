//! Limits on the cost of verdicts, for hostile bundles.

use std::cell::Cell;
use std::collections::HashMap;

use super::Refused;
use super::parsed_cert::{ParsedCert, Signed};
use super::signature::{self, Key};
use crate::trust::limits::{
    CHAIN_SIGNATURES, CRL_STEPS, ISSUER_SIGNATURES, ISSUER_STEPS, LIST_SIGNATURES, NAME_STEPS, OWN_SIGNATURES,
    PATH_STEPS, SIGNATURES,
};
use crate::trust::signature_verdict::{PublicKey, Verdict};

/// The remaining cost of all paths of one verdict, or of the verdicts on many chains.
pub(crate) struct Budget {
    /// Signatures that all chains share.
    signatures: usize,
    /// Signatures that the current chain may use in addition.
    own: usize,
    /// The total of such additional signatures for all chains.
    owned: usize,
    /// Paths that may be tried.
    paths: usize,
    /// Names times constraints, and their bytes; BoringSSL allows 2^20 pairs for each pair of certificates, however long they are.
    pub(super) names: usize,
    /// Revocation lists that may be compared, once for each certificate that they could be for.
    lists: usize,
    /// Certificates that may be compared as the issuer of another.
    issuer_steps: Cell<usize>,
    /// Verified signatures, by the fingerprint of the certificate or list and the key: chains of one CA share a path.
    known: HashMap<String, Vec<(PublicKey, Verdict)>>,
    /// Links whose signatures are assumed to be valid: the verdict matters only in that case.
    granted: HashMap<String, Vec<PublicKey>>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            signatures: SIGNATURES,
            own: 0,
            owned: OWN_SIGNATURES,
            paths: PATH_STEPS,
            names: NAME_STEPS,
            lists: CRL_STEPS,
            issuer_steps: Cell::new(ISSUER_STEPS),
            known: HashMap::new(),
            granted: HashMap::new(),
        }
    }
}

impl Budget {
    /// A budget for the lists of a bundle, without a chain.
    pub(crate) fn for_lists() -> Self {
        Self { signatures: LIST_SIGNATURES, ..Self::default() }
    }

    /// A budget for the signature of one certificate by several possible issuers.
    pub(super) fn for_issuers() -> Self {
        Self { signatures: ISSUER_SIGNATURES, ..Self::default() }
    }

    /// Starts another chain.
    pub(super) fn next_chain(&mut self) {
        self.own = CHAIN_SIGNATURES;
    }

    /// A budget with these numbers of signatures: shared by all chains, and in addition for each chain.
    #[cfg(test)]
    pub(super) fn of(signatures: usize, owned: usize) -> Self {
        Self { signatures, owned, ..Self::default() }
    }

    /// Assumes the signatures on a path to be valid, until the next call.
    pub(super) fn grant(&mut self, path: &[&ParsedCert<'_>]) {
        self.granted.clear();
        for link in path.windows(2) {
            let (below, above) = (link[0].certificate.fingerprint.as_str(), link[1].key_digest());
            match self.granted.get_mut(below) {
                Some(keys) if keys.contains(above) => {}
                Some(keys) => keys.push(*above),
                None => drop(self.granted.insert(below.to_owned(), vec![*above])),
            }
        }
    }

    /// Whether too little is left for another chain.
    pub(crate) fn is_used_up(&self) -> bool {
        self.paths == 0 || self.signatures + self.owned == 0 || self.check_issuer_steps().is_err()
    }

    /// Deducts the cost of comparing a certificate as the issuer of another; `false` if the budget is exhausted.
    pub(super) fn take_issuer_step(&self) -> bool {
        self.issuer_steps.set(self.issuer_steps.get().saturating_sub(1));
        self.issuer_steps.get() > 0
    }

    /// Fails if a comparison of issuers has been skipped.
    pub(super) fn check_issuer_steps(&self) -> Result<(), Refused> {
        if self.issuer_steps.get() > 0 { Ok(()) } else { Err(Refused::Budget) }
    }

    /// Deducts the cost of trying a path.
    pub(super) fn path(&mut self) -> Result<(), Refused> {
        self.paths = self.paths.checked_sub(1).ok_or(Refused::Budget)?;
        Ok(())
    }

    /// Deducts the cost of comparing revocation lists.
    pub(super) fn lists(&mut self, count: usize) -> Result<(), Refused> {
        self.lists = self.lists.checked_sub(count).ok_or(Refused::Budget)?;
        Ok(())
    }

    /// Deducts the cost of a signature.
    fn take_signature(&mut self, signed: &Signed<'_>, key: &[u8]) -> Result<(), Refused> {
        let cost = cost(key, signed.body.len());
        if self.own >= cost && self.owned >= cost {
            self.own -= cost;
            self.owned -= cost;
        } else {
            self.signatures = self.signatures.checked_sub(cost).ok_or(Refused::Budget)?;
        }
        Ok(())
    }

    /// Verifies a link of a path, once.
    pub(super) fn link(&mut self, parsed: &ParsedCert<'_>, signer: &ParsedCert<'_>) -> Result<Verdict, Refused> {
        let fingerprint = parsed.certificate.fingerprint.as_str();
        if self.granted.get(fingerprint).is_some_and(|keys| keys.contains(signer.key_digest())) {
            return Ok(Ok(()));
        }
        let (signed, key) = (&parsed.signed, &signer.certificate.public_key);
        let verify = || parsed.certificate.signature.by(signer.key_digest(), || signature::verify(signed, key));
        self.once(fingerprint, signed, signer, verify)
    }

    /// Verifies the signature of the list with this fingerprint, once.
    pub(super) fn list(
        &mut self,
        fingerprint: &str,
        signed: &Signed<'_>,
        signer: &ParsedCert<'_>,
    ) -> Result<Verdict, Refused> {
        self.once(fingerprint, signed, signer, || signature::verify(signed, &signer.certificate.public_key))
    }

    fn once(
        &mut self,
        fingerprint: &str,
        signed: &Signed<'_>,
        signer: &ParsedCert<'_>,
        verify: impl FnOnce() -> Verdict,
    ) -> Result<Verdict, Refused> {
        let key = signer.key_digest();
        let known = self.known.get(fingerprint).into_iter().flatten().find(|(known, _)| known == key);
        if let Some((_, verdict)) = known {
            return Ok(*verdict);
        }
        // Deducted even if the certificate knows the verdict, so that no verdict depends on earlier ones.
        self.take_signature(signed, &signer.certificate.public_key)?;
        let verdict = verify();
        self.known.entry(fingerprint.to_owned()).or_default().push((*key, verdict));
        Ok(verdict)
    }
}

/// The cost of a signature by its key and the number of hashed bytes. The unit is a verification with P-256, about 60 µs (measured with AWS-LC).
fn cost(key: &[u8], bytes: usize) -> usize {
    let key = match signature::key(key).0 {
        Key::Rsa { bits } => 1 + bits / 6144,
        Key::P384 | Key::MlDsa44 | Key::MlDsa65 => 4,
        Key::P521 | Key::MlDsa87 => 8,
        Key::P256 | Key::Ed25519 | Key::Other => 1,
    };
    key + bytes / (32 << 10)
}
