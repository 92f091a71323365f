//! Real databases keep the contract: SQLite in memory and in a file, and a PostgreSQL server of the
//! test's own.

#![allow(clippy::disallowed_methods, reason = "the tests run a real server")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pvc_contracts::database::{DatabaseFixture, database_contract};
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

/// A server of PostgreSQL that listens on a socket in a directory of its own, as the user
/// `postgres`: it does not run as root.
struct Server {
    directory: tempfile::TempDir,
    programs: PathBuf,
}

impl Server {
    fn start() -> Server {
        let versions = std::fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
        let mut versions: Vec<PathBuf> = versions.map(|entry| entry.unwrap().path()).collect();
        versions.sort();
        let programs = versions.pop().expect("a version of it is installed").join("bin");
        let directory = tempfile::tempdir().unwrap();
        let owned = Command::new("chown").arg("postgres").arg(directory.path()).status();
        assert!(owned.unwrap().success(), "the user `postgres` exists");
        let server = Server { directory, programs };
        let data = server.data();
        server.run("initdb", &["-D", &data, "-A", "trust", "-U", "pvc", "--no-sync"]);
        server.control("start");
        server
    }

    fn data(&self) -> String {
        self.directory.path().join("data").display().to_string()
    }

    fn control(&self, what: &str) {
        let (data, socket) = (self.data(), self.directory.path().display());
        let (log, options) = (format!("{data}.log"), format!("-k {socket} -h ''"));
        let args =
            ["-D", &data, "-l", &log, "-o", &options, "-w", "-t", "60", "-m", "immediate", what];
        self.run("pg_ctl", &args);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = Command::new("runuser")
            .args(["-u", "postgres", "--"])
            .arg(self.programs.join(program))
            .args(args)
            .current_dir("/")
            .stdout(std::process::Stdio::null())
            .status();
        assert!(status.unwrap().success(), "`{program} {}`", args.join(" "));
    }

    fn database(&self, port: u16) -> Arc<dyn Database> {
        Arc::new(PostgresDatabase::new(&PostgresOptions {
            host: self.directory.path().display().to_string(),
            port,
            database: "postgres".to_owned(),
            user: "pvc".to_owned(),
            password: None,
        }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.control("stop");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_keeps_the_contract_and_is_found_again_after_a_restart() {
    let server = Server::start();
    let database = server.database(5432);
    let absent = server.database(9);
    database_contract(DatabaseFixture { database: database.clone(), absent }).await;

    let words = "SELECT size FROM profile";
    let mut transaction = database.begin().await.unwrap();
    transaction.run(Statement::new(words)).await.unwrap();
    server.control("restart");
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
