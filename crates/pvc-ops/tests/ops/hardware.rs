//! A part of a VM's hardware is changed.

use super::*;

fn asking(change: HardwareChange) -> HardwareAsk {
    HardwareAsk { change, restart: false, force: false }
}

fn card(network: &str) -> NewCard {
    let (network, model) = (network.to_owned(), "virtio".to_owned());
    NewCard { network, sriov: None, mac: None, model }
}

fn disk(source: DiskSource) -> HardwareChange {
    HardwareChange::AddDisk(NewDisk { source, target: None, bus: Some("scsi".to_owned()) })
}

fn volume(text: &str) -> HardwareChange {
    disk(DiskSource::Volume(id(text)))
}

impl World {
    async fn change(&self, ask: &HardwareAsk) -> Result<vm::Changed, ChangeError<HardwareRefusal>> {
        vm::change_hardware(&self.store, &self.random, None, "web1", ask).await
    }

    async fn put_volume(&self, volume: &str) {
        let change = Change::PutVolume { id: id(volume), stats: "{}".into() };
        self.write(|changes| _ = changes.push(change.clone())).await;
    }

    async fn put_network(&self, vni: &str, description: &str) {
        let tree = self.tree.connect();
        for (path, data) in
            [("/networks".to_owned(), ""), (format!("/networks/{vni}"), description)]
        {
            let _ = tree.create(&path, data.to_owned().into(), CreateMode::Persistent).await;
        }
        self.store.fresh().await.unwrap();
    }
}

#[tokio::test]
async fn memory_and_vcpus_are_set_and_the_rest_of_the_xml_stays_as_it_is() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let before = world.vm().xml.to_string();
    let changed = world.change(&asking(HardwareChange::Memory(1024))).await.unwrap();
    assert_eq!((&*changed.modified.name, &changed.devices[..]), ("web1", &[][..]));
    assert_eq!(*world.vm().xml, before.replace(">512<", ">1024<"));
    let vcpus = HardwareChange::Vcpus { vcpus: 4, topology: Some((2, 2, 1)) };
    world.change(&asking(vcpus)).await.unwrap();
    let domain = world.vm().domain.clone().unwrap();
    assert_eq!((domain.memory_mib, domain.vcpus, domain.topology), (1024, 4, Some((2, 2, 1))));
    let vcpus = HardwareChange::Vcpus { vcpus: 3, topology: None };
    world.change(&asking(vcpus)).await.unwrap();
    assert_eq!(world.vm().domain.clone().unwrap().topology, Some((1, 3, 1)));
}

