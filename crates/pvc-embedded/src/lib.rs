//! The embedded Tree: in the process, kept on disk.
//!
//! ```text
//!  EmbeddedTree ── one per session          state   the tree as a value, and drafts on top of it
//!       │                                   writer  a thread: drafts, stores, publishes, answers
//!       ▼                                   disk    the redb file
//!     Store ──── state (readers)            lock    one process per directory
//!       └─────── writer (changes)           dumps   copies as text, for a file that is damaged
//! ```
//!
//! Everything is in memory; the file is read once. A reader sees a change only after it is on disk,
//! so nothing that anybody was told can be lost. Several changes that wait for the disk share one
//! sync.
//!
//! Without the feature `disk` there are only the tree as a value and the one in memory.

#![forbid(unsafe_code)]

#[cfg(feature = "disk")]
mod disk;
#[cfg(feature = "disk")]
mod dumps;
#[cfg(feature = "disk")]
mod lock;
pub mod state;
mod store;
mod tree;
#[cfg(feature = "disk")]
mod writer;

#[cfg(feature = "disk")]
pub use dumps::{Dump, DumpError, Dumps};
#[cfg(feature = "disk")]
pub use lock::OpenError;
pub use tree::EmbeddedTree;
