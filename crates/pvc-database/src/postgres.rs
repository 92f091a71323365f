use std::fmt;

use async_trait::async_trait;
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, Statement, Transaction};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode, Postgres};

use crate::errors::{committed, in_time, meaning};
use crate::values::{bind_postgres, rows_of_postgres};
use crate::{CONNECTIONS, REACH};

/// Address of a PostgreSQL, and the user there.
#[derive(Clone)]
pub struct PostgresOptions {
    /// A name, an address, or the directory of a socket.
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
    pub password: Option<String>,
}

/// Without the password, which would end in logs.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostgresOptions { host, port, database, user, password } = self;
        f.debug_struct("PostgresOptions")
            .field("host", host)
            .field("port", port)
            .field("database", database)
            .field("user", user)
            .field("has_password", &password.is_some())
            .finish()
    }
}

/// A database of a PostgreSQL server.
#[derive(Debug, Clone)]
pub struct PostgresDatabase {
    pool: PgPool,
}

impl PostgresDatabase {
    /// Asks nobody yet. What is asked goes over the cluster's own network, without TLS.
    pub fn new(options: &PostgresOptions) -> Self {
        let mut connect = PgConnectOptions::new_without_pgpass()
            .host(&options.host)
            .port(options.port)
            .database(&options.database)
            .username(&options.user)
            .ssl_mode(PgSslMode::Disable);
        if let Some(password) = &options.password {
            connect = connect.password(password);
        }
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(REACH);
        PostgresDatabase { pool: pool.connect_lazy_with(connect) }
    }
}

#[async_trait]
impl Database for PostgresDatabase {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::PostgreSql
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError> {
        let begun = self.pool.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE");
        let transaction = in_time(async { begun.await.map_err(meaning) }).await?;
        Ok(Box::new(Running { transaction, failed: false }))
    }
}

struct Running {
    transaction: sqlx::Transaction<'static, Postgres>,
    /// Also while a statement runs: its future may be dropped.
    failed: bool,
}

#[async_trait]
impl Transaction for Running {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(DatabaseError::Failed);
        }
        let query = bind_postgres(statement.words, statement.values);
        let found = query.fetch_all(&mut *self.transaction);
        let found = in_time(async { found.await.map_err(meaning) }).await?;
        let rows = rows_of_postgres(&found)?;
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