#[tokio::test]
async fn hardware_that_makes_no_sense_or_fits_no_node_is_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let before = world.vm().xml.clone();
    for (change, words) in [
        (HardwareChange::Memory(0), "memory in MiB must be at least 1"),
        (HardwareChange::Memory(1 << 20), "node `hv1` "),
        (HardwareChange::Memory(u64::MAX), "less than an exbibyte"),
        (HardwareChange::Vcpus { vcpus: 0, topology: None }, "vCPUs must be at least 1"),
        (
            HardwareChange::Vcpus { vcpus: 4, topology: Some((1, 2, 1)) },
            "a topology of 1 sockets, 2 cores and 1 threads has 2 vCPUs, not 4",
        ),
        (HardwareChange::Vcpus { vcpus: 64, topology: None }, "node `hv1` "),
        (HardwareChange::RemoveDisk("sdz".to_owned()), "the VM has no disk `sdz`"),
        (
            HardwareChange::RemoveNics(WhichNics {
                network: Some("1001".to_owned()),
                ..WhichNics::default()
            }),
            "the VM has no network interface in network `1001`",
        ),
    ] {
        let refusal = refused(world.change(&asking(change.clone())).await);
        // What is named and not there is not found.
        let kind = if words.contains("has no") { Kind::NotFound } else { Kind::Invalid };
        assert_eq!(refusal.kind(), kind, "{change:?}");
        assert!(refusal.to_string().contains(words), "{change:?}: {refusal}");
    }
    assert_eq!(world.vm().xml, before);
    let ask = asking(HardwareChange::Memory(1024));
    let nobody = vm::change_hardware(&world.store, &world.random, None, "nobody", &ask).await;
    assert_eq!(refused(nobody).kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_card_is_plugged_into_a_network_that_there_is() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.put_network("1001", "office").await;
    let add = |network: &str| asking(HardwareChange::AddNic(card(network)));
    for network in ["1001", "office", "upstream"] {
        let changed = world.change(&add(network)).await.unwrap();
        let mac = &world.vm().domain.clone().unwrap().nics.last().unwrap().mac.clone();
        assert!(mac.starts_with("52:54:00:"), "one is drawn: {mac}");
        assert!(changed.devices[0].contains(mac.as_str()), "{changed:?}");
    }
    let nics: Vec<String> =
        world.vm().domain.clone().unwrap().nics.iter().map(|nic| nic.vni()).collect();
    assert_eq!(nics, ["1001", "1001", "upstream"], "known by its number however it was named");

    let refusal = refused(world.change(&add("4242")).await);
    assert_eq!(refusal, HardwareRefusal::NoNetwork { network: "4242".to_owned() });
    assert_eq!(refusal.kind(), Kind::NotFound);
    let own = |mac: &str| {
        asking(HardwareChange::AddNic(NewCard { mac: Some(mac.to_owned()), ..card("1001") }))
    };
    world.change(&own("52:54:00:00:00:01")).await.unwrap();
    for (mac, words) in [
        ("52:54:00:00:00:01", "is used by this VM already"),
        ("53:54:00:00:00:01", "is not a MAC address"),
    ] {
        let refusal = refused(world.change(&own(mac)).await);
        assert!(refusal.to_string().contains(words), "{refusal}");
    }
    let all = WhichNics { network: Some("office".to_owned()), ..WhichNics::default() };
    let removed = world.change(&asking(HardwareChange::RemoveNics(all))).await.unwrap();
    assert_eq!(removed.devices.len(), 3);
    assert_eq!(world.vm().domain.clone().unwrap().nics.len(), 1);
}

#[tokio::test]
async fn a_card_goes_among_the_nodes_by_force_and_takes_no_function_that_is_not_there() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for network in ["cluster", "storage"] {
        let ask = asking(HardwareChange::AddNic(card(network)));
        let refusal = refused(world.change(&ask).await);
        assert!(
            matches!(
                &refusal,
                HardwareRefusal::Define(DefineRefusal::Nic(NicRefusal::AmongNodes { .. }))
            ) && refusal.hint().unwrap().contains("--force"),
            "{refusal}"
        );
        world.change(&HardwareAsk { force: true, ..ask }).await.unwrap();
    }
    let second = refused(world.change(&asking(HardwareChange::AddNic(card("cluster")))).await);
    assert!(second.hint().unwrap().contains("--force"), "{second}");
    for mode in [SriovMode::Hostdev, SriovMode::Macvtap] {
        let function = NewCard { sriov: Some(mode), ..card("ens1f0v3") };
        let ask = HardwareAsk { force: true, ..asking(HardwareChange::AddNic(function)) };
        let refusal = refused(world.change(&ask).await);
        let missing =
            NoFunction::Missing { node: "hv1".to_owned(), function: "ens1f0v3".to_owned() };
        let taken = NicRefusal::Function(missing);
        assert_eq!(refusal, HardwareRefusal::Define(DefineRefusal::Nic(taken)), "{mode:?}");
    }
    assert_eq!(world.vm().domain.clone().unwrap().nics.len(), 2);
}

const MAC: &str = "52:54:00:00:00:01";

/// XML of a VM with a card that has [`MAC`] in network `vni`.
fn with_card(name: &str, uuid: Uuid, vni: &str) -> String {
    let nic = format!(
        "<interface type='bridge'><mac address='{MAC}'/><source bridge='vmbr{vni}'/>\
         </interface><console"
    );
    xml(name, uuid).replace("<console", &nic)
}

