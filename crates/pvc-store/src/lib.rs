//! Typed access to the tree: keys, codecs, cache, change feed, versioned writes, locks, schema.
//!
//! Three rules hold this crate together:
//!
//! 1. Where things lie in the tree, and how, is known here and nowhere else.
//! 2. Reading is tolerant, writing is strict. What legacy peers leave behind is shown with its
//!    defects.
//! 3. A change is decided on a [view](Store::view) and written as one multi that carries the
//!    versions of that view; on a conflict it is decided again. Nobody holds a lock while thinking.
//!
//! Observations (keepalive, statistics, console) have one writer each and are written without
//! versions.

#![forbid(unsafe_code)]

mod access;
mod backup;
mod cache;
mod change;
mod decode;
mod encode;
mod error;
mod feed;
mod fencing;
mod former_renaming;
mod groups;
mod job_codec;
mod keys;
mod life;
mod local_time;
pub mod lock;
mod move_codec;
mod moving;
mod names;
mod note_codec;
mod once;
mod outage;
mod raw;
mod records;
mod role;
pub mod schema;
mod store;
pub mod synthetic;

pub use access::{KnownPassword, Protection};
pub use backup::Restored;
pub use change::{
    Change, Changes, ConfigChange, Expect, Ipmi, NewNode, NewVm, NodeChange, Report, VmChange,
};
pub use error::{ChangeError, RestoreError, StoreError};
pub use feed::{Event, EventFeed, EventKind};
pub use former_renaming::FormerRenaming;
pub use job_codec::job_arguments;
pub use local_time::local_time;
pub use lock::LockGuard;
pub use moving::{MoveLocks, RecordLock};
pub use role::RoleLocks;
pub use store::{Announced, JobClaim, Store};
