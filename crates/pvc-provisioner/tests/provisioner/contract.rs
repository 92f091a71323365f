//! A real PostgreSQL, also one that PVC 1.0.3 has filled: at each revision of its schema.

use std::sync::Arc;

use pvc_contracts::postgres_server::{PostgresServer, USER};
use pvc_database::{PostgresDatabase, PostgresOptions};
use pvc_model::provisioner::{Catalog, Change, Class, Recipe, RecipeDisks};
use pvc_ports::{Database, DatabaseError, SqlValue};
use pvc_provisioner::schema::{HEAD, REVISIONS};
use pvc_provisioner::{Mode, Provisioner, ProvisionerError};
use pvc_testkit::FlakyDatabase;

use super::suite::{added, make, ova, run, suite, system_template, words};

/// A server with as many databases as are asked for.
struct Server {
    server: PostgresServer,
    _directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let server = PostgresServer::start(directory.path(), None);
        Server { server, _directory: directory }
    }

    fn database(&self, name: &str) -> Arc<dyn Database> {
        self.server.create_database(name);
        self.open(name)
    }

    fn open(&self, name: &str) -> Arc<dyn Database> {
        Arc::new(PostgresDatabase::new(&PostgresOptions {
            host: self.server.host(),
            port: 5432,
            database: name.to_owned(),
            user: USER.to_owned(),
            password: None,
        }))
    }
}

/// The tables as they were at a revision, by its place in the chain.
fn tables_at(revision: usize) -> Vec<String> {
    let since = |place: usize, text: &'static str| if revision >= place { text } else { "" };
    let ova = since(1, ", ova INTEGER REFERENCES ova (id)");
    let vni = if revision >= 4 { "TEXT" } else { "INTEGER" };
    let needed = since(6, "NOT NULL");
    let mut tables = Vec::new();
    if revision >= 1 {
        tables.push(
            "CREATE TABLE ova (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, ovf TEXT NOT NULL)"
                .to_owned(),
        );
        tables.push(
            "CREATE TABLE ova_volume (id SERIAL PRIMARY KEY, ova INTEGER NOT NULL REFERENCES ova \
             (id), pool TEXT NOT NULL, volume_name TEXT NOT NULL, volume_format TEXT NOT NULL, \
             disk_id TEXT NOT NULL, disk_size_gb INTEGER NOT NULL)"
                .to_owned(),
        );
    }
    let (method, downtime) = (
        since(3, ", migration_method TEXT"),
        since(7, ", migration_max_downtime INTEGER DEFAULT 300"),
    );
    tables.extend([
        format!(
            "CREATE TABLE system_template (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
             vcpu_count INTEGER NOT NULL, vram_mb INTEGER NOT NULL, serial BOOLEAN NOT NULL, \
             vnc BOOLEAN NOT NULL, vnc_bind TEXT, node_limit TEXT, node_selector TEXT, \
             node_autostart BOOLEAN NOT NULL{ova}{method}{downtime})"
        ),
        format!(
            "CREATE TABLE network_template (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
             mac_template TEXT{ova})"
        ),
        format!(
            "CREATE TABLE network (id SERIAL PRIMARY KEY, network_template INTEGER NOT NULL \
             REFERENCES network_template (id), vni {vni} NOT NULL)"
        ),
        format!(
            "CREATE TABLE storage_template (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE{ova})"
        ),
        "CREATE TABLE storage (id SERIAL PRIMARY KEY, storage_template INTEGER NOT NULL \
         REFERENCES storage_template (id), pool TEXT NOT NULL, disk_id TEXT NOT NULL, \
         source_volume TEXT, disk_size_gb INTEGER, mountpoint TEXT, filesystem TEXT, \
         filesystem_args TEXT)"
            .to_owned(),
        "CREATE TABLE userdata (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, userdata TEXT \
         NOT NULL)"
            .to_owned(),
        "CREATE TABLE script (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, script TEXT NOT \
         NULL)"
            .to_owned(),
        format!(
            "CREATE TABLE profile (id SERIAL PRIMARY KEY, name TEXT NOT NULL UNIQUE, \
             system_template INTEGER {needed} REFERENCES system_template (id), \
             network_template INTEGER REFERENCES network_template (id), storage_template INTEGER \
             REFERENCES storage_template (id), userdata INTEGER REFERENCES userdata (id), \
             script INTEGER {needed} REFERENCES script (id), arguments TEXT{ova}{})",
            since(1, ", profile_type TEXT NOT NULL")
        ),
    ]);
    if revision >= 2 {
        tables.push(format!(
            "CREATE TABLE storage_benchmarks (id SERIAL PRIMARY KEY, job TEXT NOT NULL, result \
             TEXT NOT NULL{})",
            since(5, ", test_format INTEGER NOT NULL DEFAULT 0")
        ));
    }
    tables.push(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT \
         alembic_version_pkc PRIMARY KEY (version_num))"
            .to_owned(),
    );
    tables.push(format!("INSERT INTO alembic_version VALUES ('{}')", REVISIONS[revision]));
    tables
}

