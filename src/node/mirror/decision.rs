//! What is done with a mirrored file. Pure: what is on disk and what the source says in, whether the file is written out.

use jiff::Timestamp;

use crate::health::CheckResult;
use crate::trust::{Certificate, Signers, content_hash, loadable};

/// A bundle: certificates in their order.
#[derive(Clone, Debug)]
pub(super) struct Content(pub(super) Vec<Certificate>);

impl PartialEq for Content {
    /// Compares the certificates, not what followed one of them in its PEM block.
    fn eq(&self, other: &Self) -> bool {
        let fingerprints = |content: &'_ Self| content.0.iter().map(|one| one.fingerprint.clone()).collect::<Vec<_>>();
        fingerprints(self) == fingerprints(other)
    }
}

impl Content {
    /// The text that is written: the certificates and nothing else.
    pub(super) fn pem(&self) -> String {
        self.0.iter().map(Certificate::pem).collect()
    }

    pub(super) fn hash(&self) -> String {
        content_hash(&self.0)
    }

    /// When the first CA expires, of those that have not.
    pub(super) fn first_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        loadable::first_expiry(&self.0, now)
    }
}

/// What is on disk.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Disk {
    Absent,
    Holds(Content),
    /// It cannot be read, or not as a bundle: why.
    Unusable(String),
}

/// What the source says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// It has not answered yet.
    Pending,
    Holds(Content),
    /// It has content that is not written: why.
    Refused(String),
    /// The object or its key does not exist: which.
    Missing(String),
    /// It cannot be read.
    Unreadable(CheckResult),
}

/// What this process knows from before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Memory {
    /// The last content of the source that was not refused.
    pub(super) accepted: Option<Content>,
    /// The last bundle that was found in the file or written to it.
    pub(super) last: Option<Content>,
    /// Whether the file had what was wanted when it was last read or written.
    pub(super) is_current: bool,
}

/// Why the file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The source has other content than the file.
    Update,
    /// Something else changed or removed the file.
    Drift,
    /// The file does not exist or is no bundle, and the source has no content for it.
    Bootstrap,
}

/// What is done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Decision {
    /// The file stays as it is.
    Keep,
    Write(Content, Cause),
}

/// The content of a source, judged as a replacement of what is on disk.
pub(super) fn judge(pem: &[u8], disk: &Disk, signers: &Signers, now: Timestamp) -> Source {
    let previous = match disk {
        Disk::Holds(content) => Some(content.pem()),
        Disk::Absent | Disk::Unusable(_) => None,
    };
    match loadable::replacement(pem, previous.as_deref().map(str::as_bytes), now) {
        Ok(certificates) => match signers.refusal(&certificates) {
            Some(why) => Source::Refused(why),
            None => Source::Holds(Content(certificates)),
        },
        Err(why) => Source::Refused(why),
    }
}

/// The content of a file.
pub(super) fn read(pem: &[u8], now: Timestamp) -> Disk {
    match loadable::certificates(pem, now) {
        Ok(certificates) => Disk::Holds(Content(certificates)),
        Err(why) => Disk::Unusable(why),
    }
}

