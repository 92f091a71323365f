//! The answers of Ceph 16 to 19 as the parsers meet them. They are composed, in the shapes of
//! answers that others have published: `tests/releases/README.md` says of each whose, and which
//! were not found.

use pvc_model::fullness::Ratios;
use pvc_model::osd::{Device, LogicalVolume, LvmName, OsdId};
use pvc_model::storage::PoolName;
use serde_json::Value;

use crate::{answers, figures, osd_answers, osd_map, trash_answers};

/// Answers of one release.
struct Release {
    number: u32,
    status: &'static str,
    health: &'static str,
    df: &'static str,
    pg_dump: &'static str,
    pool_detail: &'static str,
    osd_dump: &'static str,
    osd_df: &'static str,
    osd_status: &'static str,
    rbd_info: &'static str,
    rbd_snap_ls: &'static str,
    rbd_status: &'static str,
    rbd_lock_ls: &'static str,
    rbd_ls: &'static str,
    rbd_ls_long: &'static str,
    rbd_snap_ls_all: &'static str,
    rbd_trash_ls: &'static str,
    rbd_children: &'static str,
    lvm_list: &'static str,
}

macro_rules! answer {
    ($number:literal, $file:literal) => {
        include_str!(concat!("../tests/releases/", $number, "/", $file))
    };
}

macro_rules! release {
    ($number:literal) => {
        Release {
            number: $number,
            status: answer!($number, "status.txt"),
            health: answer!($number, "health.json"),
            df: answer!($number, "df.json"),
            pg_dump: answer!($number, "pg-dump.json"),
            pool_detail: answer!($number, "pool-ls-detail.json"),
            osd_dump: answer!($number, "osd-dump.json"),
            osd_df: answer!($number, "osd-df.json"),
            osd_status: answer!($number, "osd-status.txt"),
            rbd_info: answer!($number, "rbd-info.json"),
            rbd_snap_ls: answer!($number, "rbd-snap-ls.json"),
            rbd_status: answer!($number, "rbd-status.json"),
            rbd_lock_ls: answer!($number, "rbd-lock-ls.json"),
            rbd_ls: answer!($number, "rbd-ls.json"),
            rbd_ls_long: answer!($number, "rbd-ls-long.json"),
            rbd_snap_ls_all: answer!($number, "rbd-snap-ls-all.json"),
            rbd_trash_ls: answer!($number, "rbd-trash-ls.json"),
            rbd_children: answer!($number, "rbd-children.json"),
            lvm_list: answer!($number, "lvm-list.json"),
        }
    };
}

const RELEASES: [Release; 4] = [release!(16), release!(17), release!(18), release!(19)];

#[test]
fn pools_of_every_release_have_their_figures() {
    for Release { number, df, pg_dump, .. } in RELEASES {
        let pools = figures::pool_figures(df.as_bytes(), pg_dump.as_bytes()).expect("understood");
        let vms = pools.iter().find(|pool| pool.name.as_str() == "vms").expect("it is there");
        assert_eq!(pools.len(), 2, "Ceph {number}");
        assert_eq!(
            (vms.id, vms.stored_bytes, vms.free_bytes, vms.used_bytes),
            (2, 12_884_901_888, 9_896_198_144, 38_654_705_664),
            "Ceph {number}"
        );
        assert_eq!((vms.objects, vms.object_copies, vms.write_ops), (3100, 9300, 9100));
        assert_eq!((vms.read_bytes, vms.used_fraction), (5200 * 4 * 1024, 0.302_734));
        let info = figures::fullness(df.as_bytes()).expect("understood");
        assert_eq!(info[1].free_bytes, vms.free_bytes, "Ceph {number}");
    }
}

#[test]
fn osds_of_every_release_have_their_figures_also_one_that_never_was_up() {
    for Release { number, osd_dump, osd_df, osd_status, .. } in RELEASES {
        let osds = figures::osd_figures(osd_dump.as_bytes(), osd_df.as_bytes(), osd_status)
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        assert_eq!(osds.iter().map(|osd| osd.id).collect::<Vec<_>>(), [0, 1, 2], "Ceph {number}");
        assert_eq!((osds[0].node.as_str(), osds[0].read_data.as_str()), ("hv1", "124k"));
        assert_eq!((osds[1].is_up, osds[1].primary_affinity, osds[1].kib), (true, 0.5, 10_485_760));
        let never = &osds[2];
        assert_eq!((never.is_up, never.is_in, never.utilization, never.variance), {
            (false, false, 0.0, 0.0)
        });
        assert_eq!((never.node.as_str(), never.state.as_str()), ("", "exists,new"));
    }
}

