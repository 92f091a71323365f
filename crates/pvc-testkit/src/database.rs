use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, Statement, Transaction};

/// Time for which a database that says nothing is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Faults {
    /// Number of transactions that were asked for.
    begun: u32,
    dead: bool,
    silent: bool,
    conflicts: u32,
    lost_answers: u32,
    dies_at_commit: bool,
    /// Number of transactions that begin before the next commit is done, whose answer is lost.
    next_is_late: Option<u32>,
    /// Statements that are done after that many more.
    late: Option<(u32, Vec<Statement>)>,
    interruption: Option<Interruption>,
}

/// Event in the middle of a transaction.
struct Interruption {
    /// Number of its changes that are done by then.
    after: usize,
    act: Box<dyn FnOnce() + Send>,
}

/// A database with faults in front of it: of SQLite in memory, what PostgreSQL on another machine
/// can do to who asks it.
#[derive(Clone)]
pub struct FlakyDatabase {
    inner: Arc<dyn Database>,
    faults: Arc<Mutex<Faults>>,
}

impl FlakyDatabase {
    pub fn new(inner: Arc<dyn Database>) -> Self {
        FlakyDatabase { inner, faults: Arc::default() }
    }

    /// Number of transactions that were asked for.
    pub fn begun(&self) -> u32 {
        self.with(|faults| faults.begun)
    }

    /// While set, nobody answers, also in the middle of a transaction.
    pub fn set_dead(&self, dead: bool) {
        self.with(|faults| faults.dead = dead);
    }

    /// While set, whoever is asked says nothing, also in the middle of a transaction, and the call
    /// ends after some seconds.
    pub fn set_silent(&self, silent: bool) {
        self.with(|faults| faults.silent = silent);
    }

    /// In the next `count` commits somebody else is faster.
    pub fn set_conflicts(&self, count: u32) {
        self.with(|faults| faults.conflicts = count);
    }

    /// The next `count` commits are done, and their answers are lost.
    pub fn set_lost_answers(&self, count: u32) {
        self.with(|faults| faults.lost_answers = count);
    }

    /// The answer of the next commit is lost, and it is done only after so many other transactions
    /// have begun.
    pub fn set_late_commit(&self, after: u32) {
        self.with(|faults| faults.next_is_late = Some(after));
    }

    /// Whether a commit was [late](Self::set_late_commit) and is not done yet.
    pub fn has_late_commit(&self) -> bool {
        self.with(|faults| faults.late.is_some())
    }

    async fn do_what_is_late(&self) -> Result<(), DatabaseError> {
        let due = self.with(|faults| match &mut faults.late {
            Some((0, _)) => faults.late.take(),
            Some((after, _)) => {
                *after -= 1;
                None
            }
            None => None,
        });
        let Some((_, statements)) = due else { return Ok(()) };
        let mut transaction = self.inner.begin().await?;
        for statement in statements {
            transaction.run(statement).await?;
        }
        transaction.commit().await
    }

    /// Has `act` happen in the middle of the next transaction that changes rows: when `after` of
    /// its changes are done, before the next of them, and before its commit at the latest.
    pub fn interrupt_after(&self, after: usize, act: impl FnOnce() + Send + 'static) {
        let interruption = Interruption { after, act: Box::new(act) };
        self.with(|faults| faults.interruption = Some(interruption));
    }

    /// Whether what [interrupts](Self::interrupt_after) has not happened yet.
    pub fn has_interruption(&self) -> bool {
        self.with(|faults| faults.interruption.is_some())
    }

    /// Does what is due when so many changes of a transaction are done.
    fn interrupt(&self, done: usize) {
        let is_due = |interruption: &mut Interruption| interruption.after <= done;
        let due = self.with(|faults| faults.interruption.take_if(is_due));
        if let Some(Interruption { act, .. }) = due {
            act();
        }
    }

    /// Is [dead](Self::set_dead) from the next commit on, which is not done.
    pub fn set_dies_at_commit(&self) {
        self.with(|faults| faults.dies_at_commit = true);
    }

    pub fn is_dead(&self) -> bool {
        self.with(|faults| faults.dead)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Faults) -> T) -> T {
        act(&mut self.faults.lock().expect("no test panics while holding it"))
    }

    async fn answers(&self) -> Result<(), DatabaseError> {
        if self.with(|faults| faults.silent) {
            tokio::time::sleep(TIME_LIMIT).await;
            return Err(DatabaseError::TimedOut { seconds: TIME_LIMIT.as_secs() });
        }
        match self.with(|faults| faults.dead) {
            true => Err(DatabaseError::Unreachable { why: "nobody answers".to_owned() }),
            false => Ok(()),
        }
    }
}

/// Whether a statement changes rows.
fn is_change(statement: &Statement) -> bool {
    ["INSERT ", "UPDATE ", "DELETE "].iter().any(|word| statement.words.starts_with(word))
}

fn takes_one(count: &mut u32) -> bool {
    let is_due = *count > 0;
    *count = count.saturating_sub(1);
    is_due
}

#[async_trait]
impl Database for FlakyDatabase {
    fn dialect(&self) -> SqlDialect {
        self.inner.dialect()
    }

    async fn begin(&self) -> Result<Box<dyn Transaction>, DatabaseError> {
        self.with(|faults| faults.begun += 1);
        self.answers().await?;
        self.do_what_is_late().await?;
        let inner = self.inner.begin().await?;
        let (database, done) = (self.clone(), Vec::new());
        Ok(Box::new(FlakyTransaction { database, inner, done, changes: 0, failed: false }))
    }
}

struct FlakyTransaction {
    database: FlakyDatabase,
    inner: Box<dyn Transaction>,
    done: Vec<Statement>,
    /// Number of statements in `done` that change rows.
    changes: usize,
    /// By a fault; what fails by itself knows it.
    failed: bool,
}

#[async_trait]
impl Transaction for FlakyTransaction {
    async fn run(&mut self, statement: Statement) -> Result<Rows, DatabaseError> {
        if self.failed {
            return Err(DatabaseError::Failed);
        }
        if is_change(&statement) {
            self.database.interrupt(self.changes);
            self.changes += 1;
        }
        self.database.answers().await.inspect_err(|_| self.failed = true)?;
        self.done.push(statement.clone());
        self.inner.run(statement).await
    }

    async fn commit(self: Box<Self>) -> Result<(), DatabaseError> {
        if self.failed {
            return Err(DatabaseError::Failed);
        }
        if self.changes > 0 {
            self.database.interrupt(usize::MAX);
        }
        if self.database.with(|faults| std::mem::take(&mut faults.dies_at_commit)) {
            self.database.set_dead(true);
        }
        self.database.answers().await?;
        if let Some(after) = self.database.with(|faults| faults.next_is_late.take()) {
            let FlakyTransaction { database, inner, done, .. } = *self;
            drop(inner);
            database.with(|faults| faults.late = Some((after, done)));
            return Err(DatabaseError::Unknown { why: "the connection was lost".to_owned() });
        }
        if self.database.with(|faults| takes_one(&mut faults.conflicts)) {
            return Err(DatabaseError::Conflict);
        }
        self.inner.commit().await?;
        match self.database.with(|faults| takes_one(&mut faults.lost_answers)) {
            true => Err(DatabaseError::Unknown { why: "the connection was lost".to_owned() }),
            false => Ok(()),
        }
    }
}
