//! Records read back as they were written, also those that are damaged.

use super::*;

#[tokio::test]
async fn a_vm_reads_back_as_it_was_written_in_every_daemon() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    for view in [world.store.view(), world.other.fresh().await.expect("readable")] {
        let vm = view.vm("web1").expect("just defined");
        assert_eq!(
            (vm.uuid, &vm.state, vm.memory_mib(), vm.autostart),
            (UUID, &VmState::Stop, 256, true)
        );
        assert_eq!(vm.node_limit, vec![NodeName::new("hv1"), NodeName::new("hv2")]);
        assert_eq!(
            vm.tags,
            vec![Tag { name: "daily".into(), kind: "user".into(), protected: true }]
        );
        assert!(vm.defects.is_empty(), "{:?}", vm.defects);
    }
    assert!(world.store.view().vm(&UUID.simple().to_string().to_uppercase()).is_some());
}

#[tokio::test]
async fn the_way_to_place_and_to_move_a_vm_is_read_in_any_case_and_none_is_none() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    for (word, method, selector, moves) in [
        ("VMS", "LIVE", Some(Selector::Vms), Some(MigrationMethod::Live)),
        ("None", "none", None, None),
        ("", "", None, None),
    ] {
        write_raw(&world, &format!("/domains/{UUID}/node_selector"), word.as_bytes()).await;
        write_raw(&world, &format!("/domains/{UUID}/migration_method"), method.as_bytes()).await;
        let view = world.other.fresh().await.expect("readable");
        let vm = view.vm("web1").expect("still there");
        assert_eq!((vm.selector.clone(), vm.migration_method.clone()), (selector, moves));
    }
}

#[tokio::test]
async fn values_are_stored_as_legacy_peers_read_them() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    let figures = NodeFigures { memory_total_mib: 2048, load: 0.5, ..NodeFigures::default() };
    let reports =
        vec![Report::Figures("hv1".into(), figures), Report::Running("hv1".into(), vec![UUID])];
    world.store.report(reports).await.expect("the node is there");
    let expected = [
        (format!("/domains/{UUID}"), "web1"),
        (format!("/domains/{UUID}/node_autostart"), "True"),
        (format!("/domains/{UUID}/profile"), "None"),
        (format!("/domains/{UUID}/rbdlist"), "vms/web1_sda"),
        (format!("/domains/{UUID}/node_limit"), "hv1,hv2"),
        (format!("/domains/{UUID}/migration_method"), "none"),
        (format!("/domains/{UUID}/tags/daily"), "daily"),
        (format!("/domains/{UUID}/tags/daily/protected"), "True"),
        ("/nodes/hv1".into(), "coordinator"),
        ("/nodes/hv1/staticdata".into(), "16 6.1.0 GNU/Linux x86_64"),
        ("/nodes/hv1/cpuload".into(), "0.5"),
        ("/nodes/hv1/latestschema".into(), "15"),
        ("/nodes/hv1/runningdomains".into(), &UUID.to_string()),
    ];
    for (path, value) in expected {
        assert_eq!(raw(&world, &path).await.as_deref(), Some(value), "{path}");
    }
}

/// Documents that are dear to read, each for the record of a VM of its own.
fn dear_documents() -> Vec<(&'static str, String)> {
    let declared: String =
        (0..2_000).map(|number| format!(" xmlns:a{number}='u:{number}'")).collect();
    let attributes: String = (0..50_000).map(|number| format!(" a{number}='1'")).collect();
    vec![
        ("namespaces", format!("<domain{declared}>{}</domain>", "<a xmlns:b='c'/>".repeat(2_000))),
        ("attributes", format!("<domain{attributes}/>")),
        ("elements", format!("<domain>{}</domain>", "<a/>".repeat(150_000))),
        ("depth", "<a>".repeat(200_000)),
        ("text", format!("<domain>{}</domain>", "a<![CDATA[b]]>&amp;".repeat(50_000))),
        ("size", format!("<domain><!--{}--></domain>", "x".repeat(3 << 20))),
    ]
}

