//! Zones in the database of PowerDNS (gpgsql): what is decided of them is read and done here, each
//! zone in a transaction of its own.

use std::collections::BTreeSet;

use pvc_model::guest_network::dns::{
    ACCOUNT, HostAddress, NewRow, Row, Zone, ZoneRow, Zones, is_kind_of_ours,
};
use pvc_ports::{Database, DatabaseError, Rows, SqlDialect, SqlValue, Statement, Transaction};

/// Rows that one statement brings.
const PAGE: usize = 5_000;

/// The most rows of a zone that are read.
const MOST_ROWS: usize = 100_000;

/// Reason why a zone is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ZoneError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(
        "the DNS database has no tables that are PowerDNS's: load its schema there \
         (`/usr/share/pdns-backend-pgsql/schema/schema.pgsql.sql`)"
    )]
    NoTables(#[source] DatabaseError),
    #[error(
        "the tables of the DNS database are older than PowerDNS 4.7 and are not PVC's to change: \
         as their owner, add the columns `options` and `catalog`, both of type `text`, to `domains`"
    )]
    OldTables(#[source] DatabaseError),
    #[error(
        "the DNS database has a zone `{name}` that is not PVC's (its `account` is `{account}`), \
         and the names of the network with that domain are not in it"
    )]
    NotOurs { name: String, account: String },
    #[error(
        "the zone `{name}` is no network's any more, and stays in the DNS database as it has \
         records that are not PVC's ({kinds}): remove them, or make it yours with another `account`"
    )]
    Kept { name: String, kinds: String },
    #[error("the zone `{name}` is no network's any more, and stays in the DNS database")]
    Left { name: String, source: DatabaseError },
    #[error("the zone `{name}` has more than {MOST_ROWS} rows in the DNS database")]
    TooMany { name: String },
}

/// Makes sure that the tables are those that PowerDNS asks for. Those of PVC 1.0.3 may lack columns
/// that PowerDNS has since 4.7.
pub async fn check_tables(database: &dyn Database) -> Result<(), ZoneError> {
    let tables = "SELECT id, name, type, account FROM domains WHERE id = 0";
    if let Some(refusal) = refusal(database, tables).await? {
        return Err(ZoneError::NoTables(refusal));
    }
    let columns = "SELECT options, catalog FROM domains WHERE id = 0";
    if refusal(database, columns).await?.is_some() {
        add_columns(database).await?;
        tracing::info!("the tables of the DNS database have the columns of PowerDNS 4.7 now");
    }
    Ok(())
}

/// Refusal of a statement that only reads; `None` if the database takes it.
async fn refusal(
    database: &dyn Database,
    words: &'static str,
) -> Result<Option<DatabaseError>, DatabaseError> {
    // One that takes no transaction at all has said nothing of the statement.
    let mut transaction = database.begin().await?;
    match transaction.run(Statement::new(words)).await {
        Ok(_) => Ok(None),
        Err(refused @ DatabaseError::Refused { .. }) => Ok(Some(refused)),
        Err(error) => Err(error),
    }
}

async fn add_columns(database: &dyn Database) -> Result<(), ZoneError> {
    let words = match database.dialect() {
        SqlDialect::PostgreSql => [
            "ALTER TABLE domains ADD COLUMN IF NOT EXISTS options TEXT DEFAULT NULL",
            "ALTER TABLE domains ADD COLUMN IF NOT EXISTS catalog TEXT DEFAULT NULL",
        ],
        SqlDialect::Sqlite => [
            "ALTER TABLE domains ADD COLUMN options TEXT DEFAULT NULL",
            "ALTER TABLE domains ADD COLUMN catalog TEXT DEFAULT NULL",
        ],
    };
    let mut transaction = database.begin().await?;
    for words in words {
        transaction.run(Statement::new(words)).await.map_err(|error| match error {
            refused @ DatabaseError::Refused { .. } => ZoneError::OldTables(refused),
            other => other.into(),
        })?;
    }
    Ok(transaction.commit().await?)
}

/// Finds the zones that PVC has made and no network has any more.
pub async fn find_left(database: &dyn Database, zones: &Zones) -> Result<Vec<ZoneRow>, ZoneError> {
    let mut transaction = database.begin().await?;
    let there = zone_rows(transaction.as_mut()).await?;
    Ok(zones.without_network(&there).into_iter().cloned().collect())
}

/// Removes such a zone, unless somebody has put records of other kinds than PVC's there.
pub async fn remove_left(database: &dyn Database, zone: &ZoneRow) -> Result<(), ZoneError> {
    let (name, failed) = (zone.name.clone(), |error| left(zone, error));
    let mut transaction = database.begin().await?;
    let words = "SELECT id FROM domains WHERE id = $1 AND account = $2";
    let ours = Statement::new(words).with(zone.id).with(ACCOUNT);
    if transaction.run(ours).await.map_err(failed)?.rows.is_empty() {
        // Somebody has just taken it.
        return Ok(());
    }
    let words = "SELECT type, COUNT(*) AS rows_there FROM records WHERE domain_id = $1 \
                 GROUP BY type ORDER BY type";
    let found = transaction.run(Statement::new(words).with(zone.id)).await.map_err(failed)?;
    let kinds = || (0..found.rows.len()).map(|at| text(&found, at, "type"));
    // PowerDNS's own tools mark names between others with rows of no kind.
    let others: Vec<String> =
        kinds().filter(|kind| !kind.is_empty() && !is_kind_of_ours(kind)).collect();
    if !others.is_empty() {
        return Err(ZoneError::Kept { name, kinds: others.join(", ") });
    }
    for words in ["DELETE FROM records WHERE domain_id = $1", "DELETE FROM domains WHERE id = $1"] {
        transaction.run(Statement::new(words).with(zone.id)).await.map_err(failed)?;
    }
    transaction.commit().await.map_err(failed)?;
    let rows: i64 = (0..found.rows.len()).map(|at| number(&found, at, "rows_there")).sum();
    tracing::warn!(
        zone = zone.name,
        rows,
        "a zone that no network has any more was removed from the DNS database"
    );
    Ok(())
}

