//! The outside world as object-safe traits.