#[tokio::test]
async fn a_record_that_would_be_dear_to_read_is_shown_with_the_reason_and_hides_nobody() {
    let world = cluster().await;
    for (number, (name, xml)) in dear_documents().into_iter().enumerate() {
        let vm = NewVm { xml, ..new_vm(name, Uuid::from_u128(number as u128 + 1)) };
        define(&world.store, vm).await;
    }
    define(&world.store, new_vm("web1", UUID)).await;
    let view = world.other.fresh().await.expect("readable");
    for (name, _) in dear_documents() {
        let vm = view.vm(name).expect("it is shown");
        assert!(vm.domain.is_err(), "{name}");
    }
    assert!(view.vm("web1").expect("defined").domain.is_ok());
    let reason = |name: &str| view.vm(name).expect("shown").domain.clone().expect_err("refused");
    assert_eq!(reason("namespaces"), "the XML declares more than 32 namespaces");
    assert_eq!(reason("attributes"), "the XML has an element with more than 64 attributes");
}

/// Has `work` done on a thread whose stack is too small for calls as deep as a hostile path.
fn on_a_small_stack(work: impl Future<Output = ()> + Send + 'static) {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let small = std::thread::Builder::new().stack_size(512 << 10);
    let thread = small.spawn(move || runtime().expect("a runtime").block_on(work));
    thread.expect("there is room for a thread").join().expect("nothing was too deep");
}

#[test]
fn what_lies_ten_thousand_levels_deep_ends_no_daemon_whether_it_is_there_or_comes() {
    on_a_small_stack(async {
        let world = cluster().await;
        define(&world.store, new_vm("web1", UUID)).await;
        let mut path = format!("/domains/{UUID}");
        let tree = world.tree.connect();
        for _ in 0..10 {
            let mut deeper = || {
                path.push_str("/a");
                Op::Create { path: path.clone(), data: Bytes::new(), mode: CreateMode::Persistent }
            };
            let ops = (0..1_000).map(|_| deeper()).collect();
            tree.multi(ops).await.expect("the parent is there");
        }
        // To who has it announced, and to who reads it at the start.
        let late = store_on(&world.tree).await;
        for store in [&world.store, &world.other, &late] {
            let view = store.fresh().await.expect("readable");
            assert_eq!(view.vm("web1").expect("it is shown").defects, [""; 0]);
            let backup = store.backup(true).await.expect("readable");
            let deepest = backup.keys().map(|key| key.matches('/').count()).max();
            assert_eq!(deepest, Some(16));
        }
        let mut dump = late.backup(true).await.expect("readable");
        dump.insert(path, String::new());
        let refused = late.restore(&dump).await;
        assert!(matches!(refused, Err(RestoreError::BadKey { .. })), "{refused:?}");
    });
}

#[tokio::test]
async fn a_name_that_two_vms_have_is_that_of_the_other_when_one_is_gone() {
    let world = cluster().await;
    let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
    define(&world.store, new_vm("web1", second)).await;
    define(&world.store, new_vm("web1", first)).await;
    assert_eq!(world.store.view().vm("web1").expect("defined").uuid, first);
    change(&world.store, |changes| {
        changes.push(Change::RemoveVm(first));
    })
    .await;
    assert_eq!(world.store.view().vm("web1").expect("defined").uuid, second);
}

#[tokio::test]
async fn a_poisoned_record_is_shown_with_its_defects_and_hides_nobody() {
    let world = cluster().await;
    define(&world.store, new_vm("web1", UUID)).await;
    define(&world.store, new_vm("web2", Uuid::from_u128(2))).await;
    write_raw(&world, &format!("/domains/{UUID}/state"), b"\xff\xfe").await;
    write_raw(&world, &format!("/domains/{UUID}/xml"), b"").await;
    write_raw(&world, &format!("/domains/{UUID}/tags/daily/protected"), b"None\xc3").await;
    write_raw(&world, &format!("/domains/{UUID}/migration_max_downtime"), b"soon").await;
    write_raw(&world, "/domains/not-a-uuid", b"junk").await;
    let view = world.other.fresh().await.expect("readable");
    let vm = view.vm("web1").expect("still listed");
    assert!(matches!(vm.state, VmState::Unknown(_)));
    assert_eq!(vm.domain.as_ref().expect_err("no XML"), "no XML is recorded");
    assert_eq!(vm.max_downtime_ms, 300);
    assert_eq!(vm.defects.len(), 4, "{:?}", vm.defects);
    assert_eq!(view.vms.len(), 2);
    assert_eq!(view.vm("web2").expect("untouched").state, VmState::Stop);
}

