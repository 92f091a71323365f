//! The answers of Ceph 16 to 19 as the parsers meet them. They are composed, from documentation:
//! `tests/releases/README.md`.

use pvc_model::fullness::Ratios;
use serde_json::Value;

use crate::{answers, figures};

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