/// Rows that PVC 1.0.3 and its predecessors have written there.
fn rows_at(revision: usize) -> Vec<String> {
    let kind = if revision >= 1 { ("profile_type, ", "'provisioner', ") } else { ("", "") };
    let mut rows: Vec<String> = [
        "INSERT INTO system_template (name, vcpu_count, vram_mb, serial, vnc, node_selector, \
         node_autostart) VALUES ('old', 1, 1024, true, false, 'None', false)",
        "INSERT INTO network_template (name) VALUES ('old')",
        "INSERT INTO network (network_template, vni) VALUES (1, 1001)",
        "INSERT INTO storage_template (name) VALUES ('old')",
        "INSERT INTO storage (storage_template, pool, disk_id, disk_size_gb, filesystem_args) \
         VALUES (1, 'vms', 'sda', 10, '')",
        "INSERT INTO userdata (name, userdata) VALUES ('old', '#cloud-config')",
        "INSERT INTO script (name, script) VALUES ('old', 'pass')",
    ]
    .map(str::to_owned)
    .into();
    rows.push(format!(
        "INSERT INTO profile (name, {}system_template, network_template, storage_template, \
         userdata, script, arguments) VALUES ('old', {}1, 1, 1, 1, 1, 'a=b|c=d')",
        kind.0, kind.1
    ));
    if revision >= 1 {
        let of_ova = [
            "INSERT INTO ova (name, ovf) VALUES ('box', '<Envelope/>')",
            "INSERT INTO ova_volume (ova, pool, volume_name, volume_format, disk_id, \
             disk_size_gb) VALUES (1, 'vms', 'ova_box_sda', 'vmdk', 'sda', 20)",
            "INSERT INTO system_template (name, vcpu_count, vram_mb, serial, vnc, node_autostart, \
             ova) VALUES ('box', 2, 512, true, false, false, 1)",
            "INSERT INTO profile (name, profile_type, system_template, script, ova, arguments) \
             VALUES ('box', 'ova', 2, 1, 1, '')",
        ];
        rows.extend(of_ova.map(str::to_owned));
    }
    if revision >= 2 {
        rows.push("INSERT INTO storage_benchmarks (job, result) VALUES ('old', '{}')".to_owned());
    }
    rows
}

async fn fill(database: &dyn Database, revision: usize) {
    for statement in tables_at(revision).into_iter().chain(rows_at(revision)) {
        run(database, words(statement)).await;
    }
}

/// Columns and constraints of all tables.
async fn shape(database: &dyn Database) -> Vec<String> {
    let columns = "SELECT CAST(table_name || '.' || column_name || ' ' || data_type || ' ' || \
                   is_nullable || ' ' || COALESCE(column_default, '') AS TEXT) AS text \
                   FROM information_schema.columns WHERE table_schema = 'public'";
    let constraints = "SELECT CAST(CAST(conrelid AS regclass) AS TEXT) || ' ' || \
                       pg_get_constraintdef(oid) AS text FROM pg_constraint \
                       WHERE connamespace = CAST('public' AS regnamespace)";
    let mut shape = Vec::new();
    for query in [columns, constraints] {
        let rows = run(database, words(query)).await;
        shape.extend(rows.rows.into_iter().map(|row| match &row[0] {
            SqlValue::Text(text) => text.clone(),
            other => panic!("{other:?}"),
        }));
    }
    shape.sort();
    shape
}

