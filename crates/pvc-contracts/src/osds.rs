//! Contracts of every [`OsdMap`] and every [`OsdHost`].

use std::collections::BTreeSet;
use std::sync::Arc;

use pvc_model::osd::{
    Device, DeviceClass, EXTENT_BYTES, LogicalVolume, LvmName, LvmOsd, OsdFlag, OsdId, OsdState,
    Safety, block_bytes,
};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{OsdError, OsdHost, OsdMap, Storage, UnitState};

/// Environment that the suite of [`OsdMap`] needs.
pub struct OsdMapFixture {
    /// A storage that is a cluster.
    pub storage: Arc<dyn Storage>,
    /// An OSD whose daemon never ran: it has no data, and no place.
    pub new: OsdId,
    /// Its UUID.
    pub uuid: Uuid,
    /// An OSD that is up and in, and whose data has no other copy.
    pub only: OsdId,
}

/// Runs the suite of [`OsdMap`]. At its end the new OSD is gone, and the other is as it was.
///
/// # Panics
/// When the map breaks the contract.
pub async fn osd_map_contract(fixture: OsdMapFixture) {
    fixture.osds_are_listed_by_their_numbers().await;
    fixture.an_osd_that_is_not_known_is_not_taken_for_one().await;
    fixture.an_osd_goes_out_and_in_as_often_as_it_is_asked().await;
    fixture.flags_are_set_until_they_are_unset().await;
    fixture.an_osd_that_is_needed_is_neither_safe_nor_destroyed().await;
    fixture.an_osd_has_the_place_that_it_was_last_given().await;
    fixture.a_destroyed_osd_leaves_its_number_and_a_purged_one_nothing().await;
}

/// The number of an OSD that no suite makes.
const NOBODY: OsdId = OsdId(4711);

impl OsdMapFixture {
    fn map(&self) -> &dyn OsdMap {
        self.storage.cluster().expect("the storage is a cluster")
    }

    async fn state(&self, id: OsdId) -> OsdState {
        let states = self.map().osd_states().await.expect("an answer");
        states.into_iter().find(|state| state.id == id).expect("it is known")
    }

    async fn osds_are_listed_by_their_numbers(&self) {
        assert!(!self.map().cluster_uuid().await.expect("an answer").is_nil());
        let ids = self.map().osd_ids().await.expect("an answer");
        assert!(ids.contains(&self.new) && ids.contains(&self.only), "{ids:?}");
        let states = self.map().osd_states().await.expect("an answer");
        let shown: Vec<OsdId> = states.iter().map(|state| state.id).collect();
        assert_eq!(shown, ids.into_iter().collect::<Vec<_>>(), "all of them, in order");
        let new = self.state(self.new).await;
        assert_eq!((new.uuid, new.is_up, new.is_new), (Some(self.uuid), false, true));
        let only = self.state(self.only).await;
        assert!(only.is_up && only.is_in && !only.is_new && only.uuid.is_some(), "{only:?}");
    }

