//! A few of many names, for a sentence.

/// Names that a sentence gives.
const FEW: usize = 3;

/// The first few, each once, and how many there are beside them; `None` when there is none.
pub(super) fn few<S: AsRef<str> + PartialEq>(names: impl IntoIterator<Item = S>) -> Option<String> {
    first(FEW, names)
}

/// The same with another number of names.
pub(super) fn first<S: AsRef<str> + PartialEq>(most: usize, names: impl IntoIterator<Item = S>) -> Option<String> {
    let mut names: Vec<_> = names.into_iter().collect();
    names.dedup();
    let told = names.iter().take(most).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(most) {
        _ if names.is_empty() => None,
        None | Some(0) => Some(told),
        Some(more) => Some(format!("{told} and {more} more")),
    }
}

/// A number with its noun: `1 client`, `3 clients`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_few_whole_and_many_by_number() {
        assert_eq!(few(["a", "a", "b", "c"]).as_deref(), Some("a, b, c"));
        assert_eq!(few(["a", "b", "c", "d", "e"]).as_deref(), Some("a, b, c and 2 more"));
        assert_eq!(first(1, ["a", "b"]).as_deref(), Some("a and 1 more"));
    }

    #[test]
    fn rejects_a_sentence_about_nobody() {
        assert_eq!(few([""; 0]), None);
    }

    #[test]
    fn computes_plurals() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "client")), ["0 clients", "1 client", "2 clients"]);
    }
}
