//! Text of others in messages, conditions, Events and logs: subjects, names and answers are untrusted, and so is their length.

/// Bytes of a quoted text.
pub(crate) const EXCERPT: usize = 1 << 10;

/// One line without control characters. Each character of Unicode's category Cc (line breaks too), a line or paragraph separator, and each
/// character that changes the direction of text (UAX #9) becomes U+FFFD.
pub(crate) fn printable(text: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
    };
    text.chars().map(|c| if is_hidden(c) { '\u{fffd}' } else { c }).collect()
}

/// Like [`printable`], for several lines.
#[cfg(feature = "edge")]
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// What a message quotes of a text: one printable line of at most 1 KiB.
pub(crate) fn excerpt(text: &str) -> String {
    bounded(text, EXCERPT)
}

/// One printable line of at most a number of bytes, with an ellipsis at the end if there were more.
pub(crate) fn bounded(text: &str, bytes: usize) -> String {
    // Cut first, with a character more: the rest of a large text is not copied.
    let head = printable(&text[..text.floor_char_boundary(bytes + 4)]);
    clipped(&head, bytes)
}

/// At most a number of bytes, with an ellipsis at the end if there were more.
pub(crate) fn clipped(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes - '…'.len_utf8())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_control_characters_and_keeps_letters_of_all_scripts() {
        assert_eq!(printable("grün 東京 …"), "grün 東京 …");
        assert_eq!(printable("a\u{1b}[2Jb\r\n\u{9b}31m"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}31m");
        assert_eq!(printable("a\u{2028}b\u{202e}c"), "a\u{fffd}b\u{fffd}c");
    }

    #[test]
    fn an_excerpt_has_at_most_a_kibibyte_and_ends_between_characters() {
        assert_eq!(excerpt("a subject"), "a subject");
        for text in ["a".repeat(EXCERPT), "ä".repeat(EXCERPT / 2)] {
            assert_eq!(excerpt(&text), text);
        }
        for text in ["\u{1}".repeat(300_000), "ä".repeat(EXCERPT), "a".repeat(EXCERPT + 1), "東".repeat(EXCERPT)] {
            let quoted = excerpt(&text);
            assert!(quoted.len() <= EXCERPT && quoted.len() > EXCERPT - 6 && quoted.ends_with('…'), "{}", quoted.len());
        }
        assert_eq!(excerpt(&excerpt(&"\n".repeat(9_999))), excerpt(&"\n".repeat(9_999)));
    }
}
