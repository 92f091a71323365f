//! The embedded tree, in memory and in real files.

#![allow(clippy::disallowed_methods, reason = "the tests damage real files")]

mod durability;
mod tree;