fn names_web1(refusal: &impl Refusal) -> bool {
    let words = "VM `web1` has MAC address `52:54:00:00:00:01` in network `1001`, too";
    let hint = refusal.hint().unwrap_or_default();
    refusal.kind() == Kind::Conflict && refusal.to_string() == words && hint.contains("--force")
}

#[tokio::test]
async fn a_mac_address_is_that_of_one_vm_in_a_network() {
    let world = World::with_nodes(&["hv1"]).await;
    world.put_network("1001", "office").await;
    vm::define(&world.store, &Define::new(with_card("web1", UUID, "1001"))).await.unwrap();
    let twin = with_card("web2", OTHER, "1001");
    let refusal = refused(vm::define(&world.store, &Define::new(&*twin)).await);
    assert!(names_web1(&refusal), "{refusal}");
    // In another network it is in nobody's way.
    vm::define(&world.store, &Define::new(with_card("web2", OTHER, "1002"))).await.unwrap();
    let refusal = refused(modify(&world, "web2", &twin, false).await);
    assert!(names_web1(&refusal), "{refusal}");

    modify(&world, "web2", &xml("web2", OTHER), false).await.unwrap();
    let card = NewCard { mac: Some(MAC.to_uppercase()), ..card("office") };
    let ask = asking(HardwareChange::AddNic(card));
    let (store, random) = (&world.store, &world.random);
    let refusal = refused(vm::change_hardware(store, random, None, "web2", &ask).await);
    assert!(names_web1(&refusal), "{refusal}");
    let mut ask = HardwareAsk { force: true, ..ask };
    vm::change_hardware(store, random, None, "web2", &ask).await.unwrap();
    // What shares one stays editable, as VMs of an older cluster that do.
    ask = asking(HardwareChange::Memory(1024));
    vm::change_hardware(store, random, None, "web2", &ask).await.unwrap();
    modify(&world, "web2", &twin, false).await.unwrap();

    // A mirror has the address of the VM that it is a copy of.
    modify(&world, "web2", &xml("web2", OTHER), false).await.unwrap();
    let mirror = VmChange::State(VmState::Mirror);
    world.write(|changes| _ = changes.vm(UUID, mirror.clone())).await;
    modify(&world, "web2", &twin, false).await.unwrap();
    modify(&world, "web1", &with_card("web1", UUID, "1001"), false).await.unwrap();
}

/// Each of the two sees a network in which nobody has the address.
#[tokio::test]
async fn of_two_who_give_one_mac_address_to_two_vms_at_once_one_is_refused() {
    let world = Arc::new(World::with_nodes(&["hv1"]).await);
    world.put_network("1001", "office").await;
    world.define("web1", UUID).await;
    vm::define(&world.store, &Define::new(with_card("web2", OTHER, "1002"))).await.unwrap();
    // Its card is in the network already, with another address.
    let other = with_card("web2", OTHER, "1001").replace(MAC, "52:54:00:00:00:02");
    modify(&world, "web2", &other, false).await.unwrap();
    let (slow, connection) = world.slow_process().await;
    let faster = world.clone();
    connection.before_next_multi(async move {
        modify(&faster, "web1", &with_card("web1", UUID, "1001"), false).await.unwrap();
    });
    let ask = Modify::new(with_card("web2", OTHER, "1001"));
    let refusal = refused(vm::modify(&slow, "web2", &ask).await);
    assert!(names_web1(&refusal), "{refusal}");
}

#[tokio::test]
async fn a_disk_is_a_volume_that_there_is_or_a_file() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let refusal = refused(world.change(&asking(volume("vms/data"))).await);
    assert_eq!(refusal.to_string(), "there is no pool `vms`");
    let name = id("vms/data").pool;
    let pool = Change::PutPool { name, pgs: "0".into(), tier: "default".into() };
    world.write(|changes| _ = changes.push(pool.clone())).await;
    let refusal = refused(world.change(&asking(volume("vms/data"))).await);
    assert_eq!(refusal, HardwareRefusal::NoVolume { volume: id("vms/data") });
    assert_eq!(refusal.kind(), Kind::NotFound);

    world.put_volume("vms/data").await;
    let changed = world.change(&asking(volume("vms/data"))).await.unwrap();
    assert!(changed.devices[0].contains("dev='sdb'"), "{changed:?}");
    assert_eq!(world.vm().recorded_volumes, [id("vms/web1_sda"), id("vms/data")]);
    let refusal = refused(world.change(&asking(volume("vms/data"))).await);
    assert!(refusal.to_string().ends_with("is attached to this VM already, as `sdb`"), "{refusal}");
    world.change(&asking(disk(DiskSource::File("/srv/a.iso".to_owned())))).await.unwrap();

    for which in ["sdb", "/srv/a.iso"] {
        world.change(&asking(HardwareChange::RemoveDisk(which.to_owned()))).await.unwrap();
    }
    assert_eq!(world.vm().recorded_volumes, [id("vms/web1_sda")]);
}

