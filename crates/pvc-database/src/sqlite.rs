use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, Statement, Transaction};
use sqlx::sqlite::{
    Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};

use crate::errors::{committed, in_time, meaning};
use crate::values::{bind_sqlite, rows_of_sqlite};
use crate::{CONNECTIONS, REACH};

/// How long a transaction waits for another one.
const BUSY: Duration = Duration::from_secs(5);

/// A database in a file of this machine, or in memory.
#[derive(Debug, Clone)]
pub struct SqliteDatabase {
    pool: SqlitePool,
}

impl SqliteDatabase {
    /// In the file, which is made with the first transaction if it does not exist. Several
    /// processes may use it.
    pub fn in_file(path: &Path) -> Self {
        let connect = options()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(REACH);
        SqliteDatabase { pool: pool.connect_lazy_with(connect) }
    }

    /// In memory, and gone with the last clone.
    pub fn in_memory() -> Self {
        // The one connection is the database.
        let pool = SqlitePoolOptions::new()
            .min_connections(1)
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(REACH);
        SqliteDatabase { pool: pool.connect_lazy_with(options().in_memory(true)) }
    }
}

fn options() -> SqliteConnectOptions {
    SqliteConnectOptions::new().foreign_keys(true).busy_timeout(BUSY)
}

#[async_trait]
impl Database for SqliteDatabase {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Sqlite
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError> {
        // One that reads first and writes then could not wait for another that does the same.
        let begun = self.pool.begin_with("BEGIN IMMEDIATE");
        let transaction = in_time(async { begun.await.map_err(meaning) }).await?;
        Ok(Box::new(Running { transaction, failed: false }))
    }
}

struct Running {
    transaction: sqlx::Transaction<'static, Sqlite>,
    /// Also while a statement runs: its future may be dropped.
    failed: bool,
}

#[async_trait]
impl Transaction for Running {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(DatabaseError::Failed);
        }
        let query = bind_sqlite(statement.words, statement.values);
        let found = query.fetch_all(&mut *self.transaction);
        let found = in_time(async { found.await.map_err(meaning) }).await?;
        let rows = rows_of_sqlite(&found)?;
        self.failed = false;
        Ok(rows)
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        if self.failed {
            return Err(DatabaseError::Failed);
        }
        committed(self.transaction.commit()).await
    }
}
