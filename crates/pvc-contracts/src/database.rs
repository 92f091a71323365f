//! Contract of every [`Database`], in a database with no tables.

use std::sync::Arc;

use pvc_ports::{
    Database, DatabaseError, MOST_ROWS, Rows, SqlDialect, SqlValue, Statement, Transaction,
};

/// Environment that the suite needs from whoever runs it.
pub struct DatabaseFixture {
    pub database: Arc<dyn Database>,
    /// Nobody answers there.
    pub absent: Arc<dyn Database>,
}

/// Runs the whole suite.
///
/// # Panics
/// When the database breaks the contract.
pub async fn database_contract(fixture: DatabaseFixture) {
    let suite = Suite { database: fixture.database };
    suite.make_tables().await;
    suite.values_come_back_as_they_were().await;
    suite.what_was_not_committed_was_not_done().await;
    suite.the_same_row_twice_is_refused_with_all_the_transaction().await;
    suite.rows_that_are_referred_to_stay().await;
    suite.a_wrong_statement_is_refused_and_names_why().await;
    suite.rows_beyond_the_bound_are_not_brought().await;
    suite.a_dropped_statement_fails_its_transaction().await;
    suite.transactions_are_as_if_each_were_alone().await;
    let Err(error) = fixture.absent.begin().await else { panic!("nobody is there") };
    assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error}");
}

struct Suite {
    database: Arc<dyn Database>,
}

const ADD_PROFILE: &str = "INSERT INTO profile (name, size) VALUES ($1, $2)";

fn add_profile(name: &str, size: i64) -> Statement {
    Statement::new(ADD_PROFILE).with(name).with(size)
}

impl Suite {
    async fn begin(&self) -> Box<dyn Transaction> {
        self.database.begin().await.expect("it can be reached")
    }

    /// Runs one statement as a transaction of its own.
    async fn alone(&self, statement: Statement) -> Rows {
        let mut transaction = self.begin().await;
        let rows = transaction.run(statement).await.expect("the statement is right");
        transaction.commit().await.expect("nobody is faster");
        rows
    }

    async fn count(&self, words: &'static str) -> i64 {
        match self.alone(Statement::new(words)).await.get(0, "count") {
            Some(SqlValue::Integer(count)) => *count,
            other => panic!("{other:?} is no number"),
        }
    }

    async fn profiles(&self) -> i64 {
        self.count("SELECT count(*) AS count FROM profile").await
    }

    async fn make_tables(&self) {
        let numbers = match self.database.dialect() {
            SqlDialect::PostgreSql => {
                "CREATE TABLE thing (at BIGINT PRIMARY KEY, number BIGINT, small INTEGER, \
                 text TEXT, bytes BYTEA, yes BOOLEAN)"
            }
            SqlDialect::Sqlite => {
                "CREATE TABLE thing (at INTEGER PRIMARY KEY, number INTEGER, small INTEGER, \
                 text TEXT, bytes BLOB, yes BOOLEAN)"
            }
        };
        let mut transaction = self.begin().await;
        for words in [
            numbers,
            "CREATE TABLE profile (name TEXT PRIMARY KEY, size INTEGER NOT NULL)",
            "CREATE TABLE vm (name TEXT PRIMARY KEY, \
             profile TEXT NOT NULL REFERENCES profile (name))",
        ] {
            transaction.run(Statement::new(words)).await.expect("a table can be made");
        }
        transaction.commit().await.expect("nobody is faster");
    }