#[tokio::test]
async fn a_storage_that_is_near_knows_volumes_that_no_record_tells_of() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/data");
    let near: Option<&dyn Storage> = Some(&world.storage);
    let add = async |text: &str| {
        vm::change_hardware(&world.store, &world.random, near, "web1", &asking(volume(text))).await
    };
    add("vms/data").await.unwrap();
    refused(add("vms/other").await);
    world.storage.set_failing(true);
    assert_eq!(refused(add("vms/third").await).kind(), Kind::Unavailable);
}

#[tokio::test]
async fn a_volume_that_another_vm_uses_is_reported_and_one_that_goes_is_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    world.put_volume("vms/db1_sda").await;
    let changed = world.change(&asking(volume("vms/db1_sda"))).await.unwrap();
    let warning = &changed.modified.warnings.last().unwrap();
    assert!(warning.starts_with("volume `vms/db1_sda` is used by VM `db1`, too"), "{warning}");
    world.change(&asking(HardwareChange::RemoveDisk("vms/db1_sda".to_owned()))).await.unwrap();
    world
        .write(|changes| {
            changes.vm(OTHER, VmChange::State(VmState::Delete));
        })
        .await;
    let refusal = refused(world.change(&asking(volume("vms/db1_sda"))).await);
    assert!(
        matches!(&refusal, HardwareRefusal::Define(DefineRefusal::VolumeGoes { .. })),
        "{refusal}"
    );
}

#[tokio::test]
async fn only_a_started_vm_is_restarted_with_a_change() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let ask = |mib| HardwareAsk { restart: true, ..asking(HardwareChange::Memory(mib)) };
    assert!(!world.change(&ask(1024)).await.unwrap().modified.restarted);
    assert_eq!(world.vm().state, VmState::Stop);
    world.state(VmState::Start).await;
    assert!(world.change(&ask(2048)).await.unwrap().modified.restarted);
    assert_eq!(world.vm().state, VmState::Restart);
}

#[tokio::test]
async fn what_somebody_else_changes_at_the_same_moment_is_not_lost() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let (slow, connection) = world.slow_process().await;
    let faster = world.store.clone();
    let other = Modify::new(xml("web1", UUID).replace("<vcpu>1<", "<vcpu>2<"));
    connection.before_next_multi(async move {
        vm::modify(&faster, "web1", &other).await.unwrap();
    });
    let ask = asking(HardwareChange::Memory(1024));
    vm::change_hardware(&slow, &world.random, None, "web1", &ask).await.unwrap();
    world.store.fresh().await.unwrap();
    let domain = world.vm().domain.clone().unwrap();
    assert_eq!((domain.memory_mib, domain.vcpus), (1024, 2));
}

#[tokio::test]
async fn a_dry_run_decides_and_writes_nothing() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let before = world.vm();
    let dry = world.store.dry();
    let try_it =
        async |ask: &HardwareAsk| vm::change_hardware(&dry, &world.random, None, "web1", ask).await;
    let changed = try_it(&asking(HardwareChange::AddNic(card("upstream")))).await.unwrap();
    assert_eq!(changed.devices.len(), 1, "what would be plugged in");
    refused(try_it(&asking(HardwareChange::AddNic(card("4242")))).await);
    world.store.fresh().await.unwrap();
    assert_eq!(world.vm(), before);
}
