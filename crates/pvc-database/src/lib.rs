//! [`Database`] on PostgreSQL, and on SQLite in a file or in memory, through sqlx.
//!
//! ```text
//!  PostgresDatabase ─┐
//!                    ├─ Open      one transaction: its statements, in order, with a deadline
//!  SqliteDatabase  ──┘
//!  values     between values of the port and those of each database
//! ```
//!
//! Both are made to behave alike: a transaction is serializable, and after an error it can only be
//! dropped.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "an adapter works in real time")]

mod errors;
mod postgres;
mod sqlite;
mod transaction;
mod values;

use std::time::Duration;

pub use postgres::{PostgresDatabase, PostgresOptions};
pub use pvc_ports::Database;
pub use sqlite::SqliteDatabase;

/// Time in which the database must be reached.
const REACH: Duration = Duration::from_secs(5);

/// Time that a statement or a commit may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Number of transactions that are under way at once.
const CONNECTIONS: u32 = 4;