    async fn values_come_back_as_they_were(&self) {
        let long = "x".repeat(1 << 20);
        let texts = ["", "o'clock \"$1\" -- ;", "'); DROP TABLE profile; --", "größe\n\t🦀", &long];
        let numbers = [0, 1, -1, i64::MIN, i64::MAX];
        let bytes: [&[u8]; 5] = [b"", b"\0", b"\xff\xfe", b"'", &[0; 100_000]];
        for (at, ((text, number), bytes)) in (0..).zip(texts.iter().zip(numbers).zip(bytes)) {
            let values = Statement::new(
                "INSERT INTO thing (at, number, small, text, bytes, yes) \
                 VALUES ($1, $2, $3, $4, $5, $6)",
            );
            let values = values.with(at).with(number).with(at).with(*text);
            let values = values.with(SqlValue::Bytes(bytes.to_vec())).with(SqlValue::Boolean(true));
            self.alone(values).await;
            let words = "SELECT number, small, text, bytes FROM thing WHERE at = $1";
            let found = self.alone(Statement::new(words).with(at)).await;
            assert_eq!(found.columns, ["number", "small", "text", "bytes"]);
            let bytes = SqlValue::Bytes(bytes.to_vec());
            assert_eq!(found.rows, [[number.into(), at.into(), (*text).into(), bytes]]);
            let yes = "SELECT yes FROM thing WHERE at = $1 AND yes = $2";
            let yes = Statement::new(yes).with(at).with(SqlValue::Boolean(true));
            let found = self.alone(yes).await;
            let expected = match self.database.dialect() {
                SqlDialect::PostgreSql => SqlValue::Boolean(true),
                SqlDialect::Sqlite => SqlValue::Integer(1),
            };
            assert_eq!(found.rows, [[expected]]);
        }
        let words = "INSERT INTO thing (at, number, text, bytes, yes) VALUES ($1, $2, $3, $4, $5)";
        let absent =
            (0..4).fold(Statement::new(words).with(99), |absent, _| absent.with(SqlValue::Null));
        self.alone(absent).await;
        let words = "SELECT number, text, bytes, yes FROM thing WHERE at = 99 AND number IS NULL";
        let found = self.alone(Statement::new(words)).await;
        assert_eq!(found.rows, [[SqlValue::Null, SqlValue::Null, SqlValue::Null, SqlValue::Null]]);
        let nothing = self.alone(Statement::new("SELECT at FROM thing WHERE at = -1")).await;
        assert!(nothing.rows.is_empty(), "{nothing:?}");
    }

    async fn what_was_not_committed_was_not_done(&self) {
        let mut transaction = self.begin().await;
        transaction.run(add_profile("dropped", 1)).await.expect("it is new");
        let seen = Statement::new("SELECT size FROM profile WHERE name = $1").with("dropped");
        let seen = transaction.run(seen).await.expect("the statement is right");
        assert_eq!(seen.get(0, "size"), Some(&SqlValue::Integer(1)), "it sees what it has done");
        assert_eq!((seen.get(0, "none"), seen.get(1, "size")), (None, None));
        drop(transaction);
        assert_eq!(self.profiles().await, 0);
        self.alone(add_profile("kept", 1)).await;
        assert_eq!(self.profiles().await, 1);
    }

    async fn the_same_row_twice_is_refused_with_all_the_transaction(&self) {
        let mut transaction = self.begin().await;
        transaction.run(add_profile("first", 1)).await.expect("it is new");
        let error = transaction.run(add_profile("kept", 2)).await.expect_err("it is there");
        assert!(matches!(error, DatabaseError::Exists { .. }), "{error}");
        let error = transaction.run(add_profile("second", 1)).await.expect_err("it has failed");
        assert!(matches!(error, DatabaseError::Failed), "{error}");
        let error = transaction.commit().await.expect_err("it has failed");
        assert!(matches!(error, DatabaseError::Failed), "{error}");
        assert_eq!(self.profiles().await, 1);
    }

    async fn rows_that_are_referred_to_stay(&self) {
        let vm = |profile| {
            let words = "INSERT INTO vm (name, profile) VALUES ($1, $2)";
            Statement::new(words).with("web1").with(profile)
        };
        let refused = async |statement| {
            let error = self.begin().await.run(statement).await.expect_err("it is refused");
            assert!(matches!(error, DatabaseError::Referred { .. }), "{error}");
        };
        refused(vm("absent")).await;
        self.alone(vm("kept")).await;
        let remove = || Statement::new("DELETE FROM profile WHERE name = $1").with("kept");
        refused(remove()).await;
        self.alone(Statement::new("DELETE FROM vm")).await;
        self.alone(remove()).await;
        assert_eq!(self.profiles().await, 0);
    }