    async fn an_osd_that_is_not_known_is_not_taken_for_one(&self) {
        let map = self.map();
        let host = NodeName::new("hv1");
        let errors = [
            map.osd_in(NOBODY).await.err(),
            map.osd_out(NOBODY).await.err(),
            map.osd_down(NOBODY).await.err(),
            map.safe_to_destroy(NOBODY).await.err(),
            map.destroy(NOBODY, true).await.err(),
            map.crush_add(NOBODY, 1.0, &host).await.err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(OsdError::NoOsd { osd: NOBODY })), "{error:?}");
        }
        map.crush_remove(NOBODY).await.expect("it has no place already");
        map.purge(NOBODY, false).await.expect("it is forgotten already");
    }

    async fn an_osd_goes_out_and_in_as_often_as_it_is_asked(&self) {
        for _ in 0..2 {
            self.map().osd_in(self.new).await.expect("an answer");
            assert!(self.state(self.new).await.is_in);
        }
        for _ in 0..2 {
            self.map().osd_out(self.new).await.expect("an answer");
            assert!(!self.state(self.new).await.is_in);
        }
        self.map().osd_down(self.new).await.expect("it is down already");
        assert!(!self.state(self.new).await.is_up);
    }

    async fn flags_are_set_until_they_are_unset(&self) {
        let before = self.map().flags().await.expect("an answer");
        for flag in OsdFlag::ALL.iter().copied().filter(|flag| !before.contains(flag)) {
            for _ in 0..2 {
                self.map().set_flag(flag).await.expect("it can be set");
            }
            let with = self.map().flags().await.expect("an answer");
            assert_eq!(with.difference(&before).collect::<Vec<_>>(), [&flag]);
            for _ in 0..2 {
                self.map().unset_flag(flag).await.expect("it can be unset");
            }
            assert_eq!(self.map().flags().await.expect("an answer"), before);
        }
    }

    async fn an_osd_that_is_needed_is_neither_safe_nor_destroyed(&self) {
        let safety = self.map().safe_to_destroy(self.only).await.expect("an answer");
        let Safety::NotYet(why) = safety else { panic!("nobody else has its data") };
        assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
        for error in [
            self.map().destroy(self.only, false).await.expect_err("it is needed"),
            self.map().purge(self.only, false).await.expect_err("it is needed"),
        ] {
            // That it is up is another reason, which the look at its data comes before.
            assert!(
                matches!(&error, OsdError::NotSafe { osd, why } if *osd == self.only
                    && why.contains("pgs")),
                "{error:?}"
            );
        }
        let only = self.state(self.only).await;
        assert!(only.is_up && only.is_in && only.uuid.is_some(), "{only:?}");
    }

    async fn an_osd_has_the_place_that_it_was_last_given(&self) {
        let host = NodeName::new("contract");
        for weight in [0.0, 0.0, 0.5] {
            self.map().crush_add(self.new, weight, &host).await.expect("it gets its place");
        }
        for _ in 0..2 {
            self.map().crush_remove(self.new).await.expect("its place is taken from it");
        }
    }

    async fn a_destroyed_osd_leaves_its_number_and_a_purged_one_nothing(&self) {
        for _ in 0..2 {
            self.map().destroy(self.new, true).await.expect("it has no data");
            assert_eq!(self.state(self.new).await.uuid, None);
        }
        for _ in 0..2 {
            self.map().purge(self.new, true).await.expect("it has no data");
            assert!(!self.map().osd_ids().await.expect("an answer").contains(&self.new));
        }
        for _ in 0..2 {
            self.map().reserve(self.new, self.uuid).await.expect("nobody has it");
            assert_eq!(self.state(self.new).await.uuid, None);
        }
        let error = self.map().reserve(self.only, self.uuid).await.expect_err("it is in use");
        assert!(matches!(error, OsdError::NumberTaken { osd } if osd == self.only), "{error}");
        self.map().purge(self.new, true).await.expect("it has no data");
    }
}

/// Environment that the suite of [`OsdHost`] needs.
pub struct OsdHostFixture {
    /// A storage on a node that has disks.
    pub storage: Arc<dyn Storage>,
    /// A storage, which may be the same, of the node's cluster, whose map has no OSD of the node.
    pub cluster: Arc<dyn Storage>,
    /// An empty disk of 100 GiB, by the kernel's name.
    pub disk: Device,
    /// Another name of it.
    pub link: Device,
    /// A device that is a link to itself.
    pub looped: Device,
    /// An empty disk for databases.
    pub db_disk: Device,
    /// A disk with a file system that is mounted.
    pub busy: Device,
}

/// Runs the suite of [`OsdHost`].
///
/// # Panics
/// When the node breaks the contract.
pub async fn osd_host_contract(fixture: OsdHostFixture) {
    fixture.disks_are_shown_by_the_kernels_names().await;
    fixture.a_device_differs_from_what_is_none().await;
    fixture.databases_have_a_group_of_their_own().await;
    let osds = fixture.a_disk_is_split_into_osds().await;
    fixture.an_osd_gets_a_database_once(&osds[0]).await;
    fixture.osds_run_when_they_are_activated(&osds).await;
    fixture.an_osd_is_made_anew_with_its_number(&osds).await;
    fixture.a_disk_that_is_zapped_is_empty().await;
}

impl OsdHostFixture {
    fn host(&self) -> &dyn OsdHost {
        self.storage.osds().expect("the node has disks")
    }

    fn map(&self) -> &dyn OsdMap {
        self.cluster.cluster().expect("the storage is a cluster")
    }

    async fn disks_are_shown_by_the_kernels_names(&self) {
        let devices = self.host().devices().await.expect("an answer");
        let names: BTreeSet<&Device> = devices.iter().map(|found| &found.device).collect();
        assert_eq!(names.len(), devices.len(), "each once: {names:?}");
        for name in [&self.disk, &self.db_disk, &self.busy] {
            assert!(names.contains(name), "{names:?}");
        }
        let by_link = self.host().device(&self.link).await.expect("the link leads to a disk");
        assert_eq!(by_link, self.host().device(&self.disk).await.expect("it is there"));
        assert_eq!((&by_link.device, by_link.is_disk), (&self.disk, true));
        assert_eq!(by_link.size_bytes, 100 << 30);
        assert!(by_link.partitions.is_empty() && by_link.groups.is_empty(), "{by_link:?}");
        let busy = self.host().device(&self.busy).await.expect("it is there");
        assert!(!busy.mounted_at.is_empty(), "{busy:?}");
    }

