//! The trash of a pool, and moves to it that were cut off.

use super::*;

/// Everything that Ceph keeps of a name: the object by which it is opened, and its list entries.
pub(crate) struct Name {
    pub(crate) volume: VolumeId,
    pub(crate) id: String,
    pub(crate) opened: Vec<u8>,
    pub(crate) listed: [Vec<u8>; 2],
}

/// States of an entry of the trash (Ceph, `src/cls/rbd/cls_rbd_types.h`).
const MOVING: u8 = 1;
const RESTORING: u8 = 3;

impl Name {
    pub(crate) fn of(ceph: &Ceph, volume: &VolumeId) -> Self {
        let object = format!("rbd_id.{}", volume.volume);
        let opened = ceph.rados(&volume.pool, &["get", &object, "-"], &[]);
        // Its length in four bytes comes first.
        let id = String::from_utf8(opened[4..].to_vec()).unwrap();
        let mut name = Name { volume: volume.clone(), id, opened, listed: Default::default() };
        let [by_name, by_id] = name.keys().map(|key| name.value(ceph, "rbd_directory", &key));
        name.listed = [by_name, by_id];
        name
    }

    pub(crate) fn keys(&self) -> [String; 2] {
        [format!("name_{}", self.volume.volume), format!("id_{}", self.id)]
    }

    pub(crate) fn value(&self, ceph: &Ceph, object: &str, key: &str) -> Vec<u8> {
        let file = ceph.scratch.path().join("value").display().to_string();
        ceph.rados(&self.volume.pool, &["getomapval", object, key, &file], &[]);
        std::fs::read(file).unwrap()
    }

    pub(crate) fn open(&self, ceph: &Ceph) {
        let object = format!("rbd_id.{}", self.volume.volume);
        ceph.rados(&self.volume.pool, &["put", &object, "-"], &self.opened);
    }

    pub(crate) fn list(&self, ceph: &Ceph) {
        for (key, value) in self.keys().iter().zip(&self.listed) {
            ceph.rados(&self.volume.pool, &["setomapval", "rbd_directory", key], value);
        }
    }

    /// The state is the last byte of the trash's entry, and the moments before it are of eight
    /// bytes each, whose first four are seconds: that of the move is long past then.
    pub(crate) fn state(&self, ceph: &Ceph, state: u8) {
        let [_, key] = self.keys();
        let mut value = self.value(ceph, "rbd_trash", &key);
        let moved = value.len() - 17;
        value[moved..moved + 4].copy_from_slice(&1_700_000_000_u32.to_le_bytes());
        *value.last_mut().unwrap() = state;
        ceph.rados(&self.volume.pool, &["setomapval", "rbd_trash", &key], &value);
    }
}

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);

/// Moves a volume of content `dear` with a snapshot to the trash; what its name was.
pub(crate) async fn trash(ceph: &Ceph, volume: &VolumeId) -> Name {
    ceph.storage.create(volume, 1 << 20, false).await.unwrap();
    ceph.write(volume, 0, b"dear").await;
    ceph.storage.snapshot(volume, &SnapshotName::new("s")).await.unwrap();
    let name = Name::of(ceph, volume);
    assert_eq!(ceph.storage.trash(volume, DAY).await.unwrap().id.as_str(), name.id);
    name
}

pub(crate) async fn trashed(ceph: &Ceph, volume: &VolumeId) -> Vec<TrashId> {
    let all = ceph.storage.trashed(&volume.pool).await.unwrap().into_iter();
    all.filter(|entry| entry.name == volume.volume).map(|entry| entry.id).collect()
}

