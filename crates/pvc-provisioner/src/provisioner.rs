use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pvc_model::cluster::Cluster;
use pvc_model::provisioner::{Catalog, Change, Class, ProvisionerRefusal, decide};
use pvc_ports::{Database, DatabaseError, SqlValue, Statement, Transaction};

use crate::{read, schema, write};

/// Number of times that a transaction is tried again because another one was faster.
const TRIES: usize = 10;

/// Reason why the provisioner did not do something.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionerError {
    #[error(transparent)]
    Refused(#[from] ProvisionerRefusal),
    #[error("the provisioner's database cannot be used")]
    Database(#[from] DatabaseError),
    #[error(
        "the provisioner's database is at the revision `{found}`, which this version does not \
         know; nothing was changed in it"
    )]
    UnknownRevision { found: String },
    #[error(
        "the provisioner's database has profiles without a script or a system template ({}), \
         which no version since PVC 0.9.66 can have; nothing was changed in it",
        .profiles.join(", ")
    )]
    Unfinished { profiles: Vec<String> },
}

impl ProvisionerError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            ProvisionerError::Refused(refusal) => refusal.hint(),
            ProvisionerError::Database(error) => error.hint(),
            ProvisionerError::UnknownRevision { .. } => Some(format!(
                "this version knows those up to `{}` of PVC 1.0.3; the table `alembic_version` \
                 says which it is",
                schema::HEAD
            )),
            ProvisionerError::Unfinished { .. } => {
                Some("remove these rows of the table `profile`, or complete them".to_owned())
            }
        }
    }
}

/// Whether a change is to be made, or only to be decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Do,
    DryRun,
}

/// A userdata or a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    pub id: i64,
    pub name: String,
    pub text: String,
}

/// A benchmark of the storage that PVC 1.0.3 has recorded. Ours are records of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerBenchmark {
    pub id: i64,
    /// Its name.
    pub job: String,
    /// Format of the result, 0 to 2 (`spec/storage.md` §7).
    pub format: i64,
    /// `Running`, or JSON.
    pub result: String,
}

/// The provisioner's records. Nothing is asked of the database before it is needed.
#[derive(Clone)]
pub struct Provisioner {
    database: Arc<dyn Database>,
    /// Whether the tables were found to be as they should.
    is_ready: Arc<AtomicBool>,
}

impl Provisioner {
    pub fn new(database: Arc<dyn Database>) -> Self {
        Provisioner { database, is_ready: Arc::default() }
    }