    async fn a_device_differs_from_what_is_none(&self) {
        let nothing = Device::parse("/dev/pvc-contract-absent").expect("a device's name");
        for error in [
            self.host().device(&nothing).await.map(drop).expect_err("there is none"),
            self.host().partition(&nothing).await.map(drop).expect_err("there is none"),
        ] {
            assert!(
                matches!(&error, OsdError::NoDevice { device } if *device == nothing),
                "{error}"
            );
        }
        let error = self.host().device(&self.looped).await.expect_err("it leads nowhere");
        assert!(
            matches!(&error, OsdError::LinkLoop { device } if *device == self.looped),
            "{error}"
        );
        let error = self.host().zap(&self.busy).await.expect_err("it is in use");
        assert!(error.to_string().contains(self.busy.as_str()), "{error}");
    }

    async fn databases_have_a_group_of_their_own(&self) {
        let (host, group) = (self.host(), LvmName::db_group());
        assert_eq!(host.volume_group(&group).await.expect("an answer"), None);
        let volume = LogicalVolume::db_of(OsdId(0));
        let error = host.create_volume(&volume, 1 << 30).await.expect_err("there is no group");
        assert!(matches!(&error, OsdError::NoGroup { group } if *group == volume.group), "{error}");

        let part = host.partition(&self.db_disk).await.expect("it is empty");
        let shown = host.device(&self.db_disk).await.expect("it is there");
        assert_eq!(shown.partitions.iter().map(|part| &part.device).collect::<Vec<_>>(), [&part]);
        assert!(shown.partition_table.is_some(), "{shown:?}");
        host.create_volume_group(&group, &part).await.expect("there is no such group");
        let error = host.create_volume_group(&group, &part).await.expect_err("there is one");
        assert!(
            matches!(&error, OsdError::GroupExists { group: found } if *found == group),
            "{error}"
        );
        let shown = host.device(&self.db_disk).await.expect("it is there");
        assert_eq!(shown.groups, std::slice::from_ref(&group));

        let made = host.volume_group(&group).await.expect("an answer").expect("it was just made");
        assert_eq!((made.free_bytes, made.volumes.len()), (made.size_bytes, 0));
        host.create_volume(&volume, 1 << 30).await.expect("there is room");
        let error = host.create_volume(&volume, 1 << 30).await.expect_err("there is one");
        assert!(
            matches!(&error, OsdError::VolumeExists { volume: found } if *found == volume),
            "{error}"
        );
        let with = host.volume_group(&group).await.expect("an answer").expect("it was just made");
        assert_eq!(with.volume_bytes(&volume.name), Some(1 << 30));
        assert_eq!(with.free_bytes, made.free_bytes - (1 << 30));
        let error = host.create_volume(&LogicalVolume::db_of(OsdId(1)), 1 << 50).await;
        let error = error.expect_err("nobody has so much room").to_string();
        assert!(error.contains("osd-db/osd-1"), "{error}");
        host.remove_volume(&volume).await.expect("it is there");
        let error = host.remove_volume(&volume).await.expect_err("it is gone");
        assert!(
            matches!(&error, OsdError::NoVolume { volume: found } if *found == volume),
            "{error}"
        );
    }

    async fn a_disk_is_split_into_osds(&self) -> Vec<LvmOsd> {
        assert_eq!(self.host().lvm_osds().await.expect("an answer"), []);
        let made = self.host().prepare_all(&self.link, DeviceClass::Ssd, 2).await;
        made.expect("the disk is empty");
        let osds = self.host().lvm_osds().await.expect("an answer");
        let disk = self.host().device(&self.disk).await.expect("it is there");
        assert_eq!(osds.len(), 2, "{osds:?}");
        let cluster = self.map().cluster_uuid().await.expect("an answer");
        for osd in &osds {
            assert!(osd.is_on(&disk) && osd.cluster == cluster && osd.db.is_none(), "{osd:?}");
            assert!(osd.block.group.is_of_ceph() && disk.groups.contains(&osd.block.group));
            assert!(osd.block_bytes > 40 << 30 && osd.block_bytes <= 50 << 30, "{osd:?}");
            let state = self.host().daemon_state(osd.id).await.expect("an answer");
            assert_eq!(state, UnitState::Inactive, "it does not run by itself");
        }
        assert!(osds[0].id < osds[1].id && osds[0].uuid != osds[1].uuid, "{osds:?}");
        let states = self.map().osd_states().await.expect("an answer");
        for osd in &osds {
            let known = |state: &OsdState| (state.id, state.uuid) == (osd.id, Some(osd.uuid));
            assert!(states.iter().any(known), "{states:?}");
        }
        let again = self.host().prepare_all(&self.disk, DeviceClass::Ssd, 1).await;
        let error = again.expect_err("the disk is not empty any more").to_string();
        assert!(error.contains(self.disk.as_str()), "{error}");
        osds
    }

