//! What texts read as, kept for whoever reads a source again: `check` and `rewrite` look for what a stream says of the cluster before
//! they judge each document.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::tree::{Composed, compose};

/// Bytes of text whose trees are kept: as much as etcd takes for an object (`--max-request-bytes`). A tree takes some thirty times as
/// much.
const ROOM: usize = 3 << 19;

/// The first texts that were read.
#[derive(Debug)]
pub(super) struct Memo {
    kept: RefCell<HashMap<String, Composed>>,
    room: Cell<usize>,
}

impl Default for Memo {
    fn default() -> Self {
        Self { kept: RefCell::default(), room: Cell::new(ROOM) }
    }
}

impl Memo {
    /// As [`compose`].
    pub(super) fn compose(&self, text: &str) -> Composed {
        if let Some(kept) = self.kept.borrow().get(text) {
            return kept.clone();
        }
        let composed = compose(text);
        if let Some(room) = self.room.get().checked_sub(text.len()) {
            self.room.set(room);
            self.kept.borrow_mut().insert(text.to_owned(), composed.clone());
        }
        composed
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    fn is_kept(memo: &Memo, text: &str) -> bool {
        let read = || memo.compose(text).expect("YAML").expect("content");
        Rc::ptr_eq(&read(), &read())
    }

    #[test]
    fn texts_are_kept_while_there_is_room() {
        let memo = Memo::default();
        assert!(is_kept(&memo, "a: 1\n"));
        let long = |value: &str| format!("a: {value}\n{}", "#\n".repeat(ROOM / 4));
        assert!(is_kept(&memo, &long("1")));
        assert!(!is_kept(&memo, &long("2")), "more is kept than there is room for");
        assert!(is_kept(&memo, "b: 1\n"), "what is short still fits");
    }

    #[test]
    fn what_cannot_be_read_cannot_the_second_time() {
        let memo = Memo::default();
        let read = || memo.compose("a: 1\na: 2\n").expect_err("a key twice").seen;
        assert_eq!(read(), read());
    }
}
