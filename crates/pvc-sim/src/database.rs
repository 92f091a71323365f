//! The tables of the cluster's database, as a program on a host asks for them, over the cluster's
//! network.

use std::sync::Arc;

use async_trait::async_trait;
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, Statement, Transaction};

use crate::process::Gate;

/// The database as a program of a host reaches it.
pub(crate) struct HostDatabase {
    pub gate: Gate,
    pub host: usize,
    pub inner: Arc<dyn Database>,
}

impl HostDatabase {
    async fn reached(&self) -> Result<(), DatabaseError> {
        match self.gate.call(|state| state.hosts[self.host].cables.cluster).await {
            true => Ok(()),
            false => Err(DatabaseError::Unreachable { why: "no route to host".to_owned() }),
        }
    }
}

#[async_trait]
impl Database for HostDatabase {
    fn dialect(&self) -> SqlDialect {
        self.inner.dialect()
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError> {
        self.reached().await?;
        let inner = self.inner.begin().await;
        self.gate.pass().await;
        Ok(Box::new(HostTransaction { gate: self.gate.clone(), inner: inner? }))
    }
}

struct HostTransaction {
    gate: Gate,
    inner: Box<dyn Transaction>,
}

#[async_trait]
impl Transaction for HostTransaction {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        self.gate.pass().await;
        let rows = self.inner.run(statement).await;
        self.gate.pass().await;
        rows
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        self.gate.pass().await;
        let done = self.inner.commit().await;
        self.gate.pass().await;
        done
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::database::{DatabaseFixture, database_contract};
    use pvc_database::SqliteDatabase;
    use pvc_testkit::FlakyDatabase;

    use super::*;
    use crate::state::World;

    /// SQLite in memory, with the faults of a PostgreSQL on another machine.
    fn tables() -> FlakyDatabase {
        FlakyDatabase::new(Arc::new(SqliteDatabase::in_memory()))
    }

    fn database(gate: &Gate, inner: &FlakyDatabase) -> HostDatabase {
        HostDatabase { gate: gate.clone(), host: 0, inner: Arc::new(inner.clone()) }
    }

    async fn done(database: &HostDatabase, words: &'static str) -> Result<Rows, DatabaseError> {
        let mut transaction = database.begin().await?;
        let rows = transaction.run(Statement::new(words)).await?;
        transaction.commit().await.map(|()| rows)
    }

    #[tokio::test]
    async fn the_simulated_database_keeps_the_contract() {
        let (_, gates) = World::of_hosts(1);
        let dead = tables();
        let (good, absent) = (database(&gates[0], &tables()), database(&gates[0], &dead));
        dead.set_dead(true);
        let (database, absent) = (Arc::new(good), Arc::new(absent));
        database_contract(DatabaseFixture { database, absent }).await;
    }

    #[tokio::test]
    async fn a_host_without_its_cable_does_not_reach_the_database() {
        let (world, gates) = World::of_hosts(1);
        let database = database(&gates[0], &tables());
        world.with(|state| state.hosts[0].cables.cluster = false);
        let error = done(&database, "CREATE TABLE thing (at INTEGER)").await.unwrap_err();
        assert!(matches!(error, DatabaseError::Unreachable { .. }), "{error}");
        world.with(|state| state.hosts[0].cables.cluster = true);
        done(&database, "CREATE TABLE thing (at INTEGER)").await.unwrap();
    }

    #[tokio::test]
    async fn what_a_killed_program_has_not_committed_is_undone() {
        let (world, gates) = World::of_hosts(1);
        let database = database(&gates[0], &tables());
        done(&database, "CREATE TABLE thing (at INTEGER)").await.unwrap();
        let mut transaction = database.begin().await.unwrap();
        transaction.run(Statement::new("INSERT INTO thing VALUES (1)")).await.unwrap();
        world.with(|state| state.end_process(gates[0].pid));
        let commit =
            tokio::time::timeout(std::time::Duration::from_millis(100), transaction.commit());
        assert!(commit.await.is_err(), "it does nothing any more");
        let next = world.with(|state| {
            let pid = state.processes.start("the next".to_owned(), Some(0));
            crate::daemons::gate(state, pid)
        });
        let database = HostDatabase { gate: next, ..database };
        assert_eq!(done(&database, "SELECT at FROM thing").await.unwrap().rows.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_database_ends_each_call_within_seconds() {
        let (_, gates) = World::of_hosts(1);
        let silent = tables();
        let database = database(&gates[0], &silent);
        silent.set_silent(true);
        let error = database.begin().await.map(drop).unwrap_err();
        assert!(matches!(error, DatabaseError::TimedOut { seconds: 1.. }), "{error}");
    }
}
