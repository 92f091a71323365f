//! Times on the command line.

use std::time::Duration;

pub use pvc_model::utc;

/// A number with `s`, `m` or `h` behind it; seconds if there is no letter.
pub fn parse(text: &str) -> Result<Duration, String> {
    let (number, seconds) = match text.as_bytes().last() {
        Some(b's') => (&text[..text.len() - 1], 1),
        Some(b'm') => (&text[..text.len() - 1], 60),
        Some(b'h') => (&text[..text.len() - 1], 3600),
        _ => (text, 1),
    };
    let number: u32 = number
        .parse()
        .map_err(|_| "a time is a number with s, m or h behind it, as in 90s".to_owned())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// The same for a time in which something has to happen: not 0.
pub fn parse_limit(text: &str) -> Result<Duration, String> {
    parse(text)?.checked_sub(Duration::from_secs(1)).ok_or("a limit of 0 leaves no time at all")?;
    parse(text)
}

/// Time that a live migration may halt a guest, in milliseconds.
pub fn downtime(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a whole number of milliseconds is needed, as in 300".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_with_a_unit() {
        let seconds = |text| parse(text).unwrap().as_secs();
        assert_eq!(
            (seconds("90"), seconds("90s"), seconds("2m"), seconds("1h")),
            (90, 90, 120, 3600)
        );
        assert!(parse("soon").is_err() && parse("").is_err() && parse("-1s").is_err());
        assert!(parse_limit("0").is_err() && parse_limit("1").is_ok());
    }

    #[test]
    fn a_downtime_is_said_in_words() {
        assert_eq!(downtime("300"), Ok(300));
        for wrong in ["abc", "-1", "0.5", "300ms", ""] {
            assert_eq!(
                downtime(wrong),
                Err("a whole number of milliseconds is needed, as in 300".to_owned())
            );
        }
    }
}
