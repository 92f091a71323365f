//! Between values of the port and those of each database.

use pvc_ports::{DatabaseError, Rows, SqlValue};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgRow, PgTypeInfo, Postgres};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteRow};
use sqlx::{Column, Encode, Row, Type, TypeInfo, ValueRef};

/// An absent value of whatever type PostgreSQL finds that it should have.
struct Untyped;

impl Type<Postgres> for Untyped {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(0))
    }
}

impl Encode<'_, Postgres> for Untyped {
    fn encode_by_ref(&self, _: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Ok(IsNull::Yes)
    }
}

pub fn bind_postgres(
    words: &'static str,
    values: Vec<SqlValue>,
) -> Query<'static, Postgres, PgArguments> {
    let mut query = sqlx::query(words);
    for value in values {
        query = match value {
            SqlValue::Null => query.bind(Untyped),
            SqlValue::Boolean(is) => query.bind(is),
            SqlValue::Integer(number) => query.bind(number),
            SqlValue::Text(text) => query.bind(text),
            SqlValue::Bytes(bytes) => query.bind(bytes),
        };
    }
    query
}

pub fn bind_sqlite(
    words: &'static str,
    values: Vec<SqlValue>,
) -> Query<'static, Sqlite, SqliteArguments> {
    let mut query = sqlx::query(words);
    for value in values {
        query = match value {
            SqlValue::Null => query.bind(None::<String>),
            SqlValue::Boolean(is) => query.bind(is),
            SqlValue::Integer(number) => query.bind(number),
            SqlValue::Text(text) => query.bind(text),
            SqlValue::Bytes(bytes) => query.bind(bytes),
        };
    }
    query
}

/// The rows as the port has them, with `value` for each place.
fn rows<R: Row>(
    found: &[R],
    value: impl Fn(&R, usize) -> Result<SqlValue, DatabaseError>,
) -> Result<Rows, DatabaseError> {
    let Some(first) = found.first() else { return Ok(Rows::default()) };
    let columns: Vec<String> =
        first.columns().iter().map(|column| column.name().to_owned()).collect();
    let row = |row: &R| (0..columns.len()).map(|at| value(row, at)).collect();
    let rows = found.iter().map(row).collect::<Result<_, _>>()?;
    Ok(Rows { columns, rows })
}

fn unreadable(column: &str, kind: &str) -> DatabaseError {
    let why = format!("the column `{column}` has the type {kind}, which is not read here");
    DatabaseError::Refused { why }
}

pub fn rows_of_postgres(found: &[PgRow]) -> Result<Rows, DatabaseError> {
    rows(found, |row, at| {
        let raw = row.try_get_raw(at).map_err(crate::errors::meaning)?;
        if raw.is_null() {
            return Ok(SqlValue::Null);
        }
        let kind = raw.type_info().into_owned();
        let value = match kind.name() {
            "BOOL" => row.try_get(at).map(SqlValue::Boolean),
            "INT2" => row.try_get::<i16, _>(at).map(|number| SqlValue::Integer(number.into())),
            "INT4" => row.try_get::<i32, _>(at).map(|number| SqlValue::Integer(number.into())),
            "INT8" => row.try_get(at).map(SqlValue::Integer),
            "TEXT" | "VARCHAR" | "CHAR" | "NAME" => row.try_get(at).map(SqlValue::Text),
            "BYTEA" => row.try_get(at).map(SqlValue::Bytes),
            other => return Err(unreadable(row.column(at).name(), other)),
        };
        value.map_err(crate::errors::meaning)
    })
}

pub fn rows_of_sqlite(found: &[SqliteRow]) -> Result<Rows, DatabaseError> {
    rows(found, |row, at| {
        let raw = row.try_get_raw(at).map_err(crate::errors::meaning)?;
        if raw.is_null() {
            return Ok(SqlValue::Null);
        }
        let kind = raw.type_info().into_owned();
        let value = match kind.name() {
            "BOOLEAN" | "INTEGER" => row.try_get_unchecked(at).map(SqlValue::Integer),
            "TEXT" => row.try_get_unchecked(at).map(SqlValue::Text),
            "BLOB" => row.try_get_unchecked(at).map(SqlValue::Bytes),
            other => return Err(unreadable(row.column(at).name(), other)),
        };
        value.map_err(crate::errors::meaning)
    })
}
