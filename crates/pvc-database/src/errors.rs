use std::future::Future;

use pvc_ports::DatabaseError;
use sqlx::error::ErrorKind;

use crate::DEADLINE;

/// Translates an error of sqlx into that of the port.
pub fn meaning(error: sqlx::Error) -> DatabaseError {
    let why = error.to_string();
    match &error {
        sqlx::Error::Database(said) => {
            let why = said.message().to_owned();
            let code = said.code().unwrap_or_default();
            match said.kind() {
                ErrorKind::UniqueViolation => DatabaseError::Exists { why },
                ErrorKind::ForeignKeyViolation => DatabaseError::Referred { why },
                _ if is_conflict(&code) => DatabaseError::Conflict,
                _ if is_absent(&code) => DatabaseError::Unreachable { why },
                _ => DatabaseError::Refused { why },
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => DatabaseError::Unreachable { why },
        _ => DatabaseError::Refused { why },
    }
}

/// The primary result code of SQLite, whose codes have fewer digits than the five characters of
/// PostgreSQL's.
fn of_sqlite(code: &str) -> Option<u32> {
    let code = code.parse::<u32>().ok().filter(|_| code.len() < 5);
    code.map(|code| code & 0xff)
}

/// PostgreSQL: a serialization failure, a deadlock. SQLite: busy, locked.
fn is_conflict(code: &str) -> bool {
    matches!(code, "40001" | "40P01") || matches!(of_sqlite(code), Some(5 | 6))
}

/// PostgreSQL: it is being shut down, or is not up yet. SQLite: its file cannot be opened, read or
/// written, or the disk is full.
fn is_absent(code: &str) -> bool {
    code.starts_with("57P") || matches!(of_sqlite(code), Some(10 | 13 | 14))
}

/// Returns the result of `work`, or [`TimedOut`](DatabaseError::TimedOut) after `DEADLINE`.
pub async fn in_time<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, DatabaseError> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done.map_err(meaning),
        Err(_) => Err(DatabaseError::TimedOut { seconds: DEADLINE.as_secs() }),
    }
}

/// Returns the error of a commit that failed: if the database has answered, it was not done.
pub fn uncommitted(error: DatabaseError) -> DatabaseError {
    match error {
        DatabaseError::Unreachable { why } => DatabaseError::Unknown { why },
        error @ DatabaseError::TimedOut { .. } => DatabaseError::Unknown { why: error.to_string() },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_databases_are_distinguished() {
        for conflict in ["40001", "40P01", "5", "261", "517", "6"] {
            assert!(is_conflict(conflict) && !is_absent(conflict), "{conflict}");
        }
        for absent in ["57P01", "57P03", "14", "526", "10", "13"] {
            assert!(is_absent(absent) && !is_conflict(absent), "{absent}");
        }
        // The fourth would be one of SQLite's if it were shorter.
        for other in ["42601", "23505", "1", "00005", "", "SQLITE"] {
            assert!(!is_conflict(other) && !is_absent(other), "{other}");
        }
    }
}
