//! The tables, as PVC 1.0.3 has them.
//!
//! Its migrations are Alembic's, which notes the last one in the table `alembic_version`. A
//! database at any of them is brought to the last one of PVC 1.0.3, and a new one is made there, so
//! that both versions can use it: nothing is added to it here.

use pvc_ports::{DatabaseError, SqlDialect, Statement, Transaction};

use crate::provisioner::ProvisionerError;

/// The migrations of PVC 1.0.3, in their order.
pub const REVISIONS: [&str; 8] = [
    "2d1daa722a0a",
    "88c8514684f7",
    "3bc6117ea44d",
    "3efe890e1d87",
    "bae4d5a77c74",
    "5c2109dbbeae",
    "88fa0d88a9f8",
    HEAD,
];

/// The last migration of PVC 1.0.3.
pub const HEAD: &str = "977e7b4d3497";

/// Words that only lock the migration: two nodes may begin it at once. The number is ours.
const LOCK: &str = "SELECT 1 AS one FROM pg_advisory_xact_lock(7083497)";

/// Table that a database of the provisioner always had: without it there are none.
const FIRST_TABLE: &str = "system_template";

/// Brings the tables to [`HEAD`], in a transaction that its owner commits. Returns the revision
/// that they were at, if they were not there yet.
///
/// # Errors
/// [`UnknownRevision`](ProvisionerError::UnknownRevision) and
/// [`Unfinished`](ProvisionerError::Unfinished), before anything is changed.
pub async fn prepare(
    transaction: &mut dyn Transaction,
    dialect: SqlDialect,
) -> Result<Option<String>, ProvisionerError> {
    if dialect == SqlDialect::PostgreSql {
        transaction.run(Statement::new(LOCK)).await?;
    }
    let tables = tables(transaction, dialect).await?;
    let is_noted = tables.iter().any(|table| table == "alembic_version");
    let has_tables = tables.iter().any(|table| table == FIRST_TABLE);
    let revision = match is_noted {
        true => texts(transaction, "SELECT version_num AS name FROM alembic_version").await?,
        false => Vec::new(),
    };
    match (&revision[..], has_tables) {
        ([], false) => create(transaction, dialect).await.map(|()| Some("nothing".to_owned())),
        ([], true) => Err(ProvisionerError::UnknownRevision { found: "none".to_owned() }),
        ([revision], true) if revision == HEAD => Ok(None),
        ([revision], true) => {
            let known = REVISIONS.iter().position(|known| known == revision);
            let known = known.filter(|_| dialect == SqlDialect::PostgreSql);
            let Some(known) = known else {
                return Err(ProvisionerError::UnknownRevision { found: revision.clone() });
            };
            migrate(transaction, known).await?;
            Ok(Some(revision.clone()))
        }
        (noted, false) => {
            let found = format!("{}, without its tables", noted.join(", "));
            Err(ProvisionerError::UnknownRevision { found })
        }
        (several, true) => Err(ProvisionerError::UnknownRevision { found: several.join(", ") }),
    }
}

/// Names of the tables that there are.
async fn tables(
    transaction: &mut dyn Transaction,
    dialect: SqlDialect,
) -> Result<Vec<String>, DatabaseError> {
    let words = match dialect {
        SqlDialect::PostgreSql => {
            "SELECT CAST(tablename AS TEXT) AS name FROM pg_catalog.pg_tables \
             WHERE schemaname = current_schema()"
        }
        SqlDialect::Sqlite => "SELECT name FROM sqlite_master WHERE type = 'table'",
    };
    texts(transaction, words).await
}

/// The column `name` of what a statement brings.
async fn texts(
    transaction: &mut dyn Transaction,
    words: &'static str,
) -> Result<Vec<String>, DatabaseError> {
    let rows = transaction.run(Statement::new(words)).await?;
    let text = |row| match rows.get(row, "name") {
        Some(pvc_ports::SqlValue::Text(text)) => Some(text.clone()),
        _ => None,
    };
    Ok((0..rows.rows.len()).filter_map(text).collect())
}

async fn create(
    transaction: &mut dyn Transaction,
    dialect: SqlDialect,
) -> Result<(), ProvisionerError> {
    let tables = match dialect {
        SqlDialect::PostgreSql => POSTGRES,
        SqlDialect::Sqlite => SQLITE,
    };
    // Alembic makes it before its first migration, which may have failed.
    let version = "CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL, \
                   CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))";
    for words in tables {
        transaction.run(Statement::new(words)).await?;
    }
    transaction.run(Statement::new(version)).await?;
    let note = "INSERT INTO alembic_version (version_num) VALUES ($1)";
    transaction.run(Statement::new(note).with(HEAD)).await?;
    Ok(())
}

/// Runs the migrations behind the one with this place among [`REVISIONS`].
async fn migrate(transaction: &mut dyn Transaction, from: usize) -> Result<(), ProvisionerError> {
    // Later ones cannot have such rows: the column of the script may not be empty since.
    let half = "SELECT name FROM profile WHERE script IS NULL OR system_template IS NULL";
    if from < REVISIONS.iter().position(|revision| *revision == FORBIDS_HALF).unwrap_or(0) {
        let profiles = texts(transaction, half).await?;
        if !profiles.is_empty() {
            return Err(ProvisionerError::Unfinished { profiles });
        }
    }
    for migration in &MIGRATIONS[from..] {
        for words in *migration {
            transaction.run(Statement::new(words)).await?;
        }
    }
    let note = "UPDATE alembic_version SET version_num = $1";
    transaction.run(Statement::new(note).with(HEAD)).await?;
    Ok(())
}

/// Migration since which no profile is without a script or a system template.
const FORBIDS_HALF: &str = "88fa0d88a9f8";

