//! Output of `rbd trash ls` and `rbd children`, in values.

use std::collections::BTreeSet;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use pvc_model::storage::{PoolName, TrashId, VolumeId, VolumeName};
use pvc_ports::{CloneName, TrashedVolume};
use serde::Deserialize;

use crate::answers::json;
use crate::librbd::{FoundClone, FoundInTrash};

/// Source of an image that somebody moved to the trash; others are Ceph's own, as mirroring is.
const BY_USER: &str = "USER";

/// An image in the trash.
pub(crate) struct Trashed {
    pub id: String,
    pub name: String,
    is_by_user: bool,
    /// Moments of its removal and until which it is kept, in seconds since 1970, if they are said
    /// clearly.
    times: Option<(u64, u64)>,
}

impl From<FoundInTrash> for Trashed {
    fn from(found: FoundInTrash) -> Self {
        let FoundInTrash { id, name, is_by_user, deleted_at, kept_until } = found;
        let times = u64::try_from(deleted_at).ok().zip(u64::try_from(kept_until).ok());
        Trashed { id, name, is_by_user, times }
    }
}

impl From<Line> for Trashed {
    fn from(line: Line) -> Self {
        let Line { id, name, source, deleted_at, status } = line;
        let until =
            status.strip_prefix("protected until ").or_else(|| status.strip_prefix("expired at "));
        let times = seconds(&deleted_at).zip(until.and_then(seconds));
        if times.is_none() {
            tracing::debug!(
                id,
                removed = deleted_at,
                state = status,
                "an image in the trash has a \
                                                                       state that is not understood"
            );
        }
        Trashed { id, name, is_by_user: source == BY_USER, times }
    }
}

impl From<FoundClone> for CloneName {
    fn from(found: FoundClone) -> Self {
        let FoundClone { pool, image, is_in_trash } = found;
        let volume = VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(image) };
        CloneName { volume, is_in_trash }
    }
}

/// Line of `rbd trash ls --all --long`.
#[derive(Deserialize)]
struct Line {
    id: String,
    name: String,
    #[serde(default)]
    source: String,
    #[serde(default)]
    deleted_at: String,
    /// `protected until TIME` or `expired at TIME`.
    #[serde(default)]
    status: String,
}

/// Line of `rbd children --all`.
#[derive(Deserialize)]
struct Child {
    pool: String,
    image: String,
    #[serde(default)]
    trash: bool,
}

pub(crate) fn trashed(text: &[u8]) -> Result<Vec<Trashed>, String> {
    let lines: Vec<Line> = json(text)?;
    Ok(lines.into_iter().map(Trashed::from).collect())
}

/// The images that were moved there by whoever asked for it. An identifier that cannot be one of
/// Ceph's could not be told to it, either; and what does not say clearly until when it is kept is
/// left alone.
pub(crate) fn moved_by_users(pool: &PoolName, lines: Vec<Trashed>) -> Vec<TrashedVolume> {
    let ours = lines.into_iter().filter(|line| line.is_by_user);
    let known = ours.filter_map(|line| TrashId::parse(&line.id).map(|id| (id, line)));
    known.filter_map(|(id, line)| entry(pool, id, &line)).collect()
}

/// Identifiers among the keys of a pool's trash, or of its directory: one key a line.
pub(crate) fn ids_in_keys(keys: &[u8]) -> Vec<String> {
    let keys = String::from_utf8_lossy(keys);
    keys.split('\n').filter_map(|key| key.strip_prefix("id_")).map(str::to_owned).collect()
}

/// Identifiers among the keys of the directory of a pool whose images have these names. The lines
/// of a name that has several may look like identifiers, and are none.
pub(crate) fn ids_in_directory(keys: &[u8], names: &BTreeSet<VolumeName>) -> BTreeSet<String> {
    let mut ids = ids_in_keys(keys);
    let lines = names.iter().flat_map(|name| name.as_str().split('\n').skip(1));
    for line in lines.filter_map(|line| line.strip_prefix("id_")) {
        if let Some(at) = ids.iter().position(|id| id == line) {
            ids.swap_remove(at);
        }
    }
    ids.into_iter().collect()
}

fn entry(pool: &PoolName, id: TrashId, line: &Trashed) -> Option<TrashedVolume> {
    let (removed_at, kept_until) = line.times?;
    let name = VolumeName::new(&line.name);
    Some(TrashedVolume { pool: pool.clone(), id, name, removed_at, kept_until })
}

/// A moment as `asctime` prints it, in UTC: `Sat Nov 28 09:59:59 2026`.
fn seconds(text: &str) -> Option<u64> {
    let time = DateTime::strptime("%a %b %e %H:%M:%S %Y", text).ok()?;
    let moment = time.to_zoned(TimeZone::UTC).ok()?;
    u64::try_from(moment.timestamp().as_second()).ok()
}