#[tokio::test]
async fn a_node_of_a_legacy_peer_is_read_with_whatever_it_left_out() {
    let world = cluster().await;
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    for (key, value) in [
        ("runningdomains", "0"),
        ("staticdata", ""),
        ("memtotal", ""),
        ("cpuload", "nan?"),
        ("daemonstate", "odd"),
    ] {
        write_raw(&world, &format!("/nodes/hv1/{key}"), value.as_bytes()).await;
    }
    let view = world.other.fresh().await.expect("readable");
    let node = view.node("hv1").expect("recorded");
    assert!(node.running.is_empty());
    assert_eq!((node.cpus, node.figures.memory_total_mib), (0, 0));
    assert_eq!(node.daemon_state, DaemonState::Unknown("odd".into()));
    assert_eq!(node.defects.len(), 1, "{:?}", node.defects);
}

#[tokio::test]
async fn node_and_cluster_states_are_written_and_read() {
    let world = cluster().await;
    let hv1 = NodeName::new("hv1");
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    change(&world.store, |changes| {
        changes
            .node(&hv1, NodeChange::Daemon(DaemonState::Run))
            .node(&hv1, NodeChange::Coordinator(CoordinatorState::Primary))
            .node(&hv1, NodeChange::Domain(DomainState::Ready))
            .config(ConfigChange::Primary(Some(hv1.clone())))
            .config(ConfigChange::Maintenance(true))
            .config(ConfigChange::Name("lab".into()));
    })
    .await;
    world.store.stamp(&hv1, 1_700_000_123).await.expect("the node is there");
    let view = world.other.fresh().await.expect("readable");
    assert_eq!(view.primary().map(|node| node.name.clone()), Some(hv1.clone()));
    assert!(view.config.maintenance && view.node("hv1").expect("recorded").takes_vms());
    assert_eq!(view.node("hv1").expect("recorded").keepalive, 1_700_000_123);
    assert_eq!(raw(&world, "/config/maintenance").await.as_deref(), Some("true"));
    change(&world.store, |changes| {
        changes.config(ConfigChange::Primary(None));
    })
    .await;
    assert_eq!(raw(&world, "/config/primary_node").await.as_deref(), Some("none"));
    assert_eq!(world.store.view().config.primary, None);
}

#[tokio::test]
async fn the_password_of_a_bmc_is_in_no_debug_output() {
    assert!(!format!("{:?}", new_node("hv1")).contains("s3cret"));
}

mod any {
    //! Records of every shape that an operator can make.

    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use pvc_model::vm::{MigrationMethod, Selector};

    use super::*;

    fn word() -> impl Strategy<Value = String> {
        "[A-Za-z0-9][A-Za-z0-9._-]{0,20}"
    }

    fn node() -> impl Strategy<Value = NodeName> {
        word()
            .prop_filter("`None` is the word for nothing", |word| word != "None")
            .prop_map(NodeName::new)
    }

    fn tag() -> impl Strategy<Value = Tag> {
        (word(), any::<bool>()).prop_map(|(name, protected)| Tag {
            name,
            kind: "user".into(),
            protected,
        })
    }

    pub fn vm() -> impl Strategy<Value = NewVm> {
        let volumes = vec((word(), word()), 0..4).prop_map(|ids| {
            ids.iter()
                .filter_map(|(pool, volume)| VolumeId::from_record(&format!("{pool}/{volume}")))
                .collect()
        });
        let state = proptest::sample::select(VmState::ALL);
        let selector = option::of(proptest::sample::select(Selector::ALL));
        let method = option::of(proptest::sample::select(MigrationMethod::ALL));
        let places = (option::of(node()), vec(node(), 0..3), selector, method);
        (
            word(),
            state,
            volumes,
            any::<bool>(),
            1..100_000_u32,
            places,
            vec(tag(), 0..3),
            "\\PC{0,40}",
        )
            .prop_map(
                |(
                    name,
                    state,
                    volumes,
                    autostart,
                    max_downtime_ms,
                    (node, node_limit, selector, migration_method),
                    mut tags,
                    profile,
                )| {
                    tags.sort_by(|a, b| a.name.cmp(&b.name));
                    tags.dedup_by(|a, b| a.name == b.name);
                    let profile =
                        Some(profile).filter(|profile| !profile.is_empty() && profile != "None");
                    NewVm {
                        name,
                        state,
                        volumes,
                        autostart,
                        max_downtime_ms,
                        node,
                        node_limit,
                        selector,
                        migration_method,
                        tags,
                        profile,
                        ..new_vm("x", UUID)
                    }
                },
            )
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_defined_reads_back_the_same(vm in any::vm()) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let world = cluster().await;
            define(&world.store, vm.clone()).await;
            let view = world.other.fresh().await.expect("readable");
            let read = &view.vms[&UUID];
            assert_eq!((&read.name, &read.state, &read.node), (&vm.name, &vm.state, &vm.node));
            assert_eq!(
                (&read.recorded_volumes, &read.node_limit, &read.tags),
                (&vm.volumes, &vm.node_limit, &vm.tags)
            );
            assert_eq!(
                (&read.selector, &read.migration_method),
                (&vm.selector, &vm.migration_method)
            );
            assert_eq!(
                (read.autostart, read.max_downtime_ms, &read.profile),
                (vm.autostart, vm.max_downtime_ms, &vm.profile)
            );
            assert!(read.defects.is_empty(), "{:?}", read.defects);
        });
    }
}

