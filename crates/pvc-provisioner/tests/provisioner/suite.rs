//! The same for every database.

use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::network::NetworkRecord;
use pvc_model::provisioner::{
    Catalog, Change, Class, NewDisk, NewOva, NewProfile, OVA, OvaVolume, PROVISIONER,
    ProfileFields, ProvisionerRefusal, SystemTemplateFields,
};
use pvc_model::storage::{PoolName, PoolRecord};
use pvc_ports::{Database, Rows, Statement};
use pvc_provisioner::{Mode, Provisioner, ProvisionerError};

/// A cluster with one pool.
pub fn cluster() -> Cluster {
    let (name, text) = (PoolName::new("vms"), String::new);
    let pool = PoolRecord { name: name.clone(), pgs: text(), tier: text(), stats: Arc::from("") };
    let mut cluster = Cluster::default();
    cluster.pools.insert(name, Arc::new(pool));
    cluster
}

pub async fn make(provisioner: &Provisioner, change: &Change) -> Result<String, ProvisionerError> {
    provisioner.change(&cluster(), change, Mode::Do).await
}

#[track_caller]
pub fn refusal<T: std::fmt::Debug>(done: Result<T, ProvisionerError>) -> ProvisionerRefusal {
    match done {
        Err(ProvisionerError::Refused(refusal)) => refusal,
        other => panic!("it is refused: {other:?}"),
    }
}

/// Statements that are made while a test runs.
pub fn words(words: impl Into<String>) -> Statement {
    Statement::new(Box::leak(words.into().into_boxed_str()))
}