pub(crate) fn children(text: &[u8]) -> Result<Vec<CloneName>, String> {
    let found: Vec<Child> = json(text)?;
    let clone = |child: Child| {
        let volume = VolumeName::new(child.image);
        let volume = VolumeId { pool: PoolName::new(child.pool), volume };
        CloneName { volume, is_in_trash: child.trash }
    };
    Ok(found.into_iter().map(clone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vms() -> PoolName {
        PoolName::new("vms")
    }

    fn of_users(text: &str) -> Result<Vec<TrashedVolume>, String> {
        Ok(moved_by_users(&vms(), trashed(text.as_bytes())?))
    }

    /// Recorded: Ceph 16.2.15, with `TZ=UTC`.
    const PACIFIC: &str = r#"[
        {"id":"101ecee7904b","name":"b","source":"USER","deleted_at":"Thu Nov 26 23:29:15 2026",
         "status":"protected until Sat Nov 28 09:59:59 2026"},
        {"id":"104a5301c301","name":"d","source":"USER","deleted_at":"Sun Feb  7 06:28:15 2027",
         "status":"expired at Sun Feb  7 06:28:15 2027","parent":{"pool":"vms",
         "pool_namespace":"","image":"p","snapshot":"pvc-clone-c"}}]"#;

    #[test]
    fn what_is_in_the_trash_is_known_with_its_times() {
        let of = |id: &str, name: &str, removed_at, kept_until| TrashedVolume {
            pool: vms(),
            id: TrashId::parse(id).unwrap(),
            name: VolumeName::new(name),
            removed_at,
            kept_until,
        };
        let expected = vec![
            of("101ecee7904b", "b", 1_795_735_755, 1_795_859_999),
            of("104a5301c301", "d", 1_801_981_695, 1_801_981_695),
        ];
        assert_eq!(of_users(PACIFIC), Ok(expected));
        assert_eq!(of_users("[]"), Ok(vec![]));
    }

    /// Recorded: Ceph 16.2.15, `rados listomapkeys rbd_directory`.
    #[test]
    fn the_images_of_a_pool_are_known_by_their_identifiers() {
        let keys = b"id_10225c9a2ce1\nid_1026d7a1\nname_a\nname_id_1\n";
        assert_eq!(ids_in_keys(keys), ["10225c9a2ce1", "1026d7a1"]);
        assert!(ids_in_keys(b"").is_empty());
        let ids = ids_in_directory(keys, &BTreeSet::from(["a", "id_1"].map(VolumeName::new)));
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["10225c9a2ce1", "1026d7a1"]);
    }

    /// `rbd` refuses no name for a line break in it.
    #[test]
    fn a_line_of_a_name_is_no_identifier() {
        let names = BTreeSet::from(["x\nid_104a\nname_y", "z\nid_1b"].map(VolumeName::new));
        let keys = b"id_1a\nid_1b\nname_x\nid_104a\nname_y\nname_z\nid_1b\n";
        let ids = ids_in_directory(keys, &names);
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), ["1a", "1b"]);
    }

    #[test]
    fn what_others_moved_there_is_none_of_ours() {
        let text = r#"[{"id":"1a","name":"m","source":"MIRRORING","deleted_at":"x","status":"y"},
            {"id":"1b","name":"m","source":"MIGRATION"},{"id":"1c","name":"m"},
            {"id":"1d","name":"m","source":"USER_PARENT","deleted_at":"x","status":"y"},
            {"id":"../1","name":"m","source":"USER","deleted_at":"x","status":"y"}]"#;
        assert_eq!(of_users(text), Ok(vec![]));
        assert_eq!(trashed(text.as_bytes()).map(|all| all.len()), Ok(5));
    }

    #[test]
    fn times_that_are_none_are_not_guessed_at() {
        for (deleted_at, status) in [
            ("Thu Nov 26 23:29:15 2026", "protected until yesterday"),
            ("Thu Nov 26 23:29:15 2026", "kept"),
            ("Thu Nov 26 23:29:15 1926", "expired at Thu Nov 26 23:29:15 2026"),
            ("2026-11-26", "expired at Thu Nov 26 23:29:15 2026"),
        ] {
            let text = format!(
                r#"[{{"id":"1a","name":"m","source":"USER","deleted_at":"{deleted_at}",
                    "status":"{status}"}},{{"id":"1b","name":"n","source":"USER",
                    "deleted_at":"Thu Nov 26 23:29:15 2026",
                    "status":"expired at Thu Nov 26 23:29:15 2026"}}]"#
            );
            let names: Vec<_> = of_users(&text).unwrap().into_iter().map(|e| e.name).collect();
            assert_eq!(names, [VolumeName::new("n")], "{deleted_at}, {status}");
        }
        for cut in [0, 1, 30, 200, PACIFIC.len() - 1] {
            assert!(of_users(&PACIFIC[..cut]).is_err(), "{cut}");
        }
    }

    /// Recorded: Ceph 16.2.15.
    #[test]
    fn clones_are_known_by_name_also_those_in_the_trash() {
        let text = br#"[{"pool":"vms","pool_namespace":"","image":"c","id":"104855812521",
            "trash":false},{"pool":"vms","pool_namespace":"","image":"d","id":"104a5301c301",
            "trash":true}]"#;
        let found = children(text).unwrap();
        let short: Vec<_> =
            found.iter().map(|clone| (clone.volume.to_string(), clone.is_in_trash)).collect();
        assert_eq!(short, [("vms/c".to_owned(), false), ("vms/d".to_owned(), true)]);
        let plain = br#"[{"pool":"vms","pool_namespace":"","image":"c"}]"#;
        assert!(!children(plain).unwrap()[0].is_in_trash);
    }
}
