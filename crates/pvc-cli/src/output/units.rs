//! Figures for people.

/// Bytes in the smallest unit that keeps the figure below 10,000, rounded up: `9216M`, `10G`.
pub fn bytes(bytes: i64) -> String {
    scaled(bytes, 1024, &["B", "K", "M", "G", "T", "P"])
}

/// Counts by thousands: `12345` is `13K`.
pub fn count(count: i64) -> String {
    scaled(count, 1000, &["", "K", "M", "B", "T", "Q"])
}

/// Counts of the storage, in full as long as that is short: `99999`, then `100K`.
pub fn objects(count: i64) -> String {
    if count.abs() < 100_000 {
        return count.to_string();
    }
    scaled(count, 1000, &["", "K", "M", "G", "T", "P"])
}

fn scaled(value: i64, step: i64, units: &[&str]) -> String {
    let mut divisor = 1_i64;
    for (index, unit) in units.iter().enumerate() {
        // Rounding away from zero; values of the wire are never near the limits of an i64.
        let figure = (value + (divisor - 1) * value.signum()) / divisor;
        if figure.abs() < 10_000 || index == units.len() - 1 {
            return format!("{figure}{unit}");
        }
        divisor = divisor.saturating_mul(step);
    }
    value.to_string()
}

/// An age in the unit that reads best: `3 hours`.
pub fn age(seconds: i64) -> String {
    let (divisor, unit) = match seconds {
        ..60 => (1, "second"),
        60..3600 => (60, "minute"),
        3600..86_400 => (3600, "hour"),
        _ => (86_400, "day"),
    };
    let figure = seconds.saturating_add(divisor / 2) / divisor;
    let plural = if figure == 1 { "" } else { "s" };
    format!("{figure} {unit}{plural}")
}

/// A percentage with one decimal.
pub fn percent(value: f64) -> String {
    format!("{value:.1}%")
}

/// A load average as it has always been written: with a decimal, also where it is whole.
pub fn load(value: f64) -> String {
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_load_has_a_decimal_as_well() {
        assert_eq!((load(0.0), load(2.0), load(0.25)), ("0.0".into(), "2.0".into(), "0.25".into()));
    }

    #[test]
    fn bytes_take_the_smallest_unit_below_ten_thousand_and_round_up() {
        let cases = [
            (0, "0B"),
            (9999, "9999B"),
            (10_000, "10K"),
            (9 << 30, "9216M"),
            (10 << 30, "10G"),
            (1 << 40, "1024G"),
        ];
        for (value, text) in cases {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn counts_go_by_thousands() {
        assert_eq!(count(9999), "9999");
        assert_eq!(count(10_001), "11K");
    }

    #[test]
    fn an_age_is_rounded_to_its_unit() {
        let cases = [
            (1, "1 second"),
            (59, "59 seconds"),
            (90, "2 minutes"),
            (86_400, "1 day"),
            (200_000, "2 days"),
        ];
        for (seconds, text) in cases {
            assert_eq!(age(seconds), text);
        }
    }
}