#[test]
fn pools_of_every_release_say_whether_they_are_for_volumes() {
    for Release { number, pool_detail, .. } in RELEASES {
        let pools = figures::pools(pool_detail.as_bytes())
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        let found: Vec<_> =
            pools.iter().map(|pool| (pool.name.as_str(), pool.is_for_volumes)).collect();
        let managers = if number == 16 { "device_health_metrics" } else { ".mgr" };
        assert_eq!(found, [(managers, false), ("vms", true)], "Ceph {number}");
    }
}

#[test]
fn every_release_says_when_its_osds_are_full() {
    for Release { number, osd_dump, .. } in RELEASES {
        let ratios = figures::full_ratios(osd_dump.as_bytes());
        assert_eq!(ratios, Ok(Ratios::default()), "Ceph {number}");
    }
    let own = br#"{"nearfull_ratio":0.7,"backfillfull_ratio":0.8,"full_ratio":0.9}"#;
    assert_eq!(figures::full_ratios(own), Ok(Ratios::new(0.7, 0.8, 0.9).expect("they rise")));
    let none = br#"{"nearfull_ratio":0,"backfillfull_ratio":0,"full_ratio":0}"#;
    assert_eq!(figures::full_ratios(none), Ok(Ratios::default()));
    assert!(figures::full_ratios(b"{}").is_err());
}

#[test]
fn images_of_every_release_have_size_snapshots_watchers_and_locks() {
    for Release { number, rbd_info, rbd_snap_ls, rbd_status, rbd_lock_ls, .. } in RELEASES {
        let image: answers::Image = answers::json(rbd_info.as_bytes()).expect("understood");
        assert_eq!(image.size, 10 << 30, "Ceph {number}");
        let parent = image.parent.expect("it is a clone");
        let place = (parent.pool.as_str(), parent.image.as_str(), parent.snapshot.as_str());
        assert_eq!((place, parent.trash), (("vms", "base", "s"), false), "Ceph {number}");
        let snapshots = answers::snapshots(rbd_snap_ls.as_bytes()).expect("understood");
        assert_eq!(snapshots[0].name.as_str(), "before", "Ceph {number}");
        assert_eq!(answers::watchers(rbd_status.as_bytes()), Ok(vec!["10.0.0.1".to_owned()]));
        let locks = answers::locks(rbd_lock_ls.as_bytes()).expect("understood");
        assert_eq!((locks[0].id.as_str(), locks[0].address.as_str()), ("auto 139690", "10.0.0.1"));
    }
}

#[test]
fn the_health_of_every_release_has_its_checks_with_severity_and_message() {
    for Release { number, health, status, .. } in RELEASES {
        let health: Value = serde_json::from_str(health).expect("JSON");
        assert_eq!(health["status"], "HEALTH_WARN", "Ceph {number}");
        for check in health["checks"].as_object().expect("checks by name").values() {
            assert!(check["severity"].is_string() && check["summary"]["message"].is_string());
        }
        assert!(status.contains("health: HEALTH_WARN"), "Ceph {number}");
    }
}

#[test]
fn osds_of_every_release_have_their_states() {
    for Release { number, osd_dump, .. } in RELEASES {
        let states = osd_map::states_in(osd_dump.as_bytes())
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        let short: Vec<_> =
            states.iter().map(|osd| (osd.id.0, osd.is_up, osd.is_in, osd.is_new)).collect();
        let never = (2, false, false, true);
        assert_eq!(short, [(0, true, true, false), (1, true, true, false), never], "Ceph {number}");
        assert!(states.iter().all(|osd| osd.uuid.is_some()), "Ceph {number}");
    }
}

