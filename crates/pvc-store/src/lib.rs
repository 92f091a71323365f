//! Typed access to the tree: records, cache, change feed, versioned writes, locks, schema.
//!
//! Three rules hold this crate together:
//!
//! 1. Where things lie in the tree, and how, is known here and nowhere else: `records/` has a file
//!    for each kind, and one table of them.
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
mod claim;
mod draft;
mod error;
mod feed;
mod fencing;
mod groups;
mod keys;
mod life;
mod local_time;
pub mod lock;
mod moving;
mod names;
mod once;
mod outage;
mod raw;
mod reader;
mod records;
mod role;
pub mod schema;
mod scope;
mod store;
pub mod synthetic;
mod volume_text;

pub use access::{KnownPassword, Protection};
pub use backup::{Restored, name_of_dump};
pub use change::{Change, Changes, Expect, Report};
pub use claim::JobClaim;
pub use error::{ChangeError, RestoreError, StoreError};
pub use feed::{Event, EventFeed, EventKind};
pub use fencing::{death, take_role};
pub use local_time::local_time;
pub use lock::LockGuard;
pub use moving::{MoveLocks, RecordLock};
pub use records::cluster::ConfigChange;
pub use records::daemon::Announced;
pub use records::former_renaming::FormerRenaming;
pub use records::is_for_scripts;
pub use records::job::job_arguments;
pub use records::node::{Ipmi, NewNode, NodeChange};
pub use records::osd::OSD_STATS_TO_COME;
pub use records::vm::{NewVm, VmChange};
pub use role::RoleLocks;
pub use store::Store;
pub use volume_text::{snapshot_text, volume_text};