    async fn a_wrong_statement_is_refused_and_names_why(&self) {
        for words in ["SELEKT 1", "SELECT nothing FROM profile", "SELECT 1 FROM nowhere"] {
            let mut transaction = self.begin().await;
            let error = transaction.run(Statement::new(words)).await.expect_err("it is wrong");
            assert!(matches!(&error, DatabaseError::Refused { why } if why.len() > 5), "{error}");
            let error = transaction.commit().await.expect_err("it has failed");
            assert!(matches!(error, DatabaseError::Failed), "{error}");
        }
    }

    async fn rows_beyond_the_bound_are_not_brought(&self) {
        let rows = |count: usize| {
            let words = "WITH RECURSIVE many (at) AS \
                         (SELECT 1 UNION ALL SELECT at + 1 FROM many WHERE at < $1) \
                         SELECT at FROM many";
            Statement::new(words).with(i64::try_from(count).expect("it is small"))
        };
        assert_eq!(self.alone(rows(MOST_ROWS)).await.rows.len(), MOST_ROWS);
        // More turns than there are connections: none of them is lost.
        for _ in 0..8 {
            let mut transaction = self.begin().await;
            transaction.run(add_profile("too many", 1)).await.expect("it is new");
            let error = transaction.run(rows(100 * MOST_ROWS)).await.expect_err("they are more");
            assert!(matches!(error, DatabaseError::TooMany { most: MOST_ROWS }), "{error}");
            let error = transaction.commit().await.expect_err("it has failed");
            assert!(matches!(error, DatabaseError::Failed), "{error}");
        }
        assert_eq!(self.profiles().await, 0);
    }

    async fn a_dropped_statement_fails_its_transaction(&self) {
        let mut transaction = self.begin().await;
        transaction.run(add_profile("before", 1)).await.expect("it is new");
        {
            let mut statement = std::pin::pin!(transaction.run(add_profile("given up", 1)));
            let polled = std::future::poll_fn(|context| {
                let polled = statement.as_mut().poll(context);
                std::task::Poll::Ready(polled.is_ready())
            });
            if polled.await {
                // It was too fast to be dropped, which is no error.
                return;
            }
        }
        let error = transaction.commit().await.expect_err("nobody knows what was done");
        assert!(matches!(error, DatabaseError::Failed), "{error}");
        assert_eq!(self.profiles().await, 0);
    }

    /// Each reads a number and writes the next one. One that saw what another was about to change
    /// has to do it again.
    async fn transactions_are_as_if_each_were_alone(&self) {
        const AT_ONCE: i64 = 4;
        const TURNS: i64 = 10;
        self.alone(Statement::new("DELETE FROM profile")).await;
        self.alone(add_profile("count", 0)).await;
        let count = async |database: &dyn Database| -> Result<(), DatabaseError> {
            let mut transaction = database.begin().await?;
            let words = "SELECT size FROM profile WHERE name = $1";
            let found = transaction.run(Statement::new(words).with("count")).await?;
            let Some(SqlValue::Integer(size)) = found.get(0, "size") else {
                panic!("{found:?} is no number");
            };
            let next = size + 1;
            let words = "UPDATE profile SET size = $2 WHERE name = $1";
            transaction.run(Statement::new(words).with("count").with(next)).await?;
            transaction.commit().await
        };
        let tasks = (0..AT_ONCE).map(|_| async {
            let mut done = 0;
            while done < TURNS {
                match count(&*self.database).await {
                    Ok(()) => done += 1,
                    Err(DatabaseError::Conflict) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let mut tasks: Vec<_> = tasks.map(Box::pin).collect();
        std::future::poll_fn(|context| {
            tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
            if tasks.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        let found = self.alone(Statement::new("SELECT size FROM profile")).await;
        assert_eq!(found.rows, [[SqlValue::Integer(AT_ONCE * TURNS)]]);
    }
}
