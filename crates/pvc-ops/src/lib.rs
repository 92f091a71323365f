//! Each thing an operator can ask for, as one function over store and ports.
//!
//! All of them are built alike:
//!
//! - Everything that can be refused is refused before the first effect, with a reason of the ask's
//!   own [`Refusal`] type and a hint what to do about it.
//! - A change of records is decided on a view of the cluster and written as one multi; if somebody
//!   else was faster it is decided again ([`Store::change`]).
//! - What cannot be one multi (volumes and records together) and must not be left half done is a
//!   job of a worker, which is submitted here with all its refusals.
//! - Repeating an ask is harmless.
//!
//! A dropped future may leave such a longer ask half way: carry them out in tasks of their own.

#![forbid(unsafe_code)]

pub mod benchmark;
pub mod cluster;
pub mod device;
pub mod fault;
pub mod job;
pub mod network;
pub mod node;
pub mod osd;
pub mod provision;
mod refusal;
pub mod sriov;
pub mod storage;
pub mod transfer;
pub mod vm;
mod wait;

pub use pvc_store::ChangeError;
pub use refusal::{BeingRenamed, Homeless, Kind, NoNode, NoVm, Refusal};

#[cfg(doc)]
use pvc_store::Store;

/// Outcome of an ask: done, refused by its own rules, or failed because the store did.
pub type Outcome<T, R> = Result<T, ChangeError<R>>;
