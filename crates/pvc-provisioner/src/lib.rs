//! The provisioner's records, in the tables of PVC 1.0.3, on the port
//! [`Database`](pvc_ports::Database).
//!
//! ```text
//!  Provisioner ─┬─ schema      the tables, and how those of an older version become them
//!               ├─ read        rows as records of pvc-model
//!               └─ write       edits of pvc-model as statements
//! ```
//!
//! What may be changed is decided in `pvc_model::provisioner`, on all that is there, in the
//! transaction that changes it: two changes at once are as one after the other.

#![forbid(unsafe_code)]

mod provisioner;
mod read;
pub mod schema;
mod write;

pub use provisioner::{FormerBenchmark, Mode, Provisioner, ProvisionerError, Text};
