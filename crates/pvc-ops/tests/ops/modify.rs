//! Definitions, metadata and tags are changed.

use super::*;

#[tokio::test]
async fn a_modification_is_of_the_vm_it_says() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    let refusal = refused(modify(&world, "db1", &xml("web1", UUID), false).await);
    assert!(matches!(refusal, DefineRefusal::OtherVm { .. }));
    let cluster = world.store.view();
    assert_eq!(
        vm::check_modify(&cluster, "db1", &Modify::new(xml("web1", UUID))).unwrap_err(),
        refusal
    );
    assert_eq!(
        vm::check_modify(&cluster, "web1", &Modify::new(xml("web1", UUID))).unwrap().name,
        "web1"
    );

    let larger =
        xml("web1", UUID).replace("'MiB'>512", "'MiB'>1024").replace("web1_sda", "web1_root");
    let modified = modify(&world, "web1", &larger, true).await.unwrap();
    assert!(!modified.restarted, "a stopped VM is not started by a modification");
    assert_eq!(world.vm().memory_mib(), 1024);
    assert_eq!(world.vm().recorded_volumes, [id("vms/web1_root")]);

    world.state(VmState::Start).await;
    assert!(modify(&world, &UUID.to_string(), &larger, true).await.unwrap().restarted);
    assert_eq!(world.vm().state, VmState::Restart);
    let renamed = refused(modify(&world, "web1", &xml("web2", UUID), false).await);
    assert!(matches!(renamed, DefineRefusal::NameInUse { .. }), "{renamed}");
}

#[tokio::test]
async fn a_file_is_named_by_its_absolute_path_unless_it_was_so_before() {
    let world = World::with_nodes(&["hv1"]).await;
    let with = |files: &[&str]| {
        let disk = |(number, file): (usize, &&str)| {
            format!(
                "<disk type='file'><source file='{file}'/><target dev='vd{}'/></disk>",
                ["a", "b"][number]
            )
        };
        let disks: String = files.iter().enumerate().map(disk).collect();
        xml("web1", UUID).replace("<console", &format!("{disks}<console"))
    };
    let relative = DefineRefusal::RelativeFile { path: "a.img".to_owned() };
    let defined = vm::define(&world.store, &Define::new(with(&["/srv/b.img", "a.img"]))).await;
    assert_eq!(refused(defined), relative);
    assert_eq!(relative.kind(), Kind::Invalid);
    world.define("web1", UUID).await;
    assert_eq!(refused(modify(&world, "web1", &with(&["a.img"]), false).await), relative);
    // As one of PVC 1.0.3 has defined it.
    world.write(|changes| _ = changes.vm(UUID, VmChange::Xml(with(&["a.img"])))).await;
    modify(&world, "web1", &with(&["a.img"]).replace(">512<", ">1024<"), false).await.unwrap();
    refused(modify(&world, "web1", &with(&["a.img", "b.img"]), false).await);
    modify(&world, "web1", &with(&["/srv/a.img"]), false).await.unwrap();
}

#[tokio::test]
async fn metadata_is_changed_where_it_is_given_and_checked() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    let set = |meta: Meta| {
        let store = world.store.clone();
        async move { vm::set_meta(&store, "web1", &meta).await }
    };
    assert_eq!(refused(set(Meta::default()).await), MetaRefusal::NothingGiven);
    set(Meta { node_limit: Some(vec!["hv2".into()]), autostart: Some(true), ..Meta::default() })
        .await
        .unwrap();
    set(Meta { selector: Some(Some(Selector::Vms)), ..Meta::default() }).await.unwrap();
    let record = world.vm();
    assert_eq!(
        (record.node_limit.len(), record.autostart, &record.selector),
        (1, true, &Some(Selector::Vms))
    );
    set(Meta { node_limit: Some(Vec::new()), selector: Some(None), ..Meta::default() })
        .await
        .unwrap();
    assert_eq!((world.vm().node_limit.len(), world.vm().autostart), (0, true));
    let unknown =
        refused(set(Meta { node_limit: Some(vec!["hv9".into()]), ..Meta::default() }).await);
    assert!(matches!(unknown, MetaRefusal::NoNode(_)));
    assert_eq!(
        refused(set(Meta { max_downtime_ms: Some(0), ..Meta::default() }).await),
        MetaRefusal::NoDowntime
    );
}

