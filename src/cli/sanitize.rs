//! Sanitized text for a terminal.

/// One line without control characters: names in manifests and clusters, subjects and file names are untrusted. Each character of
/// Unicode's category Cc (line breaks too) becomes U+FFFD.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Like [`printable`], for several lines.
pub(super) fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_control_characters_and_keeps_letters_of_all_scripts() {
        assert_eq!(printable("grün 東京 …"), "grün 東京 …");
        assert_eq!(printable("a\u{1b}[2Jb\r\n\u{9b}31m"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}31m");
        assert_eq!(printable_lines("a\nb\u{7}\r\nc"), "a\nb\u{fffd}\nc");
    }
}
