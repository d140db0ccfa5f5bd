//! What verdicts may cost, so that hostile bundles cost no time.

use std::cell::Cell;
use std::collections::HashMap;

use super::Refused;
use super::parsed_cert::{ParsedCert, Signed};
use super::signature::{self, Key, SignatureFault};
use crate::trust::limits::{
    CHAIN_SIGNATURES, CRL_STEPS, ISSUER_SIGNATURES, ISSUER_STEPS, LIST_SIGNATURES, NAME_STEPS, OWN_SIGNATURES,
    PATH_STEPS, SIGNATURES,
};

/// SHA-256 over a SubjectPublicKeyInfo: a hostile one has hundreds of kilobytes.
type PublicKey = [u8; 32];
/// Whether a signature holds.
type Verdict = Result<(), SignatureFault>;

/// What all paths of one verdict, or of the verdicts on many chains, may cost together.
pub(crate) struct Budget {
    /// Signatures, where a chain's own are used up.
    signatures: usize,
    /// Signatures that the chain in hand may still cost, whatever the others did.
    own: usize,
    /// Signatures that all chains together may have as their own.
    owned: usize,
    /// Paths that are tried.
    paths: usize,
    /// Names times constraints, and their bytes; BoringSSL allows 2^20 pairs for each pair of certificates, however long they are.
    pub(super) names: usize,
    /// Revocation lists that are looked at, once for each certificate that they could be for.
    lists: usize,
    /// Certificates that are looked at as somebody's issuer.
    looks: Cell<usize>,
    /// By the fingerprint of the certificate or list, with the key: chains of one CA go the same way up.
    known: HashMap<String, Vec<(PublicKey, Verdict)>>,
    /// Links whose signatures are taken to hold: a verdict is only wanted for the case that they do.
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
            looks: Cell::new(ISSUER_STEPS),
            known: HashMap::new(),
            granted: HashMap::new(),
        }
    }
}

impl Budget {
    /// For the lists of a bundle, without a chain.
    pub(crate) fn for_lists() -> Self {
        Self { signatures: LIST_SIGNATURES, ..Self::default() }
    }

    /// For the signature of one certificate, by whoever may have made it.
    pub(super) fn for_issuers() -> Self {
        Self { signatures: ISSUER_SIGNATURES, ..Self::default() }
    }

    /// Begins another chain.
    pub(super) fn next_chain(&mut self) {
        self.own = CHAIN_SIGNATURES;
    }

    /// With so many signatures for all chains together, and so many that are each chain's own.
    #[cfg(test)]
    pub(super) fn of(signatures: usize, owned: usize) -> Self {
        Self { signatures, owned, ..Self::default() }
    }

    /// Takes the signatures on a path to hold, until another path is given.
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

    /// Whether hardly another chain can be judged.
    pub(super) fn is_used_up(&self) -> bool {
        self.paths == 0 || self.signatures + self.owned == 0 || self.could_look().is_err()
    }

    /// Pays for looking at a certificate as somebody's issuer; `false` when that is not possible any more, and nothing can be told.
    pub(super) fn look(&self) -> bool {
        self.looks.set(self.looks.get().saturating_sub(1));
        self.looks.get() > 0
    }

    /// Whether there was enough for all such looks so far.
    pub(super) fn could_look(&self) -> Result<(), Refused> {
        if self.looks.get() > 0 { Ok(()) } else { Err(Refused::Budget) }
    }

    /// Pays for trying a path.
    pub(super) fn path(&mut self) -> Result<(), Refused> {
        self.paths = self.paths.checked_sub(1).ok_or(Refused::Budget)?;
        Ok(())
    }

    /// Pays for looking at so many revocation lists.
    pub(super) fn lists(&mut self, count: usize) -> Result<(), Refused> {
        self.lists = self.lists.checked_sub(count).ok_or(Refused::Budget)?;
        Ok(())
    }

    /// Verifies a signature, and pays for it.
    fn signature(&mut self, signed: &Signed<'_>, key: &[u8]) -> Result<Verdict, Refused> {
        let cost = cost(key, signed.body.len());
        if self.own >= cost && self.owned >= cost {
            self.own -= cost;
            self.owned -= cost;
        } else {
            self.signatures = self.signatures.checked_sub(cost).ok_or(Refused::Budget)?;
        }
        Ok(signature::verify(signed, key))
    }

    /// Verifies a link of a path, once.
    pub(super) fn link(&mut self, facts: &ParsedCert<'_>, signer: &ParsedCert<'_>) -> Result<Verdict, Refused> {
        let fingerprint = facts.certificate.fingerprint.as_str();
        if self.granted.get(fingerprint).is_some_and(|keys| keys.contains(signer.key_digest())) {
            return Ok(Ok(()));
        }
        self.verified(fingerprint, &facts.signed, signer)
    }

    /// Verifies the signature of what has this fingerprint, once.
    pub(super) fn verified(
        &mut self,
        fingerprint: &str,
        signed: &Signed<'_>,
        signer: &ParsedCert<'_>,
    ) -> Result<Verdict, Refused> {
        let key = signer.key_digest();
        let known = self.known.get(fingerprint).into_iter().flatten().find(|(known, _)| known == key);
        if let Some((_, verdict)) = known {
            return Ok(*verdict);
        }
        let verdict = self.signature(signed, &signer.certificate.public_key)?;
        self.known.entry(fingerprint.to_owned()).or_default().push((*key, verdict));
        Ok(verdict)
    }
}

/// In verifications with P-256, which take about 60 µs (measured with AWS-LC): by the kind of key, and by what is hashed.
fn cost(key: &[u8], bytes: usize) -> usize {
    let key = match signature::key(key).0 {
        Key::Rsa { bits } => 1 + bits / 6144,
        Key::P384 | Key::MlDsa44 | Key::MlDsa65 => 4,
        Key::P521 | Key::MlDsa87 => 8,
        Key::P256 | Key::Ed25519 | Key::Other => 1,
    };
    key + bytes / (32 << 10)
}
