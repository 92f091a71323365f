//! The clock that PVC's daemons on one node believe in.

use anyhow::{Context, Result};

use super::layout::{Lab, NodeName};
use super::node;
use crate::run;

/// Sets it `offset` off, like `+1h`, `-90s` or `0`.
pub fn set(lab: &Lab, node: &NodeName, offset: &str) -> Result<()> {
    let seconds = seconds(offset)?.to_string();
    let words = ["/usr/local/lib/pvc-lab/clock", &seconds].map(String::from);
    run::run(&mut node::inside(lab, node, &words)?)
}

fn seconds(offset: &str) -> Result<i64> {
    let (number, unit) = match offset.char_indices().last() {
        Some((at, 's')) => (&offset[..at], 1),
        Some((at, 'm')) => (&offset[..at], 60),
        Some((at, 'h')) => (&offset[..at], 3600),
        _ => (offset, 1),
    };
    let number: Option<i64> = number.parse().ok();
    number.and_then(|number| number.checked_mul(unit)).with_context(|| {
        format!(
            "an offset is a number of seconds, minutes or hours like `+1h` or `-90s`; not \
                 `{offset}`"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_read_as_one_writes_it() {
        assert_eq!(seconds("+1h").unwrap(), 3600);
        assert_eq!(seconds("-90s").unwrap(), -90);
        assert_eq!(seconds("2m").unwrap(), 120);
        assert_eq!(seconds("0").unwrap(), 0);
    }

    #[test]
    fn what_is_no_offset_is_refused() {
        for text in ["", "h", "soon", "1d", "9223372036854775807h"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
