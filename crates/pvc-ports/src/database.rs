//! A database of tables: what is asked in SQL.

use async_trait::async_trait;

/// Dialect of SQL that a database takes, where two differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlDialect {
    PostgreSql,
    Sqlite,
}

/// A value of a column or of a parameter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SqlValue {
    Null,
    /// SQLite has no such type, and gives back 0 or 1 as [`Integer`](SqlValue::Integer).
    Boolean(bool),
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&str> for SqlValue {
    fn from(text: &str) -> Self {
        SqlValue::Text(text.to_owned())
    }
}

impl From<i64> for SqlValue {
    fn from(number: i64) -> Self {
        SqlValue::Integer(number)
    }
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(SqlValue::Null, Into::into)
    }
}

/// A statement, with `$1`, `$2` … where its values go. Values never become part of the words: text
/// of users is a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Text of exactly one statement.
    pub words: &'static str,
    pub values: Vec<SqlValue>,
}

impl Statement {
    pub fn new(words: &'static str) -> Self {
        Statement { words, values: Vec::new() }
    }

    /// With the next value.
    #[must_use]
    pub fn with(mut self, value: impl Into<SqlValue>) -> Self {
        self.values.push(value.into());
        self
    }
}

/// Rows that a statement returned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// The names of the columns, in order; none where there is no row.
    pub columns: Vec<String>,
    /// A value for each column.
    pub rows: Vec<Vec<SqlValue>>,
}

impl Rows {
    /// The value of a column in a row, counted from 0.
    pub fn get(&self, row: usize, column: &str) -> Option<&SqlValue> {
        let at = self.columns.iter().position(|name| name == column)?;
        self.rows.get(row)?.get(at)
    }
}

/// The most rows that one statement brings.
pub const MOST_ROWS: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Nothing was done. Trying again may help, later.
    #[error("the database cannot be reached: {why}")]
    Unreachable { why: String },
    /// Somebody else's transaction was faster. Nothing was done; trying the whole transaction again
    /// helps, at once.
    #[error("another transaction of the database was faster")]
    Conflict,
    /// Two rows would be the same where they must differ.
    #[error("the database has that already: {why}")]
    Exists { why: String },
    /// A row refers to one that is not there, or is referred to by one that is.
    #[error("the database refers to that: {why}")]
    Referred { why: String },
    /// The statement itself is wrong, or it brings what has no [`SqlValue`].
    #[error("the database refused a statement: {why}")]
    Refused { why: String },
    /// The statement is to ask for less.
    #[error("the database has more than {most} rows for one statement")]
    TooMany { most: usize },
    /// An earlier statement has failed: the transaction can only be dropped.
    #[error("an earlier statement of the transaction has failed")]
    Failed,
    #[error("the database did not answer within {seconds} s")]
    TimedOut { seconds: u64 },
    /// A commit has failed, and the database has not said that nothing was done: all of it was, or
    /// nothing.
    #[error("it is not known whether the database has done it: {why}")]
    Unknown { why: String },
}

impl DatabaseError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            DatabaseError::Unreachable { .. } | DatabaseError::TimedOut { .. } => {
                Some("does it run? On coordinators `patronictl list` shows its members".to_owned())
            }
            DatabaseError::Unknown { .. } => {
                Some("look whether it is so, before you do it again".to_owned())
            }
            _ => None,
        }
    }
}

/// A database of tables: PostgreSQL of a cluster, SQLite of one machine.
///
/// What is read and written is read and written in transactions, each of which sees and changes the
/// database as if it were alone. Calls take seconds at most.
#[async_trait]
pub trait Database: Send + Sync {
    fn dialect(&self) -> SqlDialect;

    /// Begins a transaction. Connections that were lost are made anew.
    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError>;
}

/// Statements that are done together or not at all. Dropping it undoes them.
#[async_trait]
pub trait Transaction: Send {
    /// Runs a statement and brings all its rows.
    ///
    /// # Errors
    /// [`TooMany`](DatabaseError::TooMany) if there are more than [`MOST_ROWS`]. After any error
    /// the transaction can only be dropped, and says so.
    ///
    /// # Cancellation
    /// Dropping the future is as an error.
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError>;

    /// Has all be done, for good when this returns.
    ///
    /// # Errors
    /// [`Unknown`](DatabaseError::Unknown) unless the database has answered that nothing was done;
    /// after any other nothing was done.
    async fn commit(self: Box<Self>) -> Result<(), DatabaseError>;
}
