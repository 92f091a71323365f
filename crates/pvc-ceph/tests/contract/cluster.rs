//! The cluster as a whole: its state, pools, OSDs and monitors.

use super::*;

pub(crate) async fn the_cluster_says_how_it_is(ceph: &Ceph) {
    let cluster = ceph.storage.cluster().unwrap();
    let status = cluster.status().await.unwrap();
    assert!(status.contains("1 daemons, quorum a") && status.contains("1 osds: 1 up"), "{status}");
    let health = cluster.health().await.unwrap();
    assert!(health.starts_with('{') && health.contains("\"status\":\"HEALTH_"), "{health}");
    assert!(cluster.usage().await.unwrap().contains("RAW STORAGE"));

    let deadline = Instant::now() + Duration::from_secs(30);
    let vms = loop {
        let pools = cluster.pool_figures().await.unwrap();
        let vms = pools.into_iter().find(|pool| pool.name.as_str() == "vms");
        if let Some(vms) = vms.filter(|vms| vms.objects > 0) {
            break vms;
        }
        assert!(Instant::now() < deadline, "the pool has no figures");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(
        vms.free_bytes > 1 << 30 && vms.write_ops > 0 && vms.object_copies == vms.objects,
        "{vms:?}"
    );

    let osds = cluster.osd_figures().await.unwrap();
    assert_eq!(osds.len(), 1);
    let osd = &osds[0];
    assert!(osd.is_up && osd.is_in && osd.state == "exists,up", "{osd:?}");
    assert_eq!((osd.id, osd.kib), (0, 10 << 20));
    assert!(osd.uuid.len() == 36 && osd.kib_used > 0 && osd.crush_weight > 0.0, "{osd:?}");

    let record = cluster.volume_record(&id("vms/busy")).await.unwrap();
    assert!(
        record.contains("\"size\":1048576") && record.contains("\"block_name_prefix\""),
        "{record}"
    );

    let key = cluster.hypervisor_key().await.unwrap().unwrap();
    assert!(std::fs::read_to_string(ceph.cluster.keyring()).unwrap().contains(&key));
    assert_eq!(cluster.access(), &access());
}

pub(crate) async fn it_keeps_the_contract_of_a_storage_cluster(ceph: Arc<Ceph>) {
    let storage = Arc::new(ceph.storage.clone());
    let set_silent = move |is_silent| match is_silent {
        true => ceph.cluster.stop(Daemon::Monitor).unwrap(),
        false => ceph.cluster.cont(Daemon::Monitor).unwrap(),
    };
    let fixture = StorageClusterFixture {
        storage,
        tier: Tier::Ssd,
        set_silent: Box::new(set_silent),
        time_limit: Duration::from_secs(60),
    };
    storage_cluster_contract(fixture).await;
}

/// First the pool's own flag does not allow it, and then the monitor's configuration.
pub(crate) async fn a_pool_that_is_kept_is_known_before_its_volumes_go(ceph: &Ceph) {
    let (pool, storage) = (PoolName::new("vms"), &ceph.storage);
    let said = async || match storage.check_pool_removal(&pool).await {
        Ok(()) => String::new(),
        Err(error) => error.to_string(),
    };
    until(async || said().await.is_empty()).await;
    let set = |words: &[&str]| ceph.cluster.ceph(words).map(drop).unwrap();
    set(&["osd", "pool", "set", "vms", "nodelete", "true"]);
    for words in ["pool `vms`", "`ceph osd pool set vms nodelete false`"] {
        assert!(said().await.contains(words), "{}", said().await);
    }
    set(&["osd", "pool", "set", "vms", "nodelete", "false"]);
    until(async || said().await.is_empty()).await;
    let option = ["config", "set", "mon", "mon_allow_pool_delete"];
    set(&[&option[..], &["false"]].concat());
    // It is a manager that says so, some seconds later.
    let words = "no pool may be removed; `ceph config set mon mon_allow_pool_delete true` changes";
    until(async || said().await.contains(words)).await;
    set(&[&option[..], &["true"]].concat());
    until(async || said().await.is_empty()).await;
    let gone = storage.check_pool_removal(&PoolName::new("gone")).await;
    assert!(matches!(gone, Err(StorageError::NoPool { .. })), "{gone:?}");
}

/// Ceph leaves waiting who writes to a full pool: `rbd trash mv` with its image half moved.
pub(crate) async fn a_full_pool_takes_only_what_makes_room(ceph: &Ceph) {
    let (storage, hour) = (&ceph.storage, Duration::from_secs(3600));
    let [kept, gone, trashed] = ["vms/kept", "vms/gone", "vms/trashed"].map(id);
    for volume in [&kept, &gone, &trashed] {
        storage.create(volume, 1 << 20, false).await.unwrap();
    }
    let [old, new] = ["old", "new"].map(SnapshotName::new);
    storage.snapshot(&kept, &old).await.unwrap();
    let trashed = storage.trash(&trashed, hour).await.unwrap().id;
    let fill_at = |ratios: [&str; 3]| {
        let marks = ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"];
        for (mark, ratio) in marks.into_iter().zip(ratios) {
            ceph.cluster.ceph(&["osd", mark, ratio]).unwrap();
        }
    };
    let free = async || storage.pool(&kept.pool).await.unwrap().free_bytes;
    // What an empty OSD has for itself is more.
    fill_at(["0.005", "0.007", "0.01"]);
    until(async || free().await == 0).await;
    let (to, pool) = (VolumeName::new("other"), &kept.pool);
    let refused = [
        storage.trash(&gone, hour).await.map(drop),
        storage.rename(&gone, &to).await,
        storage.restore(pool, &trashed, &to).await,
        storage.resize(&gone, 4096, true).await,
        storage.clone_on_write(&gone, &to, &Course::default()).await,
        storage.snapshot(&kept, &new).await,
        storage.rename_snapshot(&kept, &old, &new).await,
        storage.roll_back(&kept, &old).await,
    ];
    for (nth, refused) in refused.into_iter().enumerate() {
        assert!(matches!(refused, Err(StorageError::Full { .. })), "{nth}: {refused:?}");
    }
    let no_room = [
        storage.create(&id("vms/other"), 1 << 20, true).await,
        storage.resize(&gone, 2 << 20, true).await,
        storage.clone_volume(&gone, &to, true, &Course::default()).await,
        storage.streams().unwrap().upload(&gone, 1 << 20, true).await.map(drop),
    ];
    for (nth, refused) in no_room.into_iter().enumerate() {
        assert!(matches!(refused, Err(StorageError::NoRoom { .. })), "{nth}: {refused:?}");
    }
    storage.remove(&gone).await.unwrap();
    storage.remove_snapshot(&kept, &old).await.unwrap();
    storage.purge(pool, &trashed).await.unwrap();
    fill_at(["0.85", "0.9", "0.95"]);
    until(async || free().await > 0).await;
    storage.remove(&kept).await.unwrap();
}

/// Gives the OSD a class: Ceph finds none for a disk that is a file.
fn class_the_osd(ceph: &Ceph, tier: Tier) {
    let class = ["osd", "crush", "set-device-class", tier.as_str(), "osd.0"];
    ceph.cluster.ceph(&class).unwrap();
    let classes = ceph.cluster.ceph(&["osd", "crush", "class", "ls", "--format=json"]).unwrap();
    assert_eq!(classes.trim(), format!("[\"{}\"]", tier.as_str()));
}

/// The rule of a tier is made with its first pool, and serves the others.
pub(crate) async fn pools_of_a_tier_share_its_rule(ceph: &Ceph) {
    let (tier, cluster) = (Tier::Ssd, ceph.storage.cluster().unwrap());
    class_the_osd(ceph, tier);
    let rules = || ceph.cluster.ceph(&["osd", "crush", "rule", "ls"]).unwrap();
    let rule = format!("{}_tier", tier.as_str());
    for name in ["tiered", "tiered-too"] {
        let replication = Replication { copies: 2, min_copies: 1 };
        let name = PoolName::new(name);
        let spec = PoolSpec { name: name.clone(), placement_groups: 8, replication, tier };
        cluster.make_pool(&spec).await.unwrap();
        let said = ceph.cluster.ceph(&["osd", "pool", "get", name.as_str(), "crush_rule"]);
        assert_eq!(said.unwrap().trim(), format!("crush_rule: {rule}"));
        assert_eq!(rules().lines().filter(|known| *known == rule).count(), 1, "{}", rules());
        let disk = VolumeId { pool: name, volume: VolumeName::new("disk") };
        ceph.storage.create(&disk, 1 << 20, false).await.unwrap();
        ceph.write(&disk, 0, b"dear").await;
        ceph.storage.remove(&disk).await.unwrap();
        ceph.storage.remove_pool(&disk.pool).await.unwrap();
    }
}

/// Beside the one OSD that has all data there is one that is entered and never made.
pub(crate) async fn it_keeps_the_contract_of_an_osd_map(ceph: &Ceph) {
    let uuid = Uuid::from_u128(0x6c5b_1f6e_0b8e_4c5c_9a39_1f0a_5cbd_0000);
    let new = ceph.cluster.ceph(&["osd", "new", &uuid.to_string()]).unwrap();
    let new = OsdId::parse(new.trim()).unwrap();
    let storage = Arc::new(ceph.storage.clone());
    osd_map_contract(OsdMapFixture { storage, new, uuid, only: OsdId(0) }).await;
}

pub(crate) async fn monitors_that_hang_are_not_waited_for(ceph: &Ceph) {
    ceph.cluster.stop(Daemon::Monitor).unwrap();
    let began = Instant::now();
    let cluster = ceph.storage.cluster().unwrap();
    let answers = tokio::join!(cluster.status(), cluster.health(), cluster.osd_figures());
    let took = began.elapsed();
    ceph.cluster.cont(Daemon::Monitor).unwrap();
    use StorageError::TimedOut;
    let late =
        matches!(answers, (Err(TimedOut { .. }), Err(TimedOut { .. }), Err(TimedOut { .. })));
    assert!(late, "{answers:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");

    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = cluster.status().await {
        assert!(Instant::now() < deadline, "{error}");
    }
}