/// Error of a zone that is to go; what is about the whole database stays that.
fn left(zone: &ZoneRow, error: DatabaseError) -> ZoneError {
    match error {
        source @ (DatabaseError::Refused { .. }
        | DatabaseError::Referred { .. }
        | DatabaseError::Exists { .. }) => ZoneError::Left { name: zone.name.clone(), source },
        error => error.into(),
    }
}

async fn zone_rows(transaction: &mut dyn Transaction) -> Result<Vec<ZoneRow>, ZoneError> {
    let mut all: Vec<ZoneRow> = Vec::new();
    loop {
        let words = "SELECT id, name, account FROM domains WHERE id > $1 ORDER BY id LIMIT 5000";
        let last = all.last().map_or(0, |zone| zone.id);
        let found = transaction.run(Statement::new(words).with(last)).await?;
        all.extend((0..found.rows.len()).map(|at| ZoneRow {
            id: number(&found, at, "id"),
            name: text(&found, at, "name"),
            account: text(&found, at, "account"),
        }));
        if found.rows.len() < PAGE || all.len() >= MOST_ROWS {
            return Ok(all);
        }
    }
}

/// Makes the zone as it should be, with these hosts; with those that it has if they are not known.
/// Returns whether anything has changed.
pub async fn set(
    database: &dyn Database,
    zone: &Zone,
    hosts: Option<&BTreeSet<HostAddress>>,
) -> Result<bool, ZoneError> {
    let mut transaction = database.begin().await?;
    let id = zone_id(transaction.as_mut(), zone).await?;
    let rows = rows_of(transaction.as_mut(), zone, id).await?;
    let plan = zone.plan(hosts, &rows);
    if plan.is_empty() {
        return Ok(false);
    }
    for id in &plan.remove {
        let words = "DELETE FROM records WHERE id = $1";
        transaction.run(Statement::new(words).with(*id)).await?;
    }
    for row in &plan.add {
        transaction.run(insertion(id, row)).await?;
    }
    if let Some((id, content)) = &plan.restart {
        let words = "UPDATE records SET content = $1 WHERE id = $2";
        transaction.run(Statement::new(words).with(content.as_str()).with(*id)).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// The number of the zone, which is made if it is not there.
async fn zone_id(transaction: &mut dyn Transaction, zone: &Zone) -> Result<i64, ZoneError> {
    let words = "SELECT id, account FROM domains WHERE name = $1";
    let found = transaction.run(Statement::new(words).with(zone.name.as_str())).await?;
    if !found.rows.is_empty() {
        let account = text(&found, 0, "account");
        return match account == ACCOUNT {
            true => Ok(number(&found, 0, "id")),
            false => Err(ZoneError::NotOurs { name: zone.name.clone(), account }),
        };
    }
    let words = "INSERT INTO domains (name, type, account, notified_serial) \
                 VALUES ($1, 'MASTER', $2, 0) RETURNING id";
    let new = Statement::new(words).with(zone.name.as_str()).with(ACCOUNT);
    Ok(number(&transaction.run(new).await?, 0, "id"))
}

async fn rows_of(
    transaction: &mut dyn Transaction,
    zone: &Zone,
    id: i64,
) -> Result<Vec<Row>, ZoneError> {
    let mut all: Vec<Row> = Vec::new();
    loop {
        let words = "SELECT id, name, type, content FROM records \
                     WHERE domain_id = $1 AND id > $2 ORDER BY id LIMIT 5000";
        let last = all.last().map_or(0, |row| row.id);
        let found = transaction.run(Statement::new(words).with(id).with(last)).await?;
        all.extend((0..found.rows.len()).map(|at| Row {
            id: number(&found, at, "id"),
            name: text(&found, at, "name"),
            kind: text(&found, at, "type"),
            content: text(&found, at, "content"),
        }));
        if found.rows.len() < PAGE {
            return Ok(all);
        }
        if all.len() >= MOST_ROWS {
            return Err(ZoneError::TooMany { name: zone.name.clone() });
        }
    }
}

fn insertion(zone: i64, row: &NewRow) -> Statement {
    let words = "INSERT INTO records (domain_id, name, type, content, ttl, prio, disabled, auth) \
                 VALUES ($1, $2, $3, $4, $5, 0, FALSE, TRUE)";
    let new = Statement::new(words).with(zone).with(row.name.as_str()).with(row.kind);
    new.with(row.content.as_str()).with(row.ttl)
}

/// Text of a column; nothing where it has none.
fn text(rows: &Rows, at: usize, column: &str) -> String {
    match rows.get(at, column) {
        Some(SqlValue::Text(text)) => text.clone(),
        _ => String::new(),
    }
}

fn number(rows: &Rows, at: usize, column: &str) -> i64 {
    match rows.get(at, column) {
        Some(SqlValue::Integer(number)) => *number,
        _ => 0,
    }
}
