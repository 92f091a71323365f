//! Sizes on the command line and in details.

use pvc_model::size::parse_size;

/// Takes a text that is a size, and keeps it as it was written: the API reads it.
pub fn parse(text: &str) -> Result<String, String> {
    parse_size(text).map(|_| text.to_owned()).map_err(|bad| bad.to_string())
}

/// Takes a number of bytes, to the byte.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| match parse_size(text) {
        Ok(bytes) => format!("a plain number of bytes is needed: `{text}` would be {bytes}"),
        Err(_) => "a plain number of bytes is needed, such as 5368709120".to_owned(),
    })
}

/// A size in words and to the byte; in words alone of an API that does not tell the bytes.
pub fn exact(words: &str, bytes: u64) -> String {
    if bytes == 0 {
        return words.to_owned();
    }
    format!("{words} ({bytes} bytes)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_kept_as_it_was_written_if_it_is_one() {
        for size in ["10G", "1.5T", "4096", "512MiB"] {
            assert_eq!(parse(size), Ok(size.to_owned()));
        }
        for (bad, words) in [
            ("", "does not begin with a number"),
            ("-1", "does not begin with a number"),
            ("10Q", "has an unknown unit"),
            ("99E", "is larger than"),
        ] {
            assert!(parse(bad).unwrap_err().contains(words), "{bad}");
        }
    }

    #[test]
    fn a_number_of_bytes_has_no_unit_and_it_is_said_how_many_they_would_be() {
        assert_eq!(bytes("5"), Ok(5));
        for (bad, words) in [("5G", "`5G` would be 5368709120"), ("-1", "such as"), ("", "such as")]
        {
            let said = bytes(bad).unwrap_err();
            assert!(said.starts_with("a plain number of bytes is needed"), "{said}");
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn bytes_that_nobody_counted_are_not_shown() {
        assert_eq!(exact("9216M", 9 << 30), "9216M (9663676416 bytes)");
        assert_eq!(exact("10G", 0), "10G");
    }
}
