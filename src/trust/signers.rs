//! Whose CAs may get to where more than one namespace trusts them.

use super::Certificate;
use super::chain::has_issued;
use super::name::brief;

/// The CAs that an operator gives for what leaves a namespace.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Signers {
    /// None are given: who may write the source decides.
    Any,
    /// These, and the CAs that they signed.
    Of(Vec<Certificate>),
    /// They cannot be read: why.
    Unusable(String),
}

impl Signers {
    /// Why a bundle is not written: part of a sentence.
    pub(crate) fn refusal(&self, bundle: &[Certificate]) -> Option<String> {
        let signers = match self {
            Self::Any => return None,
            Self::Of(signers) => signers,
            Self::Unusable(why) => return Some(why.clone()),
        };
        let is_vouched_for =
            |ca: &Certificate| signers.iter().any(|signer| signer.der == ca.der || has_issued(signer, ca));
        let stranger = bundle.iter().find(|ca| !is_vouched_for(ca))?;
        Some(format!(
            "{} is neither in the file of --signers nor signed by a CA in it. expected only such CAs; add it there if it may be trusted here, \
             or remove it from the source",
            brief(&stranger.subject)
        ))
    }
}
