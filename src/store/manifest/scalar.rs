//! Scalars: the value of a plain scalar, and how to write a string so that it is read as a string.
//!
//! kubectl turns YAML into JSON with sigs.k8s.io/yaml, whose plain scalars are those of go-yaml v2
//! (`resolve.go`): the YAML 1.2 core schema, and `yes`, `on`, `0644` (octal), `1_000` of YAML 1.1 as well. With
//! other rules, another object would be judged than the API server gets, and reserialising a document would change it.

use serde_json::{Number, Value};

/// The value of a plain scalar.
///
/// # Errors
/// For numbers that JSON cannot hold.
pub(super) fn resolve(text: &str) -> Result<Value, &'static str> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Err("not a number, which JSON cannot hold"),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" => {
            return Err("an infinite number, which JSON cannot hold");
        }
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            let plain = if text.starts_with('.') { text.to_owned() } else { text.replace('_', "") };
            match integer(&plain).or_else(|| float(&plain)) {
                Some(number) => Value::Number(number),
                None => Value::String(text.to_owned()),
            }
        }
        _ => Value::String(text.to_owned()),
    })
}

/// As Go's `strconv.ParseInt(s, 0, 64)`, then `ParseUint`.
fn integer(text: &str) -> Option<Number> {
    let (sign, digits) = match text.split_at_checked(1)? {
        (sign @ ("-" | "+"), digits) => (sign, digits),
        _ => ("", text),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let signed = if sign == "-" { format!("-{digits}") } else { digits.to_owned() };
    let unsigned = || u64::from_str_radix(digits, radix).ok().filter(|_| sign.is_empty());
    i64::from_str_radix(&signed, radix).ok().map(Number::from).or_else(|| unsigned().map(Number::from))
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`
fn float(text: &str) -> Option<Number> {
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let shape = digits(whole) && digits(fraction) && digits(exponent) && !exponent.is_empty();
    (shape && (!whole.is_empty() || !fraction.is_empty())).then(|| text.parse().ok().and_then(Number::from_f64))?
}

/// Whether the text, written as a plain scalar in block or flow style, is a string for every parser.
pub(super) fn is_plain_safe(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'/');
    // A digit may begin a date, a time or a number in one of many notations.
    let starts = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let digits_then_letter = || {
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
        rest.len() < text.len()
            && rest.starts_with(|c: char| c.is_ascii_lowercase() && !matches!(c, 'b' | 'e' | 'o' | 'x'))
    };
    text.bytes().all(word)
        && (text.bytes().next().is_some_and(starts) || digits_then_letter())
        && matches!(resolve(text), Ok(Value::String(_)))
}

/// A string in single quotes, if it needs no escapes.
pub(super) fn single_quoted(text: &str) -> Option<String> {
    text.chars().all(needs_no_escape).then(|| format!("'{}'", text.replace('\'', "''")))
}

/// A string in double quotes, with JSON's escapes, which YAML shares, and the line breaks of YAML 1.1 escaped as well.
pub(super) fn double_quoted(text: &str) -> String {
    let json = Value::String(text.to_owned()).to_string();
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if needs_no_escape(c) {
            out.push(c);
        } else {
            // All of them are below U+10000, so each is one escape.
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        }
    }
    out
}

fn needs_no_escape(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_scalars_have_the_values_that_kubectl_sends() {
        for (text, value) in [
            ("~", json!(null)),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("0644", json!(0o644)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("-0b11", json!(-3)),
            ("1_000", json!(1000)),
            ("+7", json!(7)),
            ("18446744073709551615", json!(u64::MAX)),
            ("08", json!(8.0)),
            ("1e3", json!(1000.0)),
            ("-.5", json!(-0.5)),
            ("1.", json!(1.0)),
            ("2024-01-01", json!("2024-01-01")),
            ("1.2.3", json!("1.2.3")),
            ("0x", json!("0x")),
            ("-", json!("-")),
            ("--1", json!("--1")),
            ("1:30", json!("1:30")),
            ("é", json!("é")),
            ("+é", json!("+é")),
        ] {
            assert_eq!(resolve(text), Ok(value), "{text}");
        }
        assert!(resolve(".inf").is_err());
    }

    #[test]
    fn only_safe_strings_are_written_plain() {
        for text in ["istio-gw", "trustspan.dev/undo", "1password", "A"] {
            assert!(is_plain_safe(text), "{text}");
        }
        for text in ["", "yes", "null", "12", "1e3", "0x1f", "0b1", "2024-01-01", "a b", "a:", "-a", "a#", "{", "é"] {
            assert!(!is_plain_safe(text), "{text}");
        }
    }

    #[test]
    fn quotes() {
        assert_eq!(single_quoted("it's \"x\"").as_deref(), Some("'it''s \"x\"'"));
        assert_eq!(single_quoted("a\nb"), None);
        assert_eq!(double_quoted("a\n\u{85}\u{2028}\"é😀"), r#""a\n\u0085\u2028\"é😀""#);
    }
}