#[tokio::test]
async fn tags_come_and_go_unless_they_are_protected() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let store = &world.store;
    vm::add_tag(store, "web1", "mirror:backup", true).await.unwrap();
    assert!(matches!(
        refused(vm::remove_tag(store, "web1", "mirror:backup").await),
        TagRefusal::Protected { .. }
    ));
    vm::add_tag(store, "web1", "mirror:backup", false).await.unwrap();
    vm::remove_tag(store, "web1", "mirror:backup").await.unwrap();
    assert!(matches!(
        refused(vm::remove_tag(store, "web1", "mirror:backup").await),
        TagRefusal::NoTag { .. }
    ));
    let long = "x".repeat(128);
    vm::add_tag(store, "web1", &long, false).await.unwrap();
    vm::remove_tag(store, "web1", &long).await.unwrap();
    for bad in ["", "a/b", "a b", "..", "ü", &"x".repeat(200)] {
        assert!(
            matches!(refused(vm::add_tag(store, "web1", bad, false).await), TagRefusal::BadTag(_)),
            "{bad}"
        );
    }
    assert_eq!(world.vm().tags, []);
}

#[tokio::test(start_paused = true)]
async fn no_vm_is_plugged_in_among_the_nodes_unless_that_is_forced_or_was_so_before() {
    let world = World::with_nodes(&["hv1"]).await;
    let on = |bridges: &[&str]| {
        let nic = |bridge: &&str| {
            format!("<interface type='bridge'><source bridge='{bridge}'/></interface>")
        };
        let nics: String = bridges.iter().map(nic).collect();
        xml("web1", UUID).replace("<console", &format!("{nics}<console"))
    };
    let is_refused = |refusal: &DefineRefusal, name: &str| {
        let hint = refusal.hint().unwrap_or_default();
        matches!(refusal, DefineRefusal::Nic(NicRefusal::AmongNodes { bridge }) if bridge == name)
            && hint.contains("--force")
    };
    let refusal =
        refused(vm::define(&world.store, &Define::new(on(&["brupstream", "brcluster"]))).await);
    assert!(is_refused(&refusal, "brcluster"), "{refusal}");
    vm::define(&world.store, &Define::new(on(&["brupstream", "vmbr1001"]))).await.unwrap();
    let refusal = refused(modify(&world, "web1", &on(&["brstorage"]), false).await);
    assert!(is_refused(&refusal, "brstorage"), "{refusal}");
    let ask = Modify::new(on(&["brstorage"]));
    let checked = vm::check_modify(&world.store.fresh().await.unwrap(), "web1", &ask).unwrap_err();
    assert_eq!(checked, refusal);
    let forced = Modify { force: true, ..ask };
    vm::modify(&world.store, "web1", &forced).await.unwrap();
    // It stays editable, and gets no other of them by that.
    modify(&world, "web1", &on(&["brstorage"]).replace(">512<", ">1024<"), false).await.unwrap();
    for more in ["brcluster", "brstorage"] {
        refused(modify(&world, "web1", &on(&["brstorage", more]), false).await);
    }

    let interface = "<interface type='bridge'><source bridge='brcluster'/></interface>";
    let mut ask = device::DeviceAsk {
        vm: "web1".to_owned(),
        change: DeviceChange::Attach,
        xml: interface.to_owned(),
        force: false,
        submitter: "tests".to_owned(),
    };
    let submit = async |ask: &device::DeviceAsk| {
        device::submit_device(&world.store, world.clock.as_ref(), &world.random, ask).await
    };
    let refusal = refused(submit(&ask).await);
    assert!(
        matches!(refusal, device::DeviceRefusal::Nic(NicRefusal::AmongNodes { .. })),
        "{refusal}"
    );
    // The one that is recorded, and no other in its network.
    ask.xml = interface.replace("brcluster", "brstorage");
    submit(&ask).await.unwrap();
    ask.xml = ask.xml.replace("<source", "<mac address='52:54:00:00:00:07'/><source");
    refused(submit(&ask).await);
    ask.force = true;
    submit(&ask).await.unwrap();
    ask = device::DeviceAsk { force: false, change: DeviceChange::Detach, ..ask };
    submit(&ask).await.unwrap();
}

