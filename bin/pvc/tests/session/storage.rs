//! Pools, volumes and snapshots are changed by one request each, after a question where something
//! may be lost.

use super::*;

/// A server of which every change succeeds.
fn server(request: &Received, before: usize) -> Reply {
    match request.method.as_str() {
        "GET" => cluster(request, before),
        _ => message("done"),
    }
}

#[test]
fn each_change_of_the_storage_is_one_request() {
    let volume = "/storage/ceph/volume";
    let snapshot = "/storage/ceph/snapshot";
    let trash = "/storage/ceph/trash";
    for (line, request) in [
        (
            "pool add fast 64 -t ssd",
            "POST /storage/ceph/pool?pool=fast&pgs=64&replcfg=copies%3D3%2Cmincopies%3D2&tier=ssd"
                .to_owned(),
        ),
        ("pool set-pgs fast 128 -y", "PUT /storage/ceph/pool/fast?pgs=128".to_owned()),
        (
            "pool remove fast -y",
            "DELETE /storage/ceph/pool/fast?yes-i-really-mean-it=yes".to_owned(),
        ),
        (
            "volume add vms web1_data 10G",
            format!("POST {volume}?volume=web1_data&pool=vms&size=10G&force=False"),
        ),
        ("volume resize vms a 20G -y", format!("PUT {volume}/vms/a?new_size=20G")),
        ("volume resize vms a 2G --force -y", format!("PUT {volume}/vms/a?new_size=2G&force=True")),
        ("volume rename vms a b -y", format!("PUT {volume}/vms/a?new_name=b")),
        ("volume clone vms a b", format!("POST {volume}/vms/a/clone?new_volume=b")),
        (
            "volume clone vms a b --copy-on-write",
            format!("POST {volume}/vms/a/clone?new_volume=b&copy_on_write=True"),
        ),
        ("volume flatten vms a", format!("POST {volume}/vms/a/flatten")),
        ("volume scan vms a", format!("POST {volume}/vms/a/scan")),
        ("volume scan vms a --force -y", format!("POST {volume}/vms/a/scan?force=True")),
        ("volume remove vms a -y", format!("DELETE {volume}/vms/a")),
        ("volume remove vms a -y --purge", format!("DELETE {volume}/vms/a?purge=True")),
        ("trash restore vms 1a", format!("POST {trash}/vms/1a/restore")),
        ("trash restore vms 1a -n b", format!("POST {trash}/vms/1a/restore?new_name=b")),
        ("trash purge vms 1a -y", format!("DELETE {trash}/vms/1a")),
        (
            "volume snapshot add vms a then",
            format!("POST {snapshot}?snapshot=then&volume=a&pool=vms"),
        ),
        (
            "volume snapshot rename vms a then before",
            format!("PUT {snapshot}/vms/a/then?new_name=before"),
        ),
        ("volume snapshot rollback vms a then -y", format!("POST {snapshot}/vms/a/then/rollback")),
        ("volume snapshot remove vms a then -y", format!("DELETE {snapshot}/vms/a/then")),
    ] {
        let stub = Stub::start(server);
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        let output = User::of(&stub).run(&words);
        assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{line}: {output:?}");
        assert_eq!(changes(&stub), [request], "{line}");
    }
}

#[test]
fn what_may_lose_something_is_asked_about_and_not_done_without_a_yes() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    for line in [
        "pool remove fast",
        "pool set-pgs fast 128",
        "volume resize vms a 20G",
        "volume rename vms a b",
        "volume remove vms a",
        "volume scan vms a --force",
        "trash purge vms 1a",
        "volume snapshot rollback vms a then",
        "volume snapshot remove vms a then",
    ] {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        let output = user.answering("n\n", &words);
        assert!(out(&output).ends_with("Aborted.\n"), "{line}: {output:?}");
        assert!(changes(&stub).is_empty(), "{line}: {:?}", changes(&stub));
    }
}

#[test]
fn a_size_or_a_class_that_is_none_asks_nobody() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    for line in [
        "volume add vms a -1",
        "volume add vms a 10Q",
        "volume add vms a ١٠G",
        "volume resize vms a G -y",
        "pool add fast 64 -t tape",
        "pool add fast many",
    ] {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        assert_eq!(code(&user.run(&words)), 2, "{line}");
    }
    assert!(stub.lines().is_empty(), "{:?}", stub.lines());
}

#[test]
fn a_pool_a_volume_and_a_snapshot_are_shown_in_detail() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/storage/ceph/pool/vms" => {
            ok(r#"[{"name": "vms", "tier": "ssd", "pgs": "64", "volume_count": 2,
                   "stats": {"id": 3, "stored_bytes": 1024}}]"#)
        }
        "/api/v1/storage/ceph/volume/vms/a" => {
            ok(r#"[{"name": "a", "pool": "vms", "stats": {"size": "10G", "objects": 2560}}]"#)
        }
        "/api/v1/storage/ceph/snapshot/vms/a/then" => {
            ok(r#"[{"pool": "vms", "volume": "a", "snapshot": "then",
                   "stats": {"name": "then", "size": 10737418240}}]"#)
        }
        _ => status(404, r#"{"message": "nothing of that name"}"#),
    });
    let user = User::of(&stub);
    for (line, shown) in [
        ("pool info vms", "ssd"),
        ("volume info vms a", "10G"),
        ("volume snapshot info vms a then", "then"),
    ] {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        let output = user.run(&words);
        assert!(code(&output) == 0 && out(&output).contains(shown), "{line}: {output:?}");
        let json = user.run(&[&words[..], &["-f", "json"]].concat());
        assert!(serde_json::from_str::<serde_json::Value>(&out(&json)).is_ok(), "{json:?}");
    }
    for line in ["pool info no", "volume info vms no", "volume snapshot info vms a no"] {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        assert_eq!(code(&user.run(&words)), 3, "{line}");
    }
}