    /// Everything but the texts of userdata and scripts.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn catalog(&self) -> Result<Catalog, ProvisionerError> {
        let mut tries = 0;
        loop {
            match self.try_catalog().await {
                Err(error) if self.is_worth_a_try(&error, &mut tries) => {}
                found => return found,
            }
        }
    }

    async fn try_catalog(&self) -> Result<Catalog, ProvisionerError> {
        let mut transaction = self.begin().await?;
        Ok(read::catalog(&mut *transaction).await?)
    }

    /// The userdata, scripts or OVFs in the order in which they were added, or the one with a name.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn texts(
        &self,
        class: Class,
        name: Option<&str>,
    ) -> Result<Vec<Text>, ProvisionerError> {
        let statement = match (class, name) {
            (Class::Script, None) => {
                Statement::new("SELECT id, name, script AS text FROM script ORDER BY id")
            }
            (Class::Script, Some(name)) => {
                let words = "SELECT id, name, script AS text FROM script WHERE name = $1";
                Statement::new(words).with(name)
            }
            (Class::Ova, None) => {
                Statement::new("SELECT id, name, ovf AS text FROM ova ORDER BY id")
            }
            (Class::Ova, Some(name)) => {
                Statement::new("SELECT id, name, ovf AS text FROM ova WHERE name = $1").with(name)
            }
            (_, None) => {
                Statement::new("SELECT id, name, userdata AS text FROM userdata ORDER BY id")
            }
            (_, Some(name)) => {
                let words = "SELECT id, name, userdata AS text FROM userdata WHERE name = $1";
                Statement::new(words).with(name)
            }
        };
        self.texts_of(statement).await
    }

    /// The benchmarks that PVC 1.0.3 has recorded, or those with a name: the latest 20, the newest
    /// first, but for results of more than 500,000 characters.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn former_benchmarks(
        &self,
        name: Option<&str>,
    ) -> Result<Vec<FormerBenchmark>, ProvisionerError> {
        let statement = match name {
            None => Statement::new(
                "SELECT id, job, test_format, result FROM storage_benchmarks \
                 WHERE length(result) <= 500000 ORDER BY id DESC LIMIT 20",
            ),
            Some(name) => Statement::new(
                "SELECT id, job, test_format, result FROM storage_benchmarks \
                 WHERE length(result) <= 500000 AND job = $1 ORDER BY id DESC LIMIT 20",
            )
            .with(name),
        };
        let mut transaction = self.begin().await?;
        Ok(read::former_benchmarks(&transaction.run(statement).await?))
    }

    /// The userdata of a profile; `None` if it has none, or there is no such profile.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn userdata_of(&self, profile: &str) -> Result<Option<String>, ProvisionerError> {
        let words = "SELECT userdata.id AS id, userdata.name AS name, \
                     userdata.userdata AS text FROM profile \
                     JOIN userdata ON userdata.id = profile.userdata WHERE profile.name = $1";
        let found = self.texts_of(Statement::new(words).with(profile)).await?;
        Ok(found.into_iter().next().map(|found| found.text))
    }

    async fn texts_of(&self, statement: Statement) -> Result<Vec<Text>, ProvisionerError> {
        let mut tries = 0;
        loop {
            match self.try_texts(statement.clone()).await {
                Err(error) if self.is_worth_a_try(&error, &mut tries) => {}
                found => return found,
            }
        }
    }

    async fn try_texts(&self, statement: Statement) -> Result<Vec<Text>, ProvisionerError> {
        let rows = self.begin().await?.run(statement).await?;
        let text = |row: usize| match [
            rows.get(row, "id"),
            rows.get(row, "name"),
            rows.get(row, "text"),
        ] {
            [
                Some(SqlValue::Integer(id)),
                Some(SqlValue::Text(name)),
                Some(SqlValue::Text(text)),
            ] => Some(Text { id: *id, name: name.clone(), text: text.clone() }),
            _ => None,
        };
        Ok((0..rows.rows.len()).filter_map(text).collect())
    }

    /// Makes a change and returns the sentence about it.
    ///
    /// # Errors
    /// The refusal, and those of the database. Nothing was done then, unless the error
    /// [says so](DatabaseError::Unknown).
    pub async fn change(
        &self,
        cluster: &Cluster,
        change: &Change,
        mode: Mode,
    ) -> Result<String, ProvisionerError> {
        let mut tries = 0;
        loop {
            match self.try_change(cluster, change, mode).await {
                Err(error) if self.is_worth_a_try(&error, &mut tries) => {}
                done => return done,
            }
        }
    }

    async fn try_change(
        &self,
        cluster: &Cluster,
        change: &Change,
        mode: Mode,
    ) -> Result<String, ProvisionerError> {
        let mut transaction = self.begin().await?;
        let catalog = read::catalog(&mut *transaction).await?;
        let decision = decide(cluster, &catalog, change)?;
        if mode == Mode::DryRun {
            return Ok(decision.message);
        }
        for edit in decision.edits {
            transaction.run(write::statement(edit)).await?;
        }
        transaction.commit().await?;
        Ok(decision.message)
    }

    /// Begins a transaction on tables that are as they should be.
    async fn begin(&self) -> Result<Box<dyn Transaction>, ProvisionerError> {
        if !self.is_ready.load(Ordering::Acquire) {
            self.prepare().await?;
            self.is_ready.store(true, Ordering::Release);
        }
        Ok(self.database.begin().await?)
    }

    async fn prepare(&self) -> Result<(), ProvisionerError> {
        let (mut tries, mut was_refused) = (0, false);
        loop {
            match self.try_prepare().await {
                // Another node was faster, with the same: what it has done is seen now.
                Err(ProvisionerError::Database(
                    DatabaseError::Conflict | DatabaseError::Exists { .. },
                )) if tries < TRIES => tries += 1,
                // Or PVC 1.0.3 was, in the middle. Words that are refused twice are wrong.
                Err(ProvisionerError::Database(DatabaseError::Refused { .. })) if !was_refused => {
                    was_refused = true;
                }
                done => return done,
            }
        }
    }

    async fn try_prepare(&self) -> Result<(), ProvisionerError> {
        let mut transaction = self.database.begin().await?;
        let dialect = self.database.dialect();
        let before = schema::prepare(&mut *transaction, dialect).await?;
        if let Some(before) = before {
            transaction.commit().await?;
            tracing::info!(%before, now = schema::HEAD, "the provisioner's tables were prepared");
        }
        Ok(())
    }

    /// Whether the same may succeed at once.
    fn is_worth_a_try(&self, error: &ProvisionerError, tries: &mut usize) -> bool {
        *tries += 1;
        if *tries > TRIES {
            return false;
        }
        match error {
            ProvisionerError::Database(
                DatabaseError::Conflict
                // By whoever was faster: what is there is seen now.
                | DatabaseError::Exists { .. }
                | DatabaseError::Referred { .. },
            ) => true,
            // Whoever has replaced the database may have replaced it by an empty or an older one.
            ProvisionerError::Database(DatabaseError::Refused { .. }) => {
                self.is_ready.swap(false, Ordering::AcqRel) && *tries == 1
            }
            _ => false,
        }
    }
}
