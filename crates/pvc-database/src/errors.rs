use std::future::Future;

use pvc_ports::DatabaseError;
use sqlx::error::ErrorKind;

use crate::DEADLINE;

/// PostgreSQL's code of a statement that it ended itself, here because of its `statement_timeout`.
const CANCELED: &str = "57014";

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
                _ if code == CANCELED => DatabaseError::TimedOut { seconds: DEADLINE.as_secs() },
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

/// Translates an error of a commit. Only an answer of the database that says so means that nothing
/// was done: anything else, also what is an error of ours, may have come behind the commit.
fn uncommitted(error: sqlx::Error) -> DatabaseError {
    let is_answer = matches!(error, sqlx::Error::Database(_));
    match meaning(error) {
        error @ (DatabaseError::Conflict
        | DatabaseError::Exists { .. }
        | DatabaseError::Referred { .. }) => error,
        error @ DatabaseError::Refused { .. } if is_answer => error,
        DatabaseError::Unreachable { why } | DatabaseError::Refused { why } => {
            DatabaseError::Unknown { why }
        }
        error => DatabaseError::Unknown { why: error.to_string() },
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

/// PostgreSQL: its connection has failed, it does not know what became of a statement, it is being
/// shut down, or is not up yet, or it follows another server, takes no writes (25006) and no
/// serializable transactions (0A000). SQLite: its file cannot be opened, read or written, or the
/// disk is full.
fn is_absent(code: &str) -> bool {
    code.starts_with("08")
        || code.starts_with("57P")
        || matches!(code, "40003" | "25006" | "0A000")
        || matches!(of_sqlite(code), Some(10 | 13 | 14))
}

/// Returns the result of `work`, or [`TimedOut`](DatabaseError::TimedOut) after `DEADLINE`.
pub async fn in_time<T>(
    work: impl Future<Output = Result<T, DatabaseError>>,
) -> Result<T, DatabaseError> {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => Err(DatabaseError::TimedOut { seconds: DEADLINE.as_secs() }),
    }
}

/// Returns the result of a commit.
pub async fn committed(
    work: impl Future<Output = Result<(), sqlx::Error>>,
) -> Result<(), DatabaseError> {
    let work = async { work.await.map_err(uncommitted) };
    match in_time(work).await {
        Err(late @ DatabaseError::TimedOut { .. }) => {
            Err(DatabaseError::Unknown { why: late.to_string() })
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error as StdError;
    use std::fmt;

    use super::*;

    #[test]
    fn codes_of_both_databases_are_distinguished() {
        for conflict in ["40001", "40P01", "5", "261", "517", "6"] {
            assert!(is_conflict(conflict) && !is_absent(conflict), "{conflict}");
        }
        for absent in ["08000", "08006", "40003", "57P01", "57P03", "14", "526", "10", "13"] {
            assert!(is_absent(absent) && !is_conflict(absent), "{absent}");
        }
        // The fourth would be one of SQLite's if it were shorter.
        for other in ["42601", "23505", "1", "00005", "", "SQLITE"] {
            assert!(!is_conflict(other) && !is_absent(other), "{other}");
        }
    }

    /// Answer of a database with this code.
    #[derive(Debug)]
    struct Said(&'static str);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Said {}

    impl sqlx::error::DatabaseError for Said {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn StdError + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn StdError + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            match self.0 {
                "23505" => ErrorKind::UniqueViolation,
                "23503" => ErrorKind::ForeignKeyViolation,
                _ => ErrorKind::Other,
            }
        }
    }

    fn answer(code: &'static str) -> sqlx::Error {
        sqlx::Error::Database(Box::new(Said(code)))
    }

    #[test]
    fn a_commit_was_not_done_only_if_the_database_has_said_so() {
        for undone in ["40001", "40P01", "23505", "23503", "23514", "53100", "5"] {
            let error = uncommitted(answer(undone));
            assert!(!matches!(error, DatabaseError::Unknown { .. }), "{undone}: {error}");
        }
        for open in ["08000", "08006", "40003", "57P01", "10", "13"] {
            let error = uncommitted(answer(open));
            assert!(matches!(error, DatabaseError::Unknown { .. }), "{open}: {error}");
            let error = meaning(answer(open));
            assert!(matches!(error, DatabaseError::Unreachable { .. }), "{open}: {error}");
        }
        for of_a_copy in ["25006", "0A000"] {
            let error = meaning(answer(of_a_copy));
            assert!(matches!(error, DatabaseError::Unreachable { .. }), "{of_a_copy}: {error}");
        }
        let broken = std::io::Error::other("the connection was reset");
        for open in [
            sqlx::Error::Io(broken),
            sqlx::Error::Protocol("an odd message".to_owned()),
            sqlx::Error::WorkerCrashed,
            // They mean that a statement is refused, elsewhere.
            sqlx::Error::RowNotFound,
            sqlx::Error::ColumnNotFound("at".to_owned()),
        ] {
            let error = uncommitted(open);
            assert!(matches!(error, DatabaseError::Unknown { .. }), "{error}");
        }
    }
}