#[test]
fn the_images_of_a_pool_of_every_release_are_listed_with_their_snapshots() {
    for Release { number, rbd_ls, rbd_ls_long, .. } in RELEASES {
        let names: Vec<String> = answers::json(rbd_ls.as_bytes()).expect("understood");
        assert_eq!(names.len(), 3, "Ceph {number}");
        let found = answers::volumes(&PoolName::new("vms"), rbd_ls_long.as_bytes())
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        let short: Vec<_> = found
            .iter()
            .map(|volume| (volume.id.volume.as_str(), volume.size_bytes, volume.snapshots.len()))
            .collect();
        assert_eq!(short, [("old", 1 << 20, 0), ("web1_sda", 10 << 30, 1)], "Ceph {number}");
        assert_eq!(found[1].snapshots[0].size_bytes, 5 << 30, "Ceph {number}");
    }
}

#[test]
fn snapshots_of_every_release_that_were_removed_are_known() {
    for Release { number, rbd_snap_ls_all, .. } in RELEASES {
        let all = answers::snapshots(rbd_snap_ls_all.as_bytes())
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        let removed: Vec<_> = all.iter().map(answers::Snapshot::is_removed).collect();
        assert_eq!(removed, [false, true, false, false], "Ceph {number}");
    }
}

#[test]
fn the_trash_of_every_release_has_what_users_removed() {
    let vms = PoolName::new("vms");
    for Release { number, rbd_trash_ls, rbd_children, .. } in RELEASES {
        let lines = trash_answers::trashed(rbd_trash_ls.as_bytes())
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        assert_eq!(lines.len(), 4, "Ceph {number}");
        let short: Vec<_> = trash_answers::moved_by_users(&vms, lines)
            .into_iter()
            .map(|entry| (entry.name.as_str().to_owned(), entry.removed_at, entry.kept_until))
            .collect();
        let (b, d) = ((1_795_735_755, 1_795_859_999), (1_801_981_695, 1_801_981_695));
        assert_eq!(
            short,
            [("b".to_owned(), b.0, b.1), ("d".to_owned(), d.0, d.1)],
            "Ceph {number}"
        );
        let clones = trash_answers::children(rbd_children.as_bytes()).expect("understood");
        let clones: Vec<_> =
            clones.iter().map(|clone| (clone.volume.to_string(), clone.is_in_trash)).collect();
        assert_eq!(clones, [("vms/c".to_owned(), false), ("vms/d".to_owned(), true)]);
    }
}

#[test]
fn osds_on_logical_volumes_of_every_release_are_known_with_their_databases() {
    for Release { number, lvm_list, .. } in RELEASES {
        let osds = osd_answers::lvm_osds(lvm_list.as_bytes())
            .unwrap_or_else(|why| panic!("Ceph {number}: {why}"));
        let [osd] = &osds[..] else { panic!("Ceph {number}: one OSD, not {}", osds.len()) };
        let name = |text: &str| LvmName::parse(text).expect("it is a name");
        let block = LogicalVolume {
            group: name("ceph-1"),
            name: name("osd-block-6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000"),
        };
        assert_eq!((osd.id, &osd.block, osd.block_bytes), (OsdId(0), &block, 10_733_223_936));
        let device = |path: &str| Device::parse(path).expect("it is a device");
        assert_eq!(osd.devices, [device("/dev/sdb")], "Ceph {number}");
        assert_eq!((&osd.db, &osd.wal), (&Some(device("/dev/osd-db/osd-0")), &None));
    }
}

/// Warnings of libraries and programs come before the answer where both go to one place.
#[test]
fn answers_of_every_release_are_understood_behind_a_warning() {
    for Release { number, df, lvm_list, rbd_ls, .. } in RELEASES {
        let warned = |answer: &str| format!("WARNING: something is deprecated\n{answer}");
        assert_eq!(figures::fullness(warned(df).as_bytes()).map(|all| all.len()), Ok(2));
        let osds = osd_answers::lvm_osds(warned(lvm_list).as_bytes());
        assert_eq!(osds.map(|all| all.len()), Ok(1), "Ceph {number}");
        assert!(answers::json::<Vec<String>>(warned(rbd_ls).as_bytes()).is_ok(), "Ceph {number}");
    }
}