async fn revision(database: &dyn Database) -> String {
    let rows = run(database, words("SELECT version_num FROM alembic_version")).await;
    match rows.get(0, "version_num") {
        Some(SqlValue::Text(revision)) if rows.rows.len() == 1 => revision.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_keeps_it() {
    let server = Server::start();
    suite(server.database("fresh")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_at_any_revision_is_taken_over_with_what_is_in_it() {
    let server = Server::start();
    let fresh = server.database("fresh");
    Provisioner::new(fresh.clone()).catalog().await.unwrap();
    assert_eq!(revision(&*fresh).await, HEAD, "a new one can be used by PVC 1.0.3");
    let head = shape(&*fresh).await;
    assert_eq!(head.iter().filter(|line| line.contains("PRIMARY KEY")).count(), 12);
    for (place, name) in REVISIONS.into_iter().enumerate() {
        let database = server.database(&format!("at_{name}"));
        fill(&*database, place).await;
        // Two nodes begin with it at once, and another one later.
        let begin = || {
            let provisioner = Provisioner::new(server.open(&format!("at_{name}")));
            tokio::spawn(async move { provisioner.catalog().await })
        };
        let (one, other) = (begin(), begin());
        let kept = one.await.unwrap().unwrap();
        assert_eq!(other.await.unwrap().unwrap(), kept, "{name}");
        assert_eq!(begin().await.unwrap().unwrap(), kept, "{name}");
        assert_eq!(revision(&*database).await, HEAD, "{name}");
        assert_eq!(shape(&*database).await, head, "{name}");
        let system = &kept.system_templates[0];
        assert_eq!((system.vram_mib, &system.node_selector), (1024, &None), "{name}");
        assert_eq!(system.migration_max_downtime, Some(300), "{name}");
        assert_eq!(kept.network_templates[0].nets[0].vni, "1001", "{name}");
        assert_eq!(kept.storage_templates[0].disks[0].size_gib, Some(10), "{name}");
        let profile = &kept.profiles[0];
        assert_eq!(profile.source, "provisioner", "{name}");
        assert_eq!(profile.arguments, ["a=b", "c=d"], "{name}");
        let ovas = usize::from(place >= 1);
        assert_eq!((kept.ovas.len(), kept.profiles.len()), (ovas, 1 + ovas), "{name}");
        let provisioner = Provisioner::new(database);
        if ovas == 1 {
            has_the_packed_image(&kept, name);
            let ovf = provisioner.texts(Class::Ova, Some("box")).await.unwrap();
            assert_eq!(ovf[0].text, "<Envelope/>", "{name}");
        }
        let userdata = provisioner.userdata_of("old").await.unwrap();
        assert_eq!(userdata.as_deref(), Some("#cloud-config"), "{name}");
        let benchmarks = provisioner.former_benchmarks(None).await.unwrap();
        let benchmarks: Vec<_> = benchmarks
            .iter()
            .map(|one| (one.job.as_str(), one.format, one.result.as_str()))
            .collect();
        let old: &[_] = if place >= 2 { &[("old", 0, "{}")] } else { &[] };
        assert_eq!(benchmarks, old, "{name}");
        assert_eq!(provisioner.former_benchmarks(Some("none")).await.unwrap(), [], "{name}");
        make(&provisioner, &system_template("new")).await.unwrap();
        let scripts = provisioner.texts(Class::Script, None).await.unwrap();
        assert_eq!(scripts[0].text, "pass", "{name}");
    }
}

/// Checks that VMs of the OVA are made of the image as it was packed, as PVC 1.0.3 has kept it.
fn has_the_packed_image(kept: &Catalog, at: &str) {
    let recipe = Recipe::find(kept, "box", &[]).unwrap();
    assert_eq!(recipe.ova, Some((1, "box".to_owned())), "{at}");
    assert_eq!((recipe.system.vcpus, recipe.system.ova), (2, Some(1)), "{at}");
    assert_eq!((recipe.nets.1.len(), recipe.script.as_str()), (0, "old"), "{at}");
    let RecipeDisks::Ova(volumes) = &recipe.disks else { panic!("{at}: {:?}", recipe.disks) };
    let volumes: Vec<_> = volumes
        .iter()
        .map(|one| (one.disk_id.as_str(), one.volume.as_str(), one.format.as_str(), one.size_gib))
        .collect();
    assert_eq!(volumes, [("sda", "ova_box_sda", "vmdk", 20)], "{at}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_taken_over_is_not_touched() {
    let server = Server::start();
    let unknown = server.database("unknown");
    fill(&*unknown, 2).await;
    run(&*unknown, words("UPDATE alembic_version SET version_num = 'ffffffffffff'")).await;
    let halves = server.database("halves");
    fill(&*halves, 5).await;
    run(&*halves, words("UPDATE profile SET script = NULL WHERE name = 'old'")).await;
    let unnoted = server.database("unnoted");
    fill(&*unnoted, 7).await;
    run(&*unnoted, words("DELETE FROM alembic_version")).await;
    for (database, refusal) in [
        (&unknown, "is at the revision `ffffffffffff`, which this version does not know"),
        (&halves, "has profiles without a script or a system template (old)"),
        (&unnoted, "is at the revision `none`"),
    ] {
        let before = shape(&**database).await;
        let provisioner = Provisioner::new(database.clone());
        let error = make(&provisioner, &system_template("new")).await.unwrap_err();
        assert!(error.to_string().contains(refusal), "{error}");
        assert!(error.to_string().ends_with("nothing was changed in it"), "{error}");
        assert!(error.hint().is_some());
        assert_eq!(shape(&**database).await, before);
    }
    assert_eq!(revision(&*unknown).await, "ffffffffffff");
    assert_eq!(revision(&*halves).await, REVISIONS[5]);
    // It is looked at again with each request: whoever completes it need not restart anything.
    run(&*halves, words("UPDATE profile SET script = 1")).await;
    make(&Provisioner::new(halves), &system_template("new")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_restarts_is_found_again() {
    let server = Server::start();
    let provisioner = Provisioner::new(server.database("fresh"));
    make(&provisioner, &system_template("one")).await.unwrap();
    server.server.restart();
    let found = provisioner.catalog().await;
    let is_lost = matches!(found, Err(ProvisionerError::Database(_)));
    assert!(is_lost || found.is_ok_and(|kept| kept.system_templates.len() == 1));
    assert_eq!(provisioner.catalog().await.unwrap().system_templates.len(), 1);
}

/// Number of changes after which the server restarts: none of those that add an OVA, one, some, and
/// all of them, so that the commit is what it does not get.
const RESTARTS_AFTER: [usize; 4] = [0, 1, 4, usize::MAX];

#[tokio::test(flavor = "multi_thread")]
async fn of_a_change_in_the_middle_of_which_the_server_restarts_nothing_is_there() {
    let server = Arc::new(Server::start());
    for (number, after) in RESTARTS_AFTER.into_iter().enumerate() {
        let name = format!("restarted_{number}");
        let database = FlakyDatabase::new(server.database(&name));
        let provisioner = Provisioner::new(Arc::new(database.clone()));
        make(&provisioner, &added(Class::Script, "default_ova", "pass")).await.unwrap();
        let before = provisioner.catalog().await.unwrap();
        let (known, new) = ova();
        let add = Change::AddOva(new);

        let restarts = server.clone();
        database.interrupt_after(after, move || restarts.server.restart());
        let error = provisioner.change(&known, &add, Mode::Do).await.unwrap_err();
        assert!(!database.has_interruption(), "it has restarted: {error}");
        is_said_to_be_away(&error, after == usize::MAX);
        // By who asks it for the first time, over a connection of its own.
        let found = Provisioner::new(server.open(&name)).catalog().await.unwrap();
        assert_eq!(found, before, "nothing was done of it");

        // At once, over new connections in the place of those that were lost.
        provisioner.change(&known, &add, Mode::Do).await.unwrap();
        let kept = provisioner.catalog().await.unwrap();
        let volumes: Vec<usize> = kept.ovas.iter().map(|ova| ova.volumes.len()).collect();
        assert_eq!((volumes, kept.profiles.len()), (vec![2], 1), "it was done once");
    }
}

/// Checks that the error says that the database is away, or, at the commit, that nobody knows what
/// became of it.
fn is_said_to_be_away(error: &ProvisionerError, at_its_commit: bool) {
    let (is_right, words) = match error {
        ProvisionerError::Database(DatabaseError::Unreachable { .. }) => {
            (!at_its_commit, "patronictl list")
        }
        ProvisionerError::Database(DatabaseError::Unknown { .. }) => {
            (at_its_commit, "look whether it is so")
        }
        _ => (false, ""),
    };
    assert!(is_right, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains(words)), "{error:?}");
}