/// The VM would run with half a volume where it is started after its node has died.
#[tokio::test]
async fn a_volume_that_is_held_is_given_to_no_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let volume = VolumeId::parse("vms/half").unwrap();
    let disk = "<disk type='network'><source protocol='rbd' name='vms/half'/><target dev='sdb' \
                bus='scsi'/></disk></devices>";
    let with_disk = xml("web1", UUID).replace("</devices>", disk);
    let purpose = Purpose::Fill { trashed: None };
    let hold = VolumeHold { volume: volume.clone(), purpose, by: "somebody".to_owned() };
    world.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    let refusal = refused(modify(&world, "web1", &with_disk, false).await);
    assert_eq!(refusal.to_string(), "volume `vms/half` is being given new contents");
    // Nor to the running guest alone.
    let refusal = refused(attach(&world, disk.trim_end_matches("</devices>")).await);
    assert_eq!(refusal.to_string(), "volume `vms/half` is being given new contents");
    assert!(refusal.kind() == Kind::Conflict && refusal.hint().is_some());
    world.write(|changes| _ = changes.push(Change::ReleaseVolume(volume.clone()))).await;
    modify(&world, "web1", &with_disk, false).await.unwrap();
}

/// Has a device attached to the running guest of `web1`.
async fn attach(
    world: &World,
    device: &str,
) -> Result<JobSpec, ChangeError<device::DeviceRefusal>> {
    let ask = device::DeviceAsk {
        vm: "web1".to_owned(),
        change: DeviceChange::Attach,
        xml: device.to_owned(),
        force: false,
        submitter: "tests".to_owned(),
    };
    device::submit_device(&world.store, world.clock.as_ref(), &world.random, &ask).await
}

#[tokio::test]
async fn a_volume_that_another_vm_runs_with_is_attached_to_no_guest() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    let disk = "<disk type='network'><source protocol='rbd' name='vms/db1_sda'/><target dev='sdb' \
                bus='scsi'/></disk>";
    let to = async |state: VmState| {
        world.write(|changes| _ = changes.vm(OTHER, VmChange::State(state.clone()))).await;
    };
    attach(&world, disk).await.unwrap();
    to(VmState::Start).await;
    let refusal = refused(attach(&world, disk).await);
    let why = "volume `vms/db1_sda` is in use by VM `db1`, which is in state `start`";
    assert_eq!((refusal.kind(), refusal.to_string().as_str()), (Kind::Conflict, why));
    assert!(refusal.hint().unwrap().starts_with("shut VM `db1` down first"));
    let ask = device::DeviceAsk {
        vm: "web1".to_owned(),
        change: DeviceChange::Detach,
        xml: disk.to_owned(),
        force: false,
        submitter: "tests".to_owned(),
    };
    let detach = device::submit_device(&world.store, world.clock.as_ref(), &world.random, &ask);
    detach.await.unwrap();

    // Its guest is not gone yet.
    to(VmState::Stop).await;
    world.running("hv1", &[OTHER]).await;
    refused(attach(&world, disk).await);
    world.running("hv1", &[]).await;
    attach(&world, disk).await.unwrap();

    // It is started at this moment.
    let (slow, connection) = world.slow_process().await;
    let faster = world.store.clone();
    connection.before_next_multi(async move {
        vm::set_state(&faster, "db1", StateAsk::new(StateRequest::Start, false)).await.unwrap();
    });
    let ask = device::DeviceAsk { change: DeviceChange::Attach, ..ask };
    let refusal =
        refused(device::submit_device(&slow, world.clock.as_ref(), &world.random, &ask).await);
    assert!(matches!(refusal, device::DeviceRefusal::Disk(_)), "{refusal}");

    // Both say that they may write at once.
    let both = |text: &str| text.replace("<target", "<shareable/><target");
    modify(&world, "db1", &both(&xml("db1", OTHER)), false).await.unwrap();
    attach(&world, &both(disk)).await.unwrap();
}
