//! A transaction on a connection of a pool. One whose statement was not answered is closed.

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use pvc_ports::{DatabaseError, MOST_ROWS};
use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

use crate::errors::{committed, in_time, meaning};

/// Runs words that bring no rows.
pub type Order<DB> = for<'c> fn(
    &'c mut <DB as Database>::Connection,
    &'static str,
) -> BoxFuture<'c, Result<(), sqlx::Error>>;

/// A transaction that was begun. Dropping it undoes what was done.
pub struct Open<DB: Database> {
    /// `None` once it was given back.
    connection: Option<PoolConnection<DB>>,
    order: Order<DB>,
    /// Whether its connection may be closed: a database in memory ends with it.
    may_close: bool,
    /// Also while a statement runs: its future may be dropped.
    failed: bool,
    /// Whether there may be more of an answer to come.
    unanswered: bool,
}

impl<DB: Database> Open<DB> {
    /// Begins a transaction with `words`.
    pub async fn begin(
        pool: &Pool<DB>,
        words: &'static str,
        order: Order<DB>,
        may_close: bool,
    ) -> Result<Self, DatabaseError> {
        let acquired = pool.acquire();
        let connection = Some(in_time(async { acquired.await.map_err(meaning) }).await?);
        let mut open = Open { connection, order, may_close, failed: false, unanswered: false };
        let begun = order(open.ask()?, words);
        let begun = in_time(async { begun.await.map_err(meaning) }).await;
        let begun = open.hear(begun);
        if begun.is_err() && !open.unanswered {
            // There is nothing to undo.
            open.connection = None;
        }
        begun.map(|()| open)
    }

    /// The connection, for one statement, whose end has to be [heard](Open::hear).
    pub fn ask(&mut self) -> Result<&mut DB::Connection, DatabaseError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(DatabaseError::Failed);
        }
        let connection = self.connection.as_mut().ok_or(DatabaseError::Failed)?;
        self.unanswered = true;
        Ok(&mut **connection)
    }

    /// Notes what came of a statement, and returns it.
    pub fn hear<T>(&mut self, done: Result<T, DatabaseError>) -> Result<T, DatabaseError> {
        self.failed = done.is_err();
        self.unanswered = matches!(
            done,
            Err(DatabaseError::TimedOut { .. }
                | DatabaseError::TooMany { .. }
                | DatabaseError::Unreachable { .. }
                | DatabaseError::Unknown { .. })
        );
        done
    }

    /// Commits it.
    pub async fn finish(mut self) -> Result<(), DatabaseError> {
        let order = self.order;
        let done = committed(order(self.ask()?, "COMMIT")).await;
        self.hear(done)?;
        self.connection = None;
        Ok(())
    }
}

impl<DB: Database> Drop for Open<DB> {
    /// Whoever begins the next transaction must not wait for a statement that does not come back:
    /// its connection is closed.
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        let (order, may_close) = (self.order, self.may_close);
        if may_close && self.unanswered {
            connection.close_on_drop();
            return;
        }
        tokio::spawn(async move {
            if !may_close {
                // What fails is that there is nothing to undo.
                let _ = order(&mut connection, "ROLLBACK").await;
                return;
            }
            let undone = order(&mut connection, "ROLLBACK");
            let undone = in_time(async { undone.await.map_err(meaning) }).await;
            if undone.is_err() {
                connection.close_on_drop();
            }
        });
    }
}

/// Reads all the rows of an answer, of which there may be so many.
pub async fn all_rows<R>(
    mut found: BoxStream<'_, Result<R, sqlx::Error>>,
) -> Result<Vec<R>, DatabaseError> {
    let mut rows = Vec::new();
    while let Some(row) = found.next().await {
        if rows.len() == MOST_ROWS {
            return Err(DatabaseError::TooMany { most: MOST_ROWS });
        }
        rows.push(row.map_err(meaning)?);
    }
    Ok(rows)
}