    async fn an_osd_gets_a_database_once(&self, osd: &LvmOsd) {
        let (host, db) = (self.host(), LogicalVolume::db_of(osd.id));
        let error = host.give_db(osd.id, osd.uuid, &db).await.expect_err("there is no volume");
        assert!(error.to_string().contains(&db.to_string()), "{error}");
        host.create_volume(&db, 1 << 30).await.expect("there is room");
        host.give_db(osd.id, osd.uuid, &db).await.expect("the volume is empty");
        let shown = host.lvm_osds().await.expect("an answer");
        let shown = shown.iter().find(|shown| shown.id == osd.id).expect("it is there");
        assert_eq!(shown.db, Some(db.device()));
        host.give_db(osd.id, osd.uuid, &db).await.expect_err("it has one");
    }

    async fn osds_run_when_they_are_activated(&self, osds: &[LvmOsd]) {
        let (host, another) = (self.host(), Uuid::from_u128(1));
        host.activate(osds[0].id, another).await.expect_err("that is another OSD");
        for osd in osds.iter().chain(osds) {
            host.activate(osd.id, osd.uuid).await.expect("it is prepared");
            let state = host.daemon_state(osd.id).await.expect("an answer");
            assert_eq!(state, UnitState::Active);
        }
        let error = host.zap(&self.disk).await.expect_err("OSDs run on it");
        assert!(error.to_string().contains(self.disk.as_str()), "{error}");
        for osd in osds.iter().chain(osds) {
            host.stop_daemon(osd.id).await.expect("it stops");
            let state = host.daemon_state(osd.id).await.expect("an answer");
            assert_eq!(state, UnitState::Inactive);
        }
        host.start_daemon(osds[0].id).await.expect("it starts");
        host.stop_daemon(osds[0].id).await.expect("it stops");
    }

    /// Makes an OSD step by step: so it is done when a disk is replaced.
    async fn an_osd_is_made_anew_with_its_number(&self, osds: &[LvmOsd]) {
        let (host, osd) = (self.host(), &osds[1]);
        let group = LvmName::block_group(Uuid::from_u128(0xb10c));
        let block = LogicalVolume::block_of(group.clone(), osd.uuid);
        host.zap(&self.disk).await.expect("nothing runs on it");
        host.create_volume_group(&group, &self.disk).await.expect("the disk is empty");
        let free = host.volume_group(&group).await.expect("an answer").expect("it was made");
        assert!(free.free_bytes >= (100 << 30) - 2 * EXTENT_BYTES, "{free:?}");
        let bytes = block_bytes(free.free_bytes, 2);
        host.create_volume(&block, bytes).await.expect("there is room");
        let db = LogicalVolume::db_of(osd.id);
        host.create_volume(&db, 1 << 30).await.expect("there is room");
        let prepare = || host.prepare(osd.id, osd.uuid, &block, Some(&db));
        prepare().await.expect_err("its number is in use");
        self.map().destroy(osd.id, true).await.expect("it does not run");
        prepare().await.expect("its number is free");
        prepare().await.expect_err("it is there");
        let shown = host.lvm_osds().await.expect("an answer");
        assert_eq!(shown.len(), 1, "the other one went with the disk: {shown:?}");
        let made = LvmOsd { block, block_bytes: bytes, db: Some(db.device()), ..osd.clone() };
        assert_eq!(shown[0], made);
        host.activate(osd.id, osd.uuid).await.expect("it is prepared");
        host.stop_daemon(osd.id).await.expect("it stops");
    }

    async fn a_disk_that_is_zapped_is_empty(&self) {
        for _ in 0..2 {
            self.host().zap(&self.link).await.expect("nothing runs on it");
            let disk = self.host().device(&self.disk).await.expect("it is there");
            assert!(disk.groups.is_empty() && disk.holders.is_empty(), "{disk:?}");
        }
        assert_eq!(self.host().lvm_osds().await.expect("an answer"), []);
    }
}
