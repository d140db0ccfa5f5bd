//! The edits of a bundle that a message advises, made: what follows an advice must be no worse than what was there before.

/// The texts after each edit that a message advises without a condition: the certificate on a line is removed, or moved to the beginning.
pub(crate) fn edits(text: &str, message: &str) -> Vec<String> {
    let Some((said, advice)) = message.rsplit_once("; ") else { return Vec::new() };
    let own = line_after(said, " line ");
    let edit = |part: &str| {
        if CONDITIONS.iter().any(|condition| part.contains(condition)) {
            return None;
        }
        match (part.trim_end_matches('.'), line_after(part, " line ")) {
            ("remove this one", _) => only_one(text, own?),
            ("remove it", _) => without(text, own?).map(|(rest, _)| rest),
            (part, Some(line)) if part.starts_with("remove ") => without(text, line).map(|(rest, _)| rest),
            (part, Some(line)) if part.starts_with("put ") => {
                let before = line_after(part, " before line ")?;
                let (_, other) = without(text, before)?;
                let (rest, block) = without(text, line)?;
                Some(rest.replacen(&other, &(block + &other), 1))
            }
            _ => None,
        }
    };
    advice.split(" or ").map(|part| part.trim_end_matches(',')).filter_map(edit).collect()
}

/// Words that begin a condition of an advice.
const CONDITIONS: [&str; 6] = [" if ", " once ", " unless ", " when ", " after ", " at that time"];

/// The number behind the first of these words.
fn line_after(text: &str, words: &str) -> Option<usize> {
    let (_, rest) = text.split_once(words)?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A text without the block that begins on a line. Its other copies stay.
fn only_one(text: &str, line: usize) -> Option<String> {
    let (_, block) = without(text, line)?;
    let length = block.lines().count();
    let rest = text.lines().enumerate().filter(|(at, _)| !(line - 1..line - 1 + length).contains(at));
    Some(rest.map(|(_, line)| format!("{line}\n")).collect())
}

/// A text without the block that begins on a line, also where it is repeated, and that block.
fn without(text: &str, line: usize) -> Option<(String, String)> {
    let lines: Vec<_> = text.lines().collect();
    let end = line + lines.get(line..)?.iter().position(|line| line.starts_with("-----END"))?;
    // A damaged block has no clear end.
    let label = lines[line - 1].strip_prefix("-----BEGIN ")?;
    (lines[end] == format!("-----END {label}")).then_some(())?;
    let joined = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let block = joined(&lines[line - 1..=end]);
    Some((joined(&lines).replace(&block, ""), block))
}
