//! On one machine.

use std::path::Path;
use std::sync::Arc;

use pvc_database::SqliteDatabase;
use pvc_ports::Database;
use pvc_provisioner::{Provisioner, ProvisionerError};

use super::suite::{make, run, suite, system_template, words};

#[tokio::test(flavor = "multi_thread")]
async fn it_is_kept_in_memory() {
    suite(Arc::new(SqliteDatabase::in_memory())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_kept_in_a_file_and_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let open = || in_file(&directory.path().join("provisioner.sqlite"));
    suite(open()).await;
    let kept = Provisioner::new(open()).catalog().await.unwrap();
    assert_eq!(kept.profiles.len(), 1);
}

fn in_file(path: &Path) -> Arc<dyn Database> {
    Arc::new(SqliteDatabase::in_file(path))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_programs_that_begin_with_the_same_file_make_its_tables_once() {
    for _ in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("provisioner.sqlite");
        let begin = |name: &'static str| {
            let provisioner = Provisioner::new(in_file(&path));
            tokio::spawn(async move { make(&provisioner, &system_template(name)).await })
        };
        let (one, other) = (begin("one"), begin("other"));
        one.await.unwrap().unwrap();
        other.await.unwrap().unwrap();
        let kept = Provisioner::new(in_file(&path)).catalog().await.unwrap();
        assert_eq!(kept.system_templates.len(), 2);
    }
}

#[tokio::test]
async fn a_file_of_a_later_version_is_left_alone() {
    let database: Arc<dyn Database> = Arc::new(SqliteDatabase::in_memory());
    Provisioner::new(database.clone()).catalog().await.unwrap();
    run(&*database, words("UPDATE alembic_version SET version_num = 'fromthefuture'")).await;
    let provisioner = Provisioner::new(database.clone());
    let error = make(&provisioner, &system_template("one")).await.unwrap_err();
    let ProvisionerError::UnknownRevision { found } = &error else { panic!("{error}") };
    assert_eq!(found, "fromthefuture");
    assert!(error.hint().is_some_and(|hint| hint.contains("977e7b4d3497")));
    let rows = run(&*database, words("SELECT id FROM system_template")).await;
    assert!(rows.rows.is_empty());
}
