//! Dates of DER.

/// `YYMMDDHHMMSSZ` as UTCTime, `YYYYMMDDHHMMSSZ` as GeneralizedTime (RFC 5280 section 4.1.2.5). See [`has_offset`] for UTCTime with an
/// offset.
pub(super) fn valid_time(tag: u32, value: &[u8]) -> bool {
    let Some(digits) = value.strip_suffix(b"Z").filter(|d| d.iter().all(u8::is_ascii_digit)) else { return false };
    let (century, rest) = match (tag, digits.len()) {
        // The century matters only for leap days: 2000, which UTCTime's 00 means, had one.
        (23, 12) => (20, digits),
        (24, 14) => (two(digits, 0), &digits[2..]),
        _ => return false,
    };
    let date = jiff::civil::Date::new(i16::from(century) * 100 + i16::from(two(rest, 0)), two(rest, 2), two(rest, 4));
    date.is_ok() && jiff::civil::Time::new(two(rest, 6), two(rest, 8), two(rest, 10), 0).is_ok()
}

/// UTCTime with a time zone (`YYMMDDHHMMSS+HHMM`), which RFC 5280 section 4.1.2.5.1 forbids.
pub(super) fn has_offset(tag: u32, value: &[u8]) -> bool {
    let Some((time, [b'+' | b'-', offset @ ..])) = value.split_at_checked(12) else { return false };
    let is_offset = offset.len() == 4 && offset.iter().all(u8::is_ascii_digit);
    is_offset && two(offset, 0) < 24 && two(offset, 2) < 60 && valid_time(tag, &[time, b"Z"].concat())
}

/// Two digits as a number; the caller has checked that they are digits.
fn two(digits: &[u8], at: usize) -> i8 {
    let digit = |at| digits.get(at).map_or(0, |d: &u8| (d.wrapping_sub(b'0') % 10) as i8);
    digit(at) * 10 + digit(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_dates_that_exist() {
        assert!(
            valid_time(23, b"240229235959Z")
                && valid_time(24, b"20500101000000Z")
                && valid_time(24, b"99991231235959Z")
        );
        for (tag, value) in [
            (23, "230229000000Z"),
            (23, "2301010000Z"),
            (23, "230101000000+0100"),
            (23, "230101240000Z"),
            (23, "230101000060Z"),
            (23, "20230101000000Z"),
            (24, "230101000000Z"),
            (24, "20231301000000Z"),
            (24, "20230101000000.5Z"),
            (23, "230101000000-0730"),
            (0x8000_0017, "230101000000Z"),
        ] {
            assert!(!valid_time(tag, value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn accepts_only_offsets_that_exist() {
        assert!(has_offset(23, b"230101000000-0730") && has_offset(23, b"230101000000+2359"));
        assert!(!has_offset(23, b"230101000000+2400") && !has_offset(24, b"230101000000+0100"));
        assert!(!has_offset(23, b"230101000000Z") && !has_offset(23, b"231301000000+0100"));
    }
}
