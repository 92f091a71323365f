//! Units of amounts, as DSP0004 of the DMTF writes them: `byte * 2^20`, and the words `MegaBytes`,
//! `GB` of older programs.

/// Number of bytes that a unit stands for; `None` if it is not one of bytes.
pub fn bytes(unit: &str) -> Option<u64> {
    if unit.len() > 100 {
        return None;
    }
    let mut factors = unit.split('*').map(str::trim);
    let base = word(factors.next()?)?;
    factors.try_fold(base, |product, factor| product.checked_mul(power(factor)?))
}

fn word(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let prefix = text.strip_suffix("bytes").or_else(|| text.strip_suffix("byte"));
    match prefix.unwrap_or(&text) {
        "" if prefix.is_some() => Some(1),
        "kilo" | "kibi" | "kb" | "kib" => Some(1 << 10),
        "mega" | "mebi" | "mb" | "mib" => Some(1 << 20),
        "giga" | "gibi" | "gb" | "gib" => Some(1 << 30),
        "tera" | "tebi" | "tb" | "tib" => Some(1 << 40),
        _ => None,
    }
}

/// A factor: `1024`, or `2^10`.
fn power(text: &str) -> Option<u64> {
    let (base, exponent) = text.split_once('^').unwrap_or((text, "1"));
    let base: u64 = base.trim().parse().ok()?;
    base.checked_pow(exponent.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_word_or_a_product() {
        for (unit, is) in [
            ("byte", Some(1)),
            ("bytes", Some(1)),
            ("byte * 2^20", Some(1 << 20)),
            ("byte*2^30", Some(1 << 30)),
            ("byte * 10^9", Some(1_000_000_000)),
            ("byte * 1024 * 1024", Some(1 << 20)),
            ("KiloBytes", Some(1 << 10)),
            ("MegaBytes", Some(1 << 20)),
            ("GigaBytes", Some(1 << 30)),
            ("TeraBytes", Some(1 << 40)),
            ("MB", Some(1 << 20)),
            ("GiB", Some(1 << 30)),
            ("byte * 2^64", None),
            ("byte * 2^63 * 2", None),
            ("byte * -1", None),
            ("byte *", None),
            ("byte * 2^99999999999", None),
            ("bit", None),
            ("b", None),
            ("hertz * 10^6", None),
            ("", None),
        ] {
            assert_eq!(bytes(unit), is, "{unit}");
        }
    }
}
