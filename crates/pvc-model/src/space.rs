//! Whether a pool has room for more. The rule keeps a fifth of every pool free: storage that is
//! full stops all of its VMs, not only the one that filled it.

/// Share of a pool that may be filled without force, in percent.
pub const SAFE_PERCENT: u64 = 80;

/// Reason why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// The pool has not that much, force or not.
    NoRoom,
    /// The data would fit, and fill the pool beyond the safe mark. `safe_bytes` are left below it.
    BeyondSafe { safe_bytes: u64 },
}

/// Whether `needed_bytes` may be added to a pool that stores `stored_bytes` and has `free_bytes`
/// left.
pub fn check_room(
    stored_bytes: u64,
    free_bytes: u64,
    needed_bytes: u64,
    force: bool,
) -> Result<(), Lack> {
    if needed_bytes == 0 {
        return Ok(());
    }
    if needed_bytes >= free_bytes {
        return Err(Lack::NoRoom);
    }
    let total = u128::from(stored_bytes) + u128::from(free_bytes);
    let mark = total * u128::from(SAFE_PERCENT) / 100;
    let safe_bytes = u64::try_from(mark).unwrap_or(u64::MAX).saturating_sub(stored_bytes);
    if needed_bytes >= safe_bytes && !force {
        return Err(Lack::BeyondSafe { safe_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_filled_to_the_mark_and_with_force_to_the_brim() {
        let beyond = |safe_bytes| Err(Lack::BeyondSafe { safe_bytes });
        for (stored, free, needed, force, expected) in [
            (0, 100, 79, false, Ok(())),
            (0, 100, 80, false, beyond(80)),
            (0, 100, 80, true, Ok(())),
            (0, 100, 99, true, Ok(())),
            (0, 100, 100, true, Err(Lack::NoRoom)),
            (90, 10, 1, false, beyond(0)),
            (90, 10, 1, true, Ok(())),
            (90, 10, 0, false, Ok(())),
            (0, 0, 1, true, Err(Lack::NoRoom)),
            (u64::MAX, u64::MAX, 1, false, Err(Lack::BeyondSafe { safe_bytes: 0 })),
        ] {
            assert_eq!(
                check_room(stored, free, needed, force),
                expected,
                "{stored} {free} {needed} {force}"
            );
        }
    }
}
