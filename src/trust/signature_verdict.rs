//! The verdict on a certificate's signature, which the certificate keeps.

use std::sync::{Arc, OnceLock};

/// Why a signature is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignatureFault {
    /// An algorithm that cannot be verified here.
    Unsupported,
    /// Another key signed, or the content has changed.
    Wrong,
}

/// Whether a signature is valid.
pub(crate) type Verdict = Result<(), SignatureFault>;

/// SHA-256 over a SubjectPublicKeyInfo: a hostile one has hundreds of kilobytes.
pub(crate) type PublicKey = [u8; 32];

/// The verdict on a certificate's signature by the first key that it was verified with, usually the only one. Clones of the certificate share
/// it: a plan asks about each client's certificate a dozen times, and the signature costs most of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstVerdict(Arc<OnceLock<(PublicKey, Verdict)>>);

impl FirstVerdict {
    /// The verdict by a key. `verify` is called unless it is known.
    pub(crate) fn by(&self, key: &PublicKey, verify: impl Fn() -> Verdict) -> Verdict {
        let (first, verdict) = self.0.get_or_init(|| (*key, verify()));
        if first == key { *verdict } else { verify() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_verified_once_for_all_clones_and_never_counts_for_another_key() {
        let (verdict, key, other) = (FirstVerdict::default(), [1; 32], [2; 32]);
        assert_eq!(verdict.clone().by(&key, || Ok(())), Ok(()));
        assert_eq!(verdict.by(&other, || Err(SignatureFault::Wrong)), Err(SignatureFault::Wrong));
        assert_eq!(verdict.by(&key, || panic!("it is known")), Ok(()));
    }
}
