//! Sizes as people write them: `10G`, `512M`, `4096`. Binary multiples; a bare number is bytes.

/// Reason why a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSize {
    #[error("size `{text}` does not begin with a number")]
    NoNumber { text: String },
    #[error(
        "size `{text}` has an unknown unit; B, K, M, G, T, P and E are known, each 1024 of the one \
         before"
    )]
    UnknownUnit { text: String },
    #[error("size `{text}` begins with a number of more than one point")]
    BadNumber { text: String },
    #[error("size `{text}` is larger than {} bytes", u64::MAX)]
    TooLarge { text: String },
}

const UNITS: &str = "BKMGTPE";

/// Bytes of `text`: a decimal number, directly followed by an optional unit letter in either case,
/// optionally followed by `B` or `iB`. Fractions are cut to whole bytes.
pub fn parse_size(text: &str) -> Result<u64, BadSize> {
    let text_owned = || crate::shown(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(BadSize::NoNumber { text: text_owned() });
    }
    if number.matches('.').count() > 1 {
        return Err(BadSize::BadNumber { text: text_owned() });
    }
    let mut letters = unit.chars();
    let power = match letters.next() {
        None => 0,
        Some(letter) => UNITS
            .find(letter.to_ascii_uppercase())
            .ok_or_else(|| BadSize::UnknownUnit { text: text_owned() })?,
    };
    if !matches!(letters.as_str(), "" | "B" | "b" | "i" | "iB" | "ib") {
        return Err(BadSize::UnknownUnit { text: text_owned() });
    }
    let factor = 1_u64 << (10 * power);
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => number
            .parse::<f64>()
            .ok()
            .map(|n| n * factor as f64)
            .filter(|n| *n < u64::MAX as f64)
            .map(|n| n as u64),
    };
    bytes.ok_or_else(|| BadSize::TooLarge { text: text_owned() })
}

/// The smallest unit that gives at most 9999, rounded up: `10G`, `9216M`, `0B`.
pub fn format_size(bytes: u64) -> String {
    let mut amount = bytes;
    for unit in UNITS.chars() {
        if amount <= 9999 {
            return format!("{amount}{unit}");
        }
        amount = amount.div_ceil(1024);
    }
    format!("{}E", bytes.div_ceil(1 << 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_multiples() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("1.5K", 1536),
            ("1.5T", 3 << 39),
            ("9E", 9 << 60),
            ("10", 10),
            ("2TiB", 2 << 40),
            ("3MB", 3 << 20),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        let no_number = |text: &str| BadSize::NoNumber { text: text.to_owned() };
        let no_unit = |text: &str| BadSize::UnknownUnit { text: text.to_owned() };
        let too_large = |text: &str| BadSize::TooLarge { text: text.to_owned() };
        for (text, expected) in [
            ("", no_number("")),
            ("G", no_number("G")),
            ("-1", no_number("-1")),
            (" 1", no_number(" 1")),
            ("١٠G", no_number("١٠G")),
            ("1X", no_unit("1X")),
            ("10Q", no_unit("10Q")),
            ("1 G", no_unit("1 G")),
            ("1Gx", no_unit("1Gx")),
            ("1G\n", no_unit("1G\u{fffd}")),
            ("16E", too_large("16E")),
            ("99999999E", too_large("99999999E")),
            ("1.2.3", BadSize::BadNumber { text: "1.2.3".to_owned() }),
            ("1..5G", BadSize::BadNumber { text: "1..5G".to_owned() }),
        ] {
            assert_eq!(parse_size(text), Err(expected), "{text}");
        }
        let endless = parse_size(&"9".repeat(10_000)).expect_err("it is too large");
        assert!(endless.to_string().len() < 150, "{endless}");
    }

    #[test]
    fn sizes_are_written_in_the_smallest_unit_of_four_digits() {
        for (bytes, text) in [
            (0, "0B"),
            (9999, "9999B"),
            (10_000, "10K"),
            (10 << 30, "10G"),
            (9 << 30, "9216M"),
            (1 << 40, "1024G"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }
}