/// Statements of each migration but the first, in the order of [`REVISIONS`]. What is there already
/// is left as it is.
const MIGRATIONS: [&[&str]; 7] = [
    &[
        "CREATE TABLE IF NOT EXISTS ova (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
         ovf TEXT NOT NULL)",
        "CREATE TABLE IF NOT EXISTS ova_volume (id SERIAL PRIMARY KEY, \
         ova INTEGER NOT NULL REFERENCES ova (id), pool TEXT NOT NULL, \
         volume_name TEXT NOT NULL, volume_format TEXT NOT NULL, disk_id TEXT NOT NULL, \
         disk_size_gb INTEGER NOT NULL)",
        "ALTER TABLE system_template ADD COLUMN IF NOT EXISTS ova INTEGER REFERENCES ova (id)",
        "ALTER TABLE network_template ADD COLUMN IF NOT EXISTS ova INTEGER REFERENCES ova (id)",
        "ALTER TABLE storage_template ADD COLUMN IF NOT EXISTS ova INTEGER REFERENCES ova (id)",
        "ALTER TABLE profile ADD COLUMN IF NOT EXISTS ova INTEGER REFERENCES ova (id)",
        // The profiles that there are have no other source.
        "ALTER TABLE profile ADD COLUMN IF NOT EXISTS profile_type TEXT NOT NULL \
         DEFAULT 'provisioner'",
        "ALTER TABLE profile ALTER COLUMN profile_type DROP DEFAULT",
    ],
    &["CREATE TABLE IF NOT EXISTS storage_benchmarks (id SERIAL PRIMARY KEY, job TEXT NOT NULL, \
       result TEXT NOT NULL)"],
    &["ALTER TABLE system_template ADD COLUMN IF NOT EXISTS migration_method TEXT"],
    &["ALTER TABLE network ALTER COLUMN vni TYPE TEXT USING CAST(vni AS TEXT)"],
    &["ALTER TABLE storage_benchmarks ADD COLUMN IF NOT EXISTS test_format INTEGER NOT NULL \
       DEFAULT 0"],
    &[
        "ALTER TABLE profile ALTER COLUMN system_template SET NOT NULL",
        "ALTER TABLE profile ALTER COLUMN script SET NOT NULL",
    ],
    &["ALTER TABLE system_template ADD COLUMN IF NOT EXISTS migration_max_downtime INTEGER \
       DEFAULT 300"],
];

/// The tables, with `$id` for a number that the database makes.
macro_rules! tables {
    ($id:literal) => {
        [
            concat!(
                "CREATE TABLE ova (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ovf TEXT NOT NULL)"
            ),
            concat!(
                "CREATE TABLE ova_volume (id ",
                $id,
                ", ",
                "ova INTEGER NOT NULL REFERENCES ova (id), pool TEXT NOT NULL, ",
                "volume_name TEXT NOT NULL, volume_format TEXT NOT NULL, ",
                "disk_id TEXT NOT NULL, disk_size_gb INTEGER NOT NULL)"
            ),
            concat!(
                "CREATE TABLE system_template (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ",
                "vcpu_count INTEGER NOT NULL, vram_mb INTEGER NOT NULL, ",
                "serial BOOLEAN NOT NULL, vnc BOOLEAN NOT NULL, vnc_bind TEXT, ",
                "node_limit TEXT, node_selector TEXT, node_autostart BOOLEAN NOT NULL, ",
                "migration_method TEXT, migration_max_downtime INTEGER DEFAULT 300, ",
                "ova INTEGER REFERENCES ova (id))"
            ),
            concat!(
                "CREATE TABLE network_template (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ",
                "mac_template TEXT, ova INTEGER REFERENCES ova (id))"
            ),
            concat!(
                "CREATE TABLE network (id ",
                $id,
                ", ",
                "network_template INTEGER NOT NULL REFERENCES network_template (id), ",
                "vni TEXT NOT NULL)"
            ),
            concat!(
                "CREATE TABLE storage_template (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ",
                "ova INTEGER REFERENCES ova (id))"
            ),
            concat!(
                "CREATE TABLE storage (id ",
                $id,
                ", ",
                "storage_template INTEGER NOT NULL REFERENCES storage_template (id), ",
                "pool TEXT NOT NULL, disk_id TEXT NOT NULL, source_volume TEXT, ",
                "disk_size_gb INTEGER, mountpoint TEXT, filesystem TEXT, filesystem_args TEXT)"
            ),
            concat!(
                "CREATE TABLE userdata (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ",
                "userdata TEXT NOT NULL)"
            ),
            concat!(
                "CREATE TABLE script (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ",
                "script TEXT NOT NULL)"
            ),
            concat!(
                "CREATE TABLE profile (id ",
                $id,
                ", name TEXT NOT NULL UNIQUE, ",
                "profile_type TEXT NOT NULL, ",
                "system_template INTEGER NOT NULL REFERENCES system_template (id), ",
                "network_template INTEGER REFERENCES network_template (id), ",
                "storage_template INTEGER REFERENCES storage_template (id), ",
                "userdata INTEGER REFERENCES userdata (id), ",
                "script INTEGER NOT NULL REFERENCES script (id), ",
                "ova INTEGER REFERENCES ova (id), arguments TEXT)"
            ),
            concat!(
                "CREATE TABLE storage_benchmarks (id ",
                $id,
                ", job TEXT NOT NULL, ",
                "test_format INTEGER NOT NULL DEFAULT 0, result TEXT NOT NULL)"
            ),
        ]
    };
}

const POSTGRES: [&str; 11] = tables!("SERIAL PRIMARY KEY");
const SQLITE: [&str; 11] = tables!("INTEGER PRIMARY KEY AUTOINCREMENT");