#[tokio::test]
async fn an_osd_is_stored_as_legacy_peers_read_it_and_keeps_its_statistics() {
    let world = cluster().await;
    let first = OsdRecord {
        id: "3".into(),
        node: "hv1".into(),
        device: "/dev/sdb".into(),
        db_device: "osd-db/osd-3".into(),
        fsid: "c6a1f3b0-9d3a-4a3a-9a73-5a3f7c1d7e00".into(),
        cluster: "5a2d7c2e-1111-4a3a-9a73-5a3f7c1d7e01".into(),
        group: "ceph-a".into(),
        volume: "osd-block-a".into(),
        is_split: true,
        stats: pvc_store::OSD_STATS_TO_COME.into(),
    };
    let put = |record: &OsdRecord| Change::PutOsd(Box::new(record.clone()));
    change(&world.store, |changes| _ = changes.push(put(&first))).await;
    let expected = [
        ("", ""),
        ("/node", "hv1"),
        ("/device", "/dev/sdb"),
        ("/db_device", "osd-db/osd-3"),
        ("/fsid", ""),
        ("/fsid/osd", "c6a1f3b0-9d3a-4a3a-9a73-5a3f7c1d7e00"),
        ("/fsid/cluster", "5a2d7c2e-1111-4a3a-9a73-5a3f7c1d7e01"),
        ("/lvm", ""),
        ("/lvm/vg", "ceph-a"),
        ("/lvm/lv", "osd-block-a"),
        ("/is_split", "True"),
        (
            "/stats",
            concat!(
                r#"{"uuid": "|", "up": 0, "in": 0, "primary_affinity": "|", "utilization": "|", "#,
                r#""var": "|", "pgs": "|", "kb": "|", "weight": "|", "reweight": "|", "#,
                r#""node": "|", "used": "|", "avail": "|", "wr_ops": "|", "wr_data": "|", "#,
                r#""rd_ops": "|", "rd_data": "|", "state": "|"}"#,
            ),
        ),
    ];
    for (key, value) in expected {
        assert_eq!(
            raw(&world, &format!("/ceph/osds/3{key}")).await.as_deref(),
            Some(value),
            "{key}"
        );
    }
    assert_eq!(*world.other.fresh().await.expect("readable").osds["3"], first);

    let figures = r#"{"up": 1}"#;
    world.store.report(vec![Report::OsdStats("3".into(), figures.into())]).await.expect("there");
    let moved = OsdRecord { device: "/dev/sdc".into(), group: "ceph-b".into(), ..first };
    world.store.fresh().await.expect("readable");
    change(&world.store, |changes| _ = changes.push(put(&moved))).await;
    let view = world.other.fresh().await.expect("readable");
    assert_eq!(*view.osds["3"], OsdRecord { stats: figures.into(), ..moved });

    change(&world.store, |changes| _ = changes.push(Change::RemoveOsd("3".into()))).await;
    assert!(world.other.fresh().await.expect("readable").osds.is_empty());
    assert_eq!(raw(&world, "/ceph/osds/3").await, None);
}