/// Decides whether the file is written. It is never removed, and what it holds stays while the source has nothing better.
pub(super) fn decide(disk: &Disk, source: &Source, memory: &Memory, bootstrap: Option<&Content>) -> Decision {
    let wanted = match source {
        Source::Holds(content) => Some(content),
        _ => memory.accepted.as_ref(),
    };
    match (wanted, disk) {
        (Some(wanted), Disk::Holds(stored)) if wanted == stored => Decision::Keep,
        (Some(wanted), _) => {
            let is_drift = memory.is_current && memory.accepted.as_ref() == Some(wanted);
            Decision::Write(wanted.clone(), if is_drift { Cause::Drift } else { Cause::Update })
        }
        (None, Disk::Holds(_)) => Decision::Keep,
        // The API server may answer in a moment, with better content.
        (None, _) if *source == Source::Pending => Decision::Keep,
        (None, _) => match (&memory.last, bootstrap) {
            (Some(last), _) => Decision::Write(last.clone(), Cause::Drift),
            (None, Some(bootstrap)) => Decision::Write(bootstrap.clone(), Cause::Bootstrap),
            (None, None) => Decision::Keep,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, IsCa};

    use crate::trust::fixtures::{Authority, ca, ca_with, now, parsed};

    fn content(authorities: &[&Authority]) -> Content {
        Content(authorities.iter().map(|one| parsed(one.der())).collect())
    }

    fn text(authorities: &[&Authority]) -> String {
        authorities.iter().map(|one| one.pem()).collect()
    }

    fn unreachable() -> Source {
        Source::Unreadable(CheckResult::Unreachable("no answer".to_owned()))
    }

    fn gone() -> [Source; 4] {
        let text = || "text".to_owned();
        let forbidden = Source::Unreadable(CheckResult::Misconfigured(text()));
        [unreachable(), Source::Missing(text()), Source::Refused(text()), forbidden]
    }

    #[test]
    fn the_same_list_is_not_written_however_its_text_is_formatted() {
        let (one, two) = (ca("one"), ca("two"));
        let reformatted = format!("# signers\n\n{}\n# the second\n{}\n", one.pem(), two.pem().replace('\n', "\r\n"));
        let disk = read(reformatted.as_bytes(), now());
        let source = judge(text(&[&one, &two]).as_bytes(), &disk, &Signers::Any, now());
        assert_eq!(decide(&disk, &source, &Memory::default(), None), Decision::Keep);
        let other_order = judge(text(&[&two, &one]).as_bytes(), &disk, &Signers::Any, now());
        let expected = Decision::Write(content(&[&two, &one]), Cause::Update);
        assert_eq!(decide(&disk, &other_order, &Memory::default(), None), expected, "order is part of a bundle");
    }

    #[test]
    fn bytes_after_a_certificate_do_not_cause_a_second_write() {
        let one = ca("one");
        let der = [one.der(), &[5, 0]].concat();
        let mut with_more = content(&[&one]);
        with_more.0[0] = parsed(&der);
        assert!(with_more.0[0].has_trailing_bytes && with_more == content(&[&one]));
    }

    #[test]
    fn content_stays_when_the_source_fails_or_disappears() {
        let one = content(&[&ca("one")]);
        let memories =
            [Memory::default(), Memory { accepted: Some(one.clone()), last: Some(one.clone()), is_current: true }];
        for source in gone().into_iter().chain([Source::Pending]) {
            for memory in &memories {
                let decided = decide(&Disk::Holds(one.clone()), &source, memory, Some(&content(&[&ca("boot")])));
                assert_eq!(decided, Decision::Keep, "{source:?} {memory:?}");
            }
        }
    }

    #[test]
    fn drift_is_put_back_also_while_the_source_cannot_be_read() {
        let (one, other) = (content(&[&ca("one")]), content(&[&ca("other")]));
        let memory = Memory { accepted: Some(one.clone()), last: Some(one.clone()), is_current: true };
        for source in gone().into_iter().chain([Source::Holds(one.clone())]) {
            for disk in [Disk::Absent, Disk::Unusable("no PEM".to_owned()), Disk::Holds(other.clone())] {
                let decided = decide(&disk, &source, &memory, None);
                assert_eq!(decided, Decision::Write(one.clone(), Cause::Drift), "{disk:?} {source:?}");
            }
        }
        // A write that failed is repeated as what it was.
        let failed = Memory { is_current: false, ..memory };
        let decided = decide(&Disk::Holds(other), &Source::Holds(one.clone()), &failed, None);
        assert_eq!(decided, Decision::Write(one, Cause::Update));
    }

    #[test]
    fn before_the_source_was_ever_read_only_a_file_that_is_missing_is_written() {
        let (found, boot) = (content(&[&ca("found")]), content(&[&ca("boot")]));
        let absent =
            |source: &Source, memory: &Memory, boot: Option<&Content>| decide(&Disk::Absent, source, memory, boot);
        let fresh = Memory::default();
        for source in gone() {
            let expected = Decision::Write(boot.clone(), Cause::Bootstrap);
            assert_eq!(absent(&source, &fresh, Some(&boot)), expected, "{source:?}");
            assert_eq!(decide(&Disk::Unusable(String::new()), &source, &fresh, Some(&boot)), expected);
            assert_eq!(absent(&source, &fresh, None), Decision::Keep);
            // The file was there when this process started.
            let seen = Memory { last: Some(found.clone()), ..Memory::default() };
            assert_eq!(absent(&source, &seen, Some(&boot)), Decision::Write(found.clone(), Cause::Drift));
        }
        assert_eq!(absent(&Source::Pending, &fresh, Some(&boot)), Decision::Keep, "it may answer in a moment");
    }

    #[test]
    fn only_certificates_are_written() {
        let one = ca("one");
        let source = judge(format!("# signer\n{}", one.pem()).as_bytes(), &Disk::Absent, &Signers::Any, now());
        let Decision::Write(written, _) = decide(&Disk::Absent, &source, &Memory::default(), None) else {
            panic!("{source:?}")
        };
        assert_eq!(written.pem(), one.pem());
    }

    #[test]
    fn content_that_would_break_trust_is_refused() {
        let (one, two) = (ca("one"), ca("two"));
        let old = Disk::Holds(content(&[&one]));
        let refused = |text: &str, disk: &Disk| match judge(text.as_bytes(), disk, &Signers::Any, now()) {
            Source::Refused(why) => why,
            other => panic!("{other:?} of {text}"),
        };
        let broken = two.pem().replacen("MII", "M!I", 1);
        for disk in [&old, &Disk::Absent] {
            refused("", disk);
            refused("text", disk);
            refused(&(one.pem() + &broken), disk);
            let leaf = one.leaf("leaf");
            assert!(refused(&leaf.pem(), disk).contains("is a CA that is valid now"));
            refused(&(one.pem() + &one.key_pem()), disk);
            refused(&text(&[&one, &two]).replace("-----\n-----", "----------"), disk);
        }
        assert_eq!(
            judge(text(&[&two, &one]).as_bytes(), &old, &Signers::Any, now()),
            Source::Holds(content(&[&two, &one]))
        );
    }

    #[test]
    fn only_the_cas_of_the_signers_are_written() {
        let (root, other) = (ca("root"), ca("other"));
        let signers = Signers::Of(content(&[&root]).0);
        let (issuing, next) = (root.intermediate("issuing", |_| {}), root.intermediate("issuing", |_| {}));
        let renewed = root.renewed(2027, 2050);
        let written = |text: &str, signers: &Signers| match judge(text.as_bytes(), &Disk::Absent, signers, now()) {
            Source::Holds(_) => Ok(()),
            Source::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        };
        for rotated in [vec![&root], vec![&next, &issuing], vec![&renewed, &root]] {
            assert_eq!(written(&text(&rotated), &signers), Ok(()));
        }
        let below = issuing.intermediate("below", |_| {});
        let same_name = ca("root");
        for stranger in [&other, &below, &same_name] {
            let refused = written(&text(&[&issuing, stranger]), &signers).unwrap_err();
            assert!(refused.contains("--signers"), "{refused}");
            assert_eq!(written(&text(&[&issuing, stranger]), &Signers::Any), Ok(()));
        }
        let unusable = Signers::Unusable("no such file".to_owned());
        assert_eq!(written(&text(&[&root]), &unusable), Err("no such file".to_owned()));
    }

    #[test]
    fn a_signer_of_leaves_only_adds_no_ca() {
        let leaves = ca_with("leaves", |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
        let below = leaves.intermediate("below", |_| {});
        let signers = Signers::Of(content(&[&leaves]).0);
        let judged = |pem: String| judge(pem.as_bytes(), &Disk::Absent, &signers, now());
        assert!(matches!(judged(text(&[&leaves, &below])), Source::Refused(_)));
        assert!(matches!(judged(text(&[&leaves])), Source::Holds(_)));
    }
}
