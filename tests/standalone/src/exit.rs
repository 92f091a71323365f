//! Exit codes of PVC's programs, as `docs/manual/cli.md` lists them.

/// Refused, failed, or not confirmed.
pub const FAILED: i32 = 1;

/// The command line makes no sense.
pub const USAGE: i32 = 2;

/// Named something that does not exist.
pub const NOT_FOUND: i32 = 3;