#[tokio::test]
async fn the_functions_of_a_card_are_read_and_written_as_legacy_peers_do() {
    let world = cluster().await;
    change(&world.store, |changes| {
        changes.push(Change::AddNode(Box::new(new_node("hv1"))));
    })
    .await;
    let config = VfConfig {
        vlan_id: "100".into(),
        vlan_qos: "0".into(),
        tx_rate_min: "0".into(),
        tx_rate_max: "0".into(),
        spoof_check: "True".into(),
        link_state: "auto".into(),
        trust: "False".into(),
        query_rss: "False".into(),
    };
    let vf = |index: u32| VfRecord {
        name: format!("ens1v{index}"),
        pf: "ens1".into(),
        mtu: "9000".into(),
        mac: "02:00:00:00:00:01".into(),
        phy_mac: "02:00:00:00:00:01".into(),
        config: config.clone(),
        pci: PciTexts {
            domain: "0000".into(),
            bus: "3b".into(),
            slot: "0a".into(),
            function: "1".into(),
        },
        used: false,
        used_by: None,
    };
    change(&world.store, |changes| {
        let pf = PfRecord { name: "ens1".into(), mtu: "9000".into(), vfcount: "12".into() };
        changes.push(Change::PutPf("hv1".into(), pf));
        for index in [10, 9] {
            changes.push(Change::PutVf("hv1".into(), Box::new(vf(index))));
        }
    })
    .await;
    let sriov = async || world.other.fresh().await.unwrap().node("hv1").unwrap().sriov.clone();
    assert_eq!(sriov().await.vfs, [vf(9), vf(10)]);
    let root = "/nodes/hv1/sriov/vf/ens1v9";
    let claim = VfUse { vf: "ens1v9".into(), used_by: Some(UUID), mac: "52:54:00:00:00:01".into() };
    change(&world.store, |changes| {
        changes.push(Change::UseVf("hv1".into(), claim.clone()));
    })
    .await;
    for (key, value) in [
        ("", ""),
        ("/pf", "ens1"),
        ("/phy_mac", "02:00:00:00:00:01"),
        ("/mac", "52:54:00:00:00:01"),
        ("/config", ""),
        ("/config/vlan_id", "100"),
        ("/config/spoof_check", "True"),
        ("/pci/slot", "0a"),
        ("/used", "True"),
        ("/used_by", &UUID.to_string()),
    ] {
        assert_eq!(raw(&world, &format!("{root}{key}")).await.as_deref(), Some(value), "{key}");
    }
    assert_eq!(raw(&world, "/nodes/hv1/sriov/pf/ens1/vfcount").await.as_deref(), Some("12"));
    // What is written anew leaves who uses it alone.
    change(&world.store, |changes| {
        let mut again = vf(9);
        again.mac = claim.mac.clone();
        changes.push(Change::PutVf("hv1".into(), Box::new(again)));
    })
    .await;
    assert_eq!(sriov().await.vf("ens1v9").unwrap().used_by, Some(UUID));
    // A peer has written half of one, and junk into another.
    write_raw(&world, "/nodes/hv1/sriov/vf/ens1v11", b"").await;
    write_raw(&world, "/nodes/hv1/sriov/vf/ens1v11/used", b"perhaps").await;
    write_raw(&world, "/nodes/hv1/sriov/vf/ens1v11/mtu", &[0xff, 0xfe]).await;
    let half = sriov().await.vf("ens1v11").unwrap().clone();
    assert_eq!((half.used, half.pf.as_str(), half.config), (false, "", VfConfig::default()));
    let defects = world.other.view().node("hv1").unwrap().defects.clone();
    assert_eq!(defects.len(), 2, "{defects:?}");
    change(&world.store, |changes| {
        let node = NodeName::new("hv1");
        changes.push(Change::ConfigureVf {
            node: node.clone(),
            vf: "ens1v11".into(),
            config: config.clone(),
        });
        changes.push(Change::RemoveVf(node.clone(), "ens1v10".into()));
        changes.push(Change::RemovePf(node, "ens1".into()));
    })
    .await;
    let left = sriov().await;
    let names: Vec<&str> = left.vfs.iter().map(|vf| vf.name.as_str()).collect();
    assert_eq!((names.as_slice(), left.pfs.len()), (&["ens1v9", "ens1v11"][..], 0));
    assert_eq!(left.vf("ens1v11").unwrap().config, config);
}