/// Cut off when the trash had its entry and nothing else was done.
pub(crate) async fn what_is_half_in_the_trash_is_a_volume(ceph: &Ceph) {
    let half = id("vms/half");
    let name = trash(ceph, &half).await;
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.state(ceph, MOVING);
    name.open(ceph);
    name.list(ceph);
    assert_eq!(trashed(ceph, &half).await, []);
    let purged = ceph.storage.purge(&half.pool, &trash_id).await;
    assert!(matches!(purged, Err(StorageError::NoTrashed { .. })), "{purged:?}");
    assert_eq!(ceph.storage.volume(&half).await.unwrap().snapshots.len(), 1, "it is not touched");
    assert_eq!(ceph.read(&half, 0, 4).await, b"dear");
    assert!(ceph.storage.repair_name(&half).await.unwrap(), "it has its name");
    assert_eq!(ceph.storage.trash(&half, DAY).await.unwrap().id, trash_id);
    assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id));
    ceph.storage.purge(&half.pool, &trash_id).await.unwrap();
    assert_eq!(trashed(ceph, &half).await, []);
}

/// The same, and the volume was renamed since: Ceph itself would purge it, as its entry is whole.
pub(crate) async fn a_volume_that_was_renamed_is_none_of_the_trash(ceph: &Ceph) {
    let (half, renamed) = (id("vms/half"), id("vms/renamed"));
    let name = trash(ceph, &half).await;
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.open(ceph);
    name.list(ceph);
    ceph.storage.rename(&half, &renamed.volume).await.unwrap();
    assert_eq!(trashed(ceph, &half).await, []);
    let purged = ceph.storage.purge(&half.pool, &trash_id).await;
    assert!(matches!(purged, Err(StorageError::NoTrashed { .. })), "{purged:?}");
    assert_eq!(ceph.read(&renamed, 0, 4).await, b"dear");
    ceph.storage.remove(&renamed).await.unwrap();
}

/// Cut off when the name opened nothing any more, and the pool still listed it: Ceph lists no
/// volume of the pool with its size then.
pub(crate) async fn a_move_that_was_cut_off_later_is_brought_to_its_end(ceph: &Ceph) {
    let half = id("vms/half");
    for is_mended in [true, false] {
        let name = trash(ceph, &half).await;
        let trash_id = TrashId::parse(&name.id).unwrap();
        name.state(ceph, MOVING);
        name.list(ceph);
        let listed = ceph.storage.volumes(&half.pool).await.unwrap();
        let has = |volume: &VolumeId| listed.iter().any(|info| info.id == *volume);
        assert!(has(&id("vms/new")) && !has(&half), "{listed:?}");
        assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id), "but for its name");
        match is_mended {
            true => assert!(!ceph.storage.repair_name(&half).await.unwrap()),
            false => assert_eq!(ceph.storage.trash(&half, DAY).await.unwrap().id, trash_id),
        }
        assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id));
        ceph.storage.restore(&half.pool, &trash_id, &half.volume).await.unwrap();
        assert_eq!(ceph.read(&half, 0, 4).await, b"dear");
        ceph.storage.remove(&half).await.unwrap();
    }
}

/// Cut off before the entry said that it is whole: Ceph neither restores nor purges it so.
pub(crate) async fn a_move_that_was_cut_off_at_its_last_step_is_brought_to_its_end(ceph: &Ceph) {
    let half = id("vms/half");
    for is_purged in [false, true] {
        let name = trash(ceph, &half).await;
        let trash_id = TrashId::parse(&name.id).unwrap();
        name.state(ceph, MOVING);
        assert!(!ceph.storage.repair_name(&half).await.unwrap());
        assert_eq!(trashed(ceph, &half).await, std::slice::from_ref(&trash_id));
        match is_purged {
            true => ceph.storage.purge(&half.pool, &trash_id).await.unwrap(),
            false => {
                ceph.storage.restore(&half.pool, &trash_id, &half.volume).await.unwrap();
                assert_eq!(ceph.read(&half, 0, 4).await, b"dear");
                ceph.storage.remove(&half).await.unwrap();
            }
        }
        assert_eq!(trashed(ceph, &half).await, []);
    }
}

