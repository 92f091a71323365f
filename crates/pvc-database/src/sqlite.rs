use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, Statement, Transaction};
use sqlx::Executor as _;
use sqlx::sqlite::{
    Sqlite, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool,
    SqlitePoolOptions, SqliteSynchronous,
};

use crate::errors::in_time;
use crate::transaction::{Open, all_rows};
use crate::values::{bind_sqlite, rows_of_sqlite};
use crate::{CONNECTIONS, REACH};

/// Time for which a transaction waits for another one.
const BUSY: Duration = Duration::from_secs(5);

/// A database in a file of this machine, or in memory.
#[derive(Debug, Clone)]
pub struct SqliteDatabase {
    pool: SqlitePool,
    /// Whether a connection may be closed.
    may_close: bool,
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
        SqliteDatabase { pool: pool.connect_lazy_with(connect), may_close: true }
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
        let pool = pool.connect_lazy_with(options().in_memory(true));
        SqliteDatabase { pool, may_close: false }
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
        let words = "BEGIN IMMEDIATE";
        Ok(Box::new(Open::begin(&self.pool, words, order, self.may_close).await?))
    }
}

fn order<'c>(
    connection: &'c mut SqliteConnection,
    words: &'static str,
) -> BoxFuture<'c, Result<(), sqlx::Error>> {
    Box::pin(async move { connection.execute(words).await.map(drop) })
}

#[async_trait]
impl Transaction for Open<Sqlite> {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        let query = bind_sqlite(statement.words, statement.values);
        let found = in_time(all_rows(query.fetch(self.ask()?))).await;
        self.hear(found.and_then(|found| rows_of_sqlite(&found)))
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        self.finish().await
    }
}