/// Runs one statement as a transaction of its own.
pub async fn run(database: &dyn Database, statement: Statement) -> Rows {
    let mut transaction = database.begin().await.unwrap();
    let rows = transaction.run(statement).await.unwrap();
    transaction.commit().await.unwrap();
    rows
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

pub fn system_template(name: &str) -> Change {
    let fields = SystemTemplateFields {
        vcpus: Some(2),
        vram_mib: Some(2048),
        serial: Some(true),
        node_selector: text("mem"),
        ..SystemTemplateFields::default()
    };
    Change::AddSystemTemplate { name: name.to_owned(), fields }
}

pub fn added(class: Class, name: &str, body: &str) -> Change {
    Change::AddText { class, name: name.to_owned(), text: body.to_owned() }
}

/// A profile `web` with all that it consists of.
fn changes() -> Vec<Change> {
    let name = || "web".to_owned();
    let net = |vni: &str, permit_duplicate| Change::AddNet {
        template: name(),
        vni: vni.to_owned(),
        permit_duplicate,
    };
    let disk = |disk_id: &str, size_gib| NewDisk {
        disk_id: disk_id.to_owned(),
        pool: "vms".to_owned(),
        size_gib: Some(size_gib),
        filesystem: text("ext4"),
        filesystem_args: vec!["-L=root".to_owned()],
        ..NewDisk::default()
    };
    let fields = ProfileFields {
        system_template: text("web"),
        network_template: text("web"),
        storage_template: text("web"),
        userdata: text("web"),
        script: text("web"),
        arguments: Some(vec!["release=bookworm".to_owned(), "packages=a,b".to_owned()]),
    };
    let (source, ova) = (PROVISIONER.to_owned(), None);
    vec![
        system_template("web"),
        Change::AddNetworkTemplate { name: name(), mac_template: text("{prefix}:{vmid}") },
        net("1002", false),
        net("1001", false),
        net("1001", true),
        Change::AddStorageTemplate { name: name() },
        Change::AddDisk { template: name(), disk: disk("sdb", 20) },
        Change::AddDisk { template: name(), disk: disk("sda", 10) },
        added(Class::Userdata, "web", "#cloud-config\n# ü \u{1f600}\n'; DROP TABLE profile; --\n"),
        added(Class::Script, "web", "def main():\n\treturn \"\\0\"\n"),
        Change::AddProfile(NewProfile { name: name(), source, fields, ova }),
    ]
}

/// Runs the whole suite on a database with nothing in it.
pub async fn suite(database: Arc<dyn Database>) {
    let provisioner = Provisioner::new(database.clone());
    assert_eq!(provisioner.catalog().await.unwrap(), Catalog::default());
    for change in changes() {
        // What is only decided leaves nothing behind, and says what the change says.
        let before = provisioner.catalog().await.unwrap();
        let tried = provisioner.change(&cluster(), &change, Mode::DryRun).await.unwrap();
        assert_eq!(provisioner.catalog().await.unwrap(), before, "{change:?}");
        assert_eq!(make(&provisioner, &change).await.unwrap(), tried);
    }
    is_as_it_was_made(&provisioner).await;
    // Another daemon, which finds the tables.
    is_as_it_was_made(&Provisioner::new(database.clone())).await;
    what_is_changed_is_changed_and_the_rest_stays(&provisioner).await;
    what_is_used_stays_and_what_is_not_goes(&provisioner).await;
    an_ova_comes_and_goes_with_all_that_is_of_it(&provisioner).await;
    one_of_two_at_once_gets_the_name(&database).await;
    a_template_that_is_used_at_the_same_moment_stays(&database).await;
}

async fn is_as_it_was_made(provisioner: &Provisioner) {
    let kept = provisioner.catalog().await.unwrap();
    let system = &kept.system_templates[0];
    assert_eq!((system.name.as_str(), system.vcpus, system.vram_mib), ("web", 2, 2048));
    assert!(system.serial && !system.vnc && !system.node_autostart, "{system:?}");
    assert_eq!(system.node_selector.as_deref(), Some("mem"));
    assert_eq!((system.migration_max_downtime, &system.node_limit), (Some(300), &None));
    let vnis: Vec<&str> =
        kept.network_templates[0].nets.iter().map(|net| net.vni.as_str()).collect();
    assert_eq!(vnis, ["1002", "1001", "1001"], "in the order in which they were added");
    let disks: Vec<_> = kept.storage_templates[0]
        .disks
        .iter()
        .map(|disk| (disk.disk_id.as_str(), disk.size_gib, disk.filesystem_args.as_deref()))
        .collect();
    let args = Some("-L=root");
    assert_eq!(disks, [("sda", Some(10), args), ("sdb", Some(20), args)], "by their names");
    let profile = &kept.profiles[0];
    assert_eq!(profile.source, PROVISIONER);
    assert_eq!(profile.arguments, ["release=bookworm", "packages=a,b"]);
    assert_eq!(kept.name(Class::Script, profile.script), Some("web"));
    let userdata = "#cloud-config\n# ü \u{1f600}\n'; DROP TABLE profile; --\n";
    assert_eq!(provisioner.userdata_of("web").await.unwrap().as_deref(), Some(userdata));
    assert_eq!(provisioner.userdata_of("none").await.unwrap(), None);
    let scripts = provisioner.texts(Class::Script, Some("web")).await.unwrap();
    assert_eq!(scripts[0].text, "def main():\n\treturn \"\\0\"\n");
    assert_eq!(provisioner.texts(Class::Script, None).await.unwrap(), scripts);
    assert!(provisioner.texts(Class::Userdata, Some("%")).await.unwrap().is_empty());
}

async fn what_is_changed_is_changed_and_the_rest_stays(provisioner: &Provisioner) {
    let name = || "web".to_owned();
    let fields = SystemTemplateFields {
        vnc: Some(true),
        vnc_bind: text("127.0.0.1"),
        node_selector: text(""),
        ..SystemTemplateFields::default()
    };
    for change in [
        Change::ModifySystemTemplate { name: name(), fields },
        Change::RemoveNet { template: name(), vni: "1001".to_owned() },
        Change::RemoveDisk { template: name(), disk_id: "sdb".to_owned() },
        Change::ModifyText { class: Class::Userdata, name: name(), text: String::new() },
        Change::ModifyText { class: Class::Script, name: name(), text: "pass".to_owned() },
        Change::ModifyProfile {
            name: name(),
            fields: ProfileFields { arguments: Some(Vec::new()), ..ProfileFields::default() },
        },
    ] {
        make(provisioner, &change).await.unwrap();
    }
    let kept = provisioner.catalog().await.unwrap();
    let system = &kept.system_templates[0];
    assert_eq!((system.vcpus, system.vnc, &system.node_selector), (2, true, &None));
    assert_eq!(system.vnc_bind.as_deref(), Some("127.0.0.1"));
    assert_eq!(kept.network_templates[0].nets.len(), 1, "both of them went");
    assert_eq!(kept.storage_templates[0].disks.len(), 1);
    assert_eq!(kept.profiles[0].arguments, [""; 0]);
    assert_eq!(provisioner.userdata_of("web").await.unwrap().as_deref(), Some(""));
    let scripts = provisioner.texts(Class::Script, None).await.unwrap();
    assert_eq!((scripts.len(), scripts[0].text.as_str()), (1, "pass"));
}

async fn what_is_used_stays_and_what_is_not_goes(provisioner: &Provisioner) {
    let remove = |class| Change::Remove { class, name: "web".to_owned() };
    let parts = [
        Class::SystemTemplate,
        Class::NetworkTemplate,
        Class::StorageTemplate,
        Class::Userdata,
        Class::Script,
    ];
    for class in parts {
        let refusal = refusal(make(provisioner, &remove(class)).await);
        assert!(refusal.to_string().ends_with("`web` is used by profile `web`"), "{refusal}");
    }
    for class in [Class::Profile].into_iter().chain(parts) {
        make(provisioner, &remove(class)).await.unwrap();
        let refusal = refusal(make(provisioner, &remove(class)).await);
        assert!(matches!(refusal, ProvisionerRefusal::NotFound { .. }), "{refusal}");
    }
    assert_eq!(provisioner.catalog().await.unwrap(), Catalog::default());
}

/// An OVA `box` with two disks, and a cluster that has two of the networks it names.
pub fn ova() -> (Cluster, NewOva) {
    let volume = |disk_id: &str, size_gib| OvaVolume {
        id: 0,
        pool: "vms".to_owned(),
        volume: format!("ova_box_{disk_id}"),
        format: "raw".to_owned(),
        disk_id: disk_id.to_owned(),
        size_gib,
    };
    let ova = NewOva {
        name: "box".to_owned(),
        ovf: "<Envelope>\u{fc} ' $1 \\ </Envelope>".to_owned(),
        volumes: vec![volume("sda", 20), volume("sdb", 1)],
        vcpus: 2,
        vram_mib: 512,
        has_graphics: true,
        networks: vec!["lan".to_owned(), "1001".to_owned(), "none".to_owned()],
    };
    let mut known = cluster();
    for (vni, name) in [("1001", "lan"), ("1002", "wan")] {
        let record = NetworkRecord {
            vni: vni.to_owned(),
            description: name.to_owned(),
            ..NetworkRecord::default()
        };
        known.networks.insert(vni.to_owned(), Arc::new(record));
    }
    (known, ova)
}

async fn an_ova_comes_and_goes_with_all_that_is_of_it(provisioner: &Provisioner) {
    let (known, new) = ova();
    let volumes = new.volumes.clone();
    let add = Change::AddOva(new);
    let refused = refusal(provisioner.change(&known, &add, Mode::Do).await);
    assert_eq!(refused, ProvisionerRefusal::NoOvaScript);
    make(provisioner, &added(Class::Script, "default_ova", "pass")).await.unwrap();
    provisioner.change(&known, &add, Mode::Do).await.unwrap();
    let kept = provisioner.catalog().await.unwrap();
    let ova = &kept.ovas[0];
    let of_ova: Vec<OvaVolume> = ova.volumes.iter().map(OvaVolume::without_row).collect();
    assert_eq!((ova.name.as_str(), of_ova), ("box", volumes));
    let rows: Vec<i64> = ova.volumes.iter().map(|volume| volume.id).collect();
    assert!(0 < rows[0] && rows[0] < rows[1], "each has the number of its own row: {rows:?}");
    let system = &kept.system_templates[0];
    assert_eq!((system.name.as_str(), system.vcpus, system.vram_mib), ("box", 2, 512));
    assert_eq!((system.vnc, system.serial, system.ova), (true, false, Some(ova.id)));
    let network = &kept.network_templates[0];
    let vnis: Vec<&str> = network.nets.iter().map(|net| net.vni.as_str()).collect();
    assert_eq!((network.name.as_str(), vnis), ("box", vec!["1001", "1001"]));
    assert_eq!(network.ova, Some(ova.id));
    let profile = &kept.profiles[0];
    assert_eq!((profile.name.as_str(), profile.source.as_str()), ("box", OVA));
    assert_eq!((profile.system_template, profile.network_template), (system.id, Some(network.id)));
    assert_eq!((profile.ova, profile.storage_template), (Some(ova.id), None));
    assert_eq!(kept.name(Class::Script, profile.script), Some("default_ova"));
    let again = refusal(provisioner.change(&known, &add, Mode::Do).await);
    assert_eq!(again.to_string(), "there is an OVA `box` already");
    make(provisioner, &Change::Remove { class: Class::Ova, name: "box".to_owned() }).await.unwrap();
    let name = "default_ova".to_owned();
    make(provisioner, &Change::Remove { class: Class::Script, name }).await.unwrap();
    assert_eq!(provisioner.catalog().await.unwrap(), Catalog::default());
}

/// Makes changes at once, each as a daemon of its own does.
async fn at_once(database: &Arc<dyn Database>, changes: &[Change]) -> Vec<Result<String, String>> {
    let made = changes.iter().map(|change| {
        let (database, change) = (database.clone(), change.clone());
        tokio::spawn(async move { make(&Provisioner::new(database), &change).await })
    });
    let mut outcomes = Vec::new();
    for made in made.collect::<Vec<_>>() {
        outcomes.push(made.await.unwrap().map_err(|error| error.to_string()));
    }
    outcomes
}

async fn one_of_two_at_once_gets_the_name(database: &Arc<dyn Database>) {
    let outcomes = at_once(database, &[system_template("one"), system_template("one")]).await;
    let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let refused = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).unwrap();
    assert_eq!((made, refused.as_str()), (1, "there is a system template `one` already"));
}

async fn a_template_that_is_used_at_the_same_moment_stays(database: &Arc<dyn Database>) {
    let provisioner = Provisioner::new(database.clone());
    for change in changes() {
        make(&provisioner, &change).await.unwrap();
    }
    for round in 0..5 {
        let class = Class::Userdata;
        let name = format!("free{round}");
        make(&provisioner, &added(class, &name, "x")).await.unwrap();
        let fields = ProfileFields { userdata: Some(name.clone()), ..ProfileFields::default() };
        let uses = Change::ModifyProfile { name: "web".to_owned(), fields };
        let removes = Change::Remove { class, name: name.clone() };
        let outcomes = at_once(database, &[uses, removes]).await;
        let made = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(made, 1, "one of them was first: {outcomes:?}");
        let kept = provisioner.catalog().await.unwrap();
        let is_there = kept.id(class, &name);
        assert_eq!(is_there.is_some(), kept.profiles[0].userdata == is_there, "{outcomes:?}");
    }
}