/// A program that finds no keyring ends as one that finds no object.
pub(crate) async fn a_ceph_that_cannot_be_asked_has_not_said_that_something_is_absent(ceph: &Ceph) {
    let options = CephOptions {
        config: ceph.cluster.config(),
        keyring: ceph.scratch.path().join("none"),
        user: "nobody".to_owned(),
        access: access(),
    };
    let storage = RbdStorage::new(options, Arc::new(LinuxExec));
    let volume = id("vms/new");
    for error in [
        storage.volume(&volume).await.unwrap_err(),
        storage.trash(&volume, DAY).await.unwrap_err(),
        storage.trashed(&volume.pool).await.unwrap_err(),
        storage.repair_name(&volume).await.unwrap_err(),
    ] {
        assert!(matches!(error, StorageError::Io { .. }), "{error:?}");
    }
}

pub(crate) async fn a_restoration_that_was_cut_off_can_be_done_again(ceph: &Ceph) {
    let half = id("vms/half");
    let name = trash(ceph, &half).await;
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.state(ceph, RESTORING);
    name.open(ceph);
    assert!(!ceph.storage.repair_name(&half).await.unwrap(), "the pool does not list it");
    assert!(ceph.storage.volume(&half).await.is_err(), "its name is free");
    assert!(!ceph.storage.repair_name(&half).await.unwrap(), "also a second time");
    ceph.storage.restore(&half.pool, &trash_id, &half.volume).await.unwrap();
    assert_eq!(ceph.read(&half, 0, 4).await, b"dear");

    // Cut off when only the trash still had its entry.
    let name = {
        ceph.storage.remove(&half).await.unwrap();
        trash(ceph, &half).await
    };
    let trash_id = TrashId::parse(&name.id).unwrap();
    name.state(ceph, RESTORING);
    name.open(ceph);
    name.list(ceph);
    assert_eq!(trashed(ceph, &half).await, []);
    let purged = ceph.storage.purge(&half.pool, &trash_id).await;
    assert!(matches!(purged, Err(StorageError::NoTrashed { .. })), "{purged:?}");
    assert!(ceph.storage.repair_name(&half).await.unwrap());
    assert_eq!(ceph.read(&half, 0, 4).await, b"dear");

    // The same, and a move that was cut off, of what is to be removed.
    for state in [RESTORING, MOVING] {
        ceph.storage.remove(&half).await.unwrap();
        let name = trash(ceph, &half).await;
        name.state(ceph, state);
        name.open(ceph);
        name.list(ceph);
    }

    // Cut off of a removal: the pool lists it, and nothing is there any more.
    let gone = Name::of(ceph, &half);
    ceph.storage.remove(&half).await.unwrap();
    gone.list(ceph);
    assert!(ceph.storage.repair_name(&half).await.is_err(), "nobody can say what it was");
    ceph.storage.remove(&half).await.expect("its removal comes to its end");
    assert!(!ceph.storage.repair_name(&half).await.unwrap());
    ceph.storage.create(&half, 1 << 20, false).await.expect("its name is free");

    // What a rename that was cut off has left.
    let left = id("vms/left");
    leave_name(ceph, &half, &left);
    assert!(!ceph.storage.repair_name(&left).await.unwrap(), "it is the name of no volume");
    ceph.storage.create(&left, 1 << 20, false).await.expect("its name is free");
}

/// Ceph takes names of several lines, and lists what it has a key a line.
pub(crate) async fn a_line_in_the_name_of_an_image_hides_nothing_in_the_trash(ceph: &Ceph) {
    let volume = id("vms/hidden");
    ceph.storage.create(&volume, 1 << 20, false).await.unwrap();
    let entry = ceph.storage.trash(&volume, DAY).await.unwrap();
    let name = format!("--image=other\nid_{}", entry.id);
    ceph.rbd(&["create", "--size=1M", "--pool=vms", &name]);
    assert_eq!(trashed(ceph, &volume).await, std::slice::from_ref(&entry.id));
    ceph.rbd(&["rm", "--pool=vms", &name]);
    ceph.storage.purge(&volume.pool, &entry.id).await.unwrap();
}
