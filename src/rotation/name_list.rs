//! Names and numbers in sentences.

pub(crate) use crate::trust::counted;

/// The number of names that a sentence lists.
const FEW: usize = 3;

/// The first few names, each once, and the number of the others; `None` for no names.
pub(crate) fn few<S: AsRef<str> + PartialEq>(names: impl IntoIterator<Item = S>) -> Option<String> {
    first(FEW, names)
}

/// Like [`few`], with another limit.
pub(super) fn first<S: AsRef<str> + PartialEq>(most: usize, names: impl IntoIterator<Item = S>) -> Option<String> {
    let mut names: Vec<_> = names.into_iter().collect();
    names.dedup();
    let listed = names.iter().take(most).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(most) {
        _ if names.is_empty() => None,
        None | Some(0) => Some(listed),
        Some(more) => Some(format!("{listed} and {more} more")),
    }
}

/// Makes a whole sentence: the first letter in upper case, and a full stop.
pub(crate) fn sentence(part: &str) -> String {
    let part = part.trim_end_matches('.');
    let mut rest = part.chars();
    // A first word with other characters is a name, and stays as it is: `spec.paused`, `cert-manager`.
    let is_word = part.split(' ').next().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
    match rest.next() {
        Some(first) if is_word => format!("{}{}.", first.to_ascii_uppercase(), rest.as_str()),
        _ => format!("{part}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_first_names_and_counts_the_others() {
        assert_eq!(few(["a", "a", "b", "c"]).as_deref(), Some("a, b, c"));
        assert_eq!(few(["a", "b", "c", "d", "e"]).as_deref(), Some("a, b, c and 2 more"));
        assert_eq!(first(1, ["a", "b"]).as_deref(), Some("a and 1 more"));
    }

    #[test]
    fn no_names_make_no_list() {
        assert_eq!(few([""; 0]), None);
    }

    #[test]
    fn computes_plurals() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "client")), ["0 clients", "1 client", "2 clients"]);
    }

    #[test]
    fn completes_parts_of_sentences() {
        assert_eq!(sentence("clients wait: payments"), "Clients wait: payments.");
        assert_eq!(sentence("spec.paused is set."), "spec.paused is set.");
    }
}
