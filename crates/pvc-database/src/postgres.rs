use std::fmt;

use async_trait::async_trait;
use futures::future::BoxFuture;
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, Statement, Transaction};
use sqlx::Executor as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgSslMode, Postgres};

use crate::errors::in_time;
use crate::transaction::{Open, all_rows};
use crate::values::{bind_postgres, rows_of_postgres};
use crate::{CONNECTIONS, DEADLINE, REACH};

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
            .ssl_mode(PgSslMode::Disable)
            // The server ends what nobody waits for any more, with its locks.
            .options([
                ("statement_timeout", DEADLINE.as_millis()),
                ("idle_in_transaction_session_timeout", DEADLINE.as_millis()),
            ]);
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
        let words = "BEGIN ISOLATION LEVEL SERIALIZABLE";
        Ok(Box::new(Open::begin(&self.pool, words, order, true).await?))
    }
}

fn order<'c>(
    connection: &'c mut PgConnection,
    words: &'static str,
) -> BoxFuture<'c, Result<(), sqlx::Error>> {
    Box::pin(async move { connection.execute(words).await.map(drop) })
}

#[async_trait]
impl Transaction for Open<Postgres> {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        let query = bind_postgres(statement.words, statement.values);
        let found = in_time(all_rows(query.fetch(self.ask()?))).await;
        self.hear(found.and_then(|found| rows_of_postgres(&found)))
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        self.finish().await
    }
}
