//! A database that does not do what it is asked.

use std::sync::Arc;

use pvc_database::SqliteDatabase;
use pvc_model::provisioner::{Change, Class};
use pvc_ports::DatabaseError;
use pvc_provisioner::{Mode, Provisioner, ProvisionerError};
use pvc_testkit::FlakyDatabase;

use super::suite::{added, make, ova, run, system_template, words};

fn flaky() -> (FlakyDatabase, Provisioner) {
    let database = FlakyDatabase::new(Arc::new(SqliteDatabase::in_memory()));
    (database.clone(), Provisioner::new(Arc::new(database)))
}

fn is_unreachable<T>(done: Result<T, ProvisionerError>) -> bool {
    matches!(done, Err(ProvisionerError::Database(DatabaseError::Unreachable { .. })))
}

#[tokio::test]
async fn it_is_used_as_soon_as_it_can_be_reached() {
    let (database, provisioner) = flaky();
    database.set_dead(true);
    assert!(is_unreachable(provisioner.catalog().await));
    assert!(is_unreachable(make(&provisioner, &system_template("one")).await));
    database.set_dead(false);
    make(&provisioner, &system_template("one")).await.unwrap();
    database.set_dead(true);
    assert!(is_unreachable(provisioner.userdata_of("web").await));
    database.set_dead(false);
    assert_eq!(provisioner.catalog().await.unwrap().system_templates.len(), 1);
}

#[tokio::test]
async fn a_change_is_decided_again_when_another_was_faster() {
    let (database, provisioner) = flaky();
    provisioner.catalog().await.unwrap();
    database.set_conflicts(3);
    make(&provisioner, &system_template("one")).await.unwrap();
    database.set_conflicts(1000);
    let error = make(&provisioner, &system_template("two")).await.unwrap_err();
    assert!(matches!(error, ProvisionerError::Database(DatabaseError::Conflict)), "{error}");
    database.set_conflicts(0);
    assert_eq!(provisioner.catalog().await.unwrap().system_templates.len(), 1);
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_again() {
    let (database, provisioner) = flaky();
    provisioner.catalog().await.unwrap();
    database.set_lost_answers(1);
    let error = make(&provisioner, &system_template("one")).await.unwrap_err();
    assert!(matches!(error, ProvisionerError::Database(DatabaseError::Unknown { .. })), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("look whether it is so")));
    assert_eq!(provisioner.catalog().await.unwrap().system_templates.len(), 1);
}

#[tokio::test]
async fn of_a_change_whose_database_dies_in_the_middle_nothing_is_there() {
    let (database, provisioner) = flaky();
    make(&provisioner, &added(Class::Script, "default_ova", "pass")).await.unwrap();
    let before = provisioner.catalog().await.unwrap();
    let (known, new) = ova();
    let add = Change::AddOva(new);
    // Before the first of its rows, between two of them, and behind the last.
    for after in [0, 1, 4, usize::MAX] {
        let dies = database.clone();
        database.interrupt_after(after, move || dies.set_dead(true));
        assert!(is_unreachable(provisioner.change(&known, &add, Mode::Do).await), "{after}");
        assert!(!database.has_interruption(), "{after}");
        database.set_dead(false);
        assert_eq!(provisioner.catalog().await.unwrap(), before, "{after}");
    }
    provisioner.change(&known, &add, Mode::Do).await.unwrap();
    assert_eq!(provisioner.catalog().await.unwrap().ovas.len(), 1);
}

#[tokio::test]
async fn tables_that_are_gone_while_it_runs_are_made_anew() {
    let (database, provisioner) = flaky();
    make(&provisioner, &system_template("one")).await.unwrap();
    for table in [
        "alembic_version",
        "profile",
        "script",
        "userdata",
        "storage",
        "storage_template",
        "network",
        "network_template",
        "system_template",
        "storage_benchmarks",
        "ova_volume",
        "ova",
    ] {
        run(&database, words(format!("DROP TABLE {table}"))).await;
    }
    assert!(provisioner.catalog().await.unwrap().system_templates.is_empty());
    make(&provisioner, &system_template("one")).await.unwrap();
}

/// Alembic makes its table before its first migration, which may have failed.
#[tokio::test]
async fn an_empty_table_of_revisions_is_no_obstacle_to_the_first_tables() {
    let (database, provisioner) = flaky();
    let version = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)";
    run(&database, words(version.to_owned())).await;
    make(&provisioner, &system_template("one")).await.unwrap();
    let rows = run(&database, words("SELECT version_num FROM alembic_version")).await;
    assert_eq!(rows.rows.len(), 1);
}
