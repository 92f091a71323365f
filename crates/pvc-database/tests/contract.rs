//! Real databases keep the contract: SQLite in memory and in a file, and a PostgreSQL server of the
//! test's own.

#![allow(clippy::disallowed_methods, reason = "the tests run a real server")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pvc_contracts::database::{DatabaseFixture, database_contract};
use pvc_contracts::postgres_server::{DATABASE, PostgresServer, USER};
use pvc_database::{Database, PostgresDatabase, PostgresOptions, SqliteDatabase};
use pvc_ports::{DatabaseError, SqlValue, Statement};

fn nowhere() -> Arc<dyn Database> {
    Arc::new(SqliteDatabase::in_file(Path::new("/nonexistent/pvc.sqlite")))
}

#[tokio::test]
async fn sqlite_in_memory_keeps_the_contract() {
    let database = Arc::new(SqliteDatabase::in_memory());
    database_contract(DatabaseFixture { database, absent: nowhere() }).await;
}

#[tokio::test]
async fn sqlite_in_a_file_keeps_the_contract_and_what_was_committed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pvc.sqlite");
    let open = || Arc::new(SqliteDatabase::in_file(&path));
    database_contract(DatabaseFixture { database: open(), absent: nowhere() }).await;
    let mut transaction = open().begin().await.unwrap();
    let found = transaction.run(Statement::new("SELECT size FROM profile")).await.unwrap();
    assert_eq!(found.rows, [[SqlValue::Integer(40)]]);
}

fn database(server: &PostgresServer, port: u16) -> Arc<dyn Database> {
    Arc::new(PostgresDatabase::new(&PostgresOptions {
        host: server.host(),
        port,
        database: DATABASE.to_owned(),
        user: USER.to_owned(),
        password: None,
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_keeps_the_contract_and_is_found_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let server = PostgresServer::start(directory.path(), None);
    let (database, absent) = (database(&server, 5432), database(&server, 9));
    database_contract(DatabaseFixture { database: database.clone(), absent }).await;

    let words = "SELECT size FROM profile";
    let mut transaction = database.begin().await.unwrap();
    transaction.run(Statement::new(words)).await.unwrap();
    server.restart();
    let error = transaction.run(Statement::new(words)).await.unwrap_err();
    assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error}");
    drop(transaction);
    let mut transaction = database.begin().await.unwrap();
    let found = transaction.run(Statement::new(words)).await.unwrap();
    assert_eq!(found.rows, [[SqlValue::Integer(40)]]);

    // More connections than there are at once: those whose statement does not come back are closed.
    for _ in 0..6 {
        let mut transaction = database.begin().await.unwrap();
        let sleeps = transaction.run(Statement::new("SELECT 1 AS one FROM pg_sleep(600)"));
        let given_up = tokio::time::timeout(Duration::from_millis(200), sleeps).await;
        assert!(given_up.is_err(), "it sleeps");
    }

    // The server ends by itself what nobody waits for any more.
    let mut transaction = database.begin().await.unwrap();
    for limit in ["statement_timeout", "idle_in_transaction_session_timeout"] {
        let words = "SELECT setting || unit AS limit FROM pg_settings WHERE name = $1";
        let found = transaction.run(Statement::new(words).with(limit)).await.unwrap();
        assert_eq!(found.rows, [[SqlValue::Text("30000ms".to_owned())]], "{limit}");
    }
    let words = "SELECT set_config('statement_timeout', '50', true) AS set";
    transaction.run(Statement::new(words)).await.unwrap();
    let sleeps = transaction.run(Statement::new("SELECT 1 AS one FROM pg_sleep(600)")).await;
    assert!(matches!(sleeps, Err(DatabaseError::TimedOut { .. })), "{sleeps:?}");
    drop(transaction);

    // What has no value here is refused by name, and cast by whoever wants it.
    let mut transaction = database.begin().await.unwrap();
    let error = transaction.run(Statement::new("SELECT now() AS now")).await.unwrap_err();
    assert!(error.to_string().contains("the column `now` has the type TIMESTAMPTZ"), "{error}");
}
