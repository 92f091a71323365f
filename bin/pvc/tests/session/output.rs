//! Output: what goes to standard output and standard error, and in what form.

use super::*;

#[test]
fn a_list_is_data_on_standard_output_and_a_banner_on_standard_error() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["vm", "list"]);
    assert_eq!(code(&output), 0);
    let names: Vec<String> = out(&output)
        .lines()
        .skip(2)
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["db1", "web1"], "sorted by name");
    assert!(!out(&output).contains('\x1b'));
    let banner = format!(
        "Using connection \"lab\" - Host: \"{}\"  Scheme: \"http\"  Prefix: \"/api/v1\"\n\n",
        stub.address
    );
    assert_eq!(err(&output), banner);
    assert_eq!(stub.lines(), ["GET /vm?negate=False"], "without colours nothing more is asked");
}

#[test]
fn what_an_api_without_its_store_last_saw_is_data_as_ever_and_a_warning_says_its_age() {
    for (headers, since) in [
        ("X-Pvc-Stale: true\r\nAge: 150\r\n", "as of 3 minutes ago"),
        ("X-Pvc-Stale: true\r\n", "as the API last saw it"),
    ] {
        let stale =
            move |request: &Received, before| cluster(request, before).with_headers(headers);
        let user = User::of(&Stub::start(stale));
        let output = user.run(&["-q", "vm", "list", "-f", "raw"]);
        assert_eq!((code(&output), out(&output).as_str()), (0, "db1\nweb1\n"), "{output:?}");
        let expected = format!(
            "warning: the API cannot reach the cluster's store: what follows is {since}\n\
             hint: is a majority of the coordinators' ZooKeeper servers running?\n"
        );
        assert_eq!(err(&output), expected);
        let output = user.run(&["-s", "vm", "list"]);
        assert_eq!((code(&output), err(&output)), (0, String::new()));
    }
}

/// A cluster with something in each of its lists.
fn full_cluster(request: &Received, before: usize) -> Reply {
    match request.path() {
        "/api/v1/faults" => ok(FAULTS),
        "/api/v1/network" => ok(NETWORKS),
        "/api/v1/image" => ok(
            r#"[{"name": "debian", "pool": "vms", "volume": "image_debian", "size": "2G", "size_bytes": 2147483648},
                {"name": "alma", "pool": "ssd", "volume": "image_alma", "size": "1G", "size_bytes": 1073741824}]"#,
        ),
        "/api/v1/network/web1/acl" => ok(RULES),
        "/api/v1/network/web1/lease" => ok(LEASES),
        "/api/v1/sriov/pf/pvchv1" => ok(r#"[{"phy": "ens1f0", "mtu": "9000", "vfs": ["ens1f0v0"]},
                {"phy": "ens1f1", "mtu": "1500", "vfs": []}]"#),
        "/api/v1/sriov/vf/pvchv1" => ok(VFS),
        "/api/v1/provisioner/ova" => ok(r#"[{"id": 2, "name": "box", "volumes": []},
            {"id": 1, "name": "a", "volumes": [{"disk_id": "sda", "pool": "vms"}]}]"#),
        "/api/v1/provisioner/profile" => {
            ok(r#"[{"id": 2, "name": "web", "type": "provisioner", "system_template": "small",
                 "network_template": "a", "storage_template": "b", "userdata": "N/A",
                 "script": "c", "ova": "N/A", "arguments": [""]},
                {"id": 1, "name": "db", "type": "ova", "ova": "box", "arguments": ["x=1"]}]"#)
        }
        "/api/v1/provisioner/script" => ok(r#"[{"id": 2, "name": "b", "script": "pass"},
            {"id": 1, "name": "a", "script": "pass"}]"#),
        "/api/v1/provisioner/template/network" => {
            ok(r#"[{"id": 2, "name": "b", "networks": [{"vni": "1001"}]}, {"id": 1, "name": "a"}]"#)
        }
        "/api/v1/provisioner/template/storage" => ok(r#"[{"id": 2, "name": "b"},
            {"id": 1, "name": "a", "disks": [{"disk_id": "sda", "pool": "vms"}]}]"#),
        "/api/v1/provisioner/template/system" => ok(
            r#"[{"id": 2, "name": "b", "vcpu_count": 1}, {"id": 1, "name": "a", "vram_mb": 64}]"#,
        ),
        "/api/v1/provisioner/userdata" => ok(r#"[{"id": 2, "name": "b", "userdata": "1\n2"},
            {"id": 1, "name": "a", "userdata": ""}]"#),
        "/api/v1/storage/ceph/benchmark" => ok(BENCHMARKS),
        "/api/v1/storage/ceph/osd" => ok(OSDS),
        "/api/v1/storage/ceph/pool" => ok(POOLS),
        "/api/v1/storage/ceph/snapshot" => {
            ok(r#"[{"pool": "vms", "volume": "a", "snapshot": "then", "stats": {"size": 1}},
                   {"pool": "vms", "volume": "a", "snapshot": "before", "stats": {"size": 1}}]"#)
        }
        "/api/v1/storage/ceph/trash" => ok(
            r#"[{"pool": "vms", "id": "1b", "name": "web1_sda", "removed_at": 1, "kept_until": 9},
                {"pool": "vms", "id": "1a", "name": "db1_sda", "removed_at": 2, "kept_until": 8}]"#,
        ),
        "/api/v1/storage/ceph/volume" => ok(r#"[{"name": "web1_sda", "pool": "vms", "stats": {}},
            {"name": "db1_sda", "pool": "ssd", "stats": {}}]"#),
        "/api/v1/tasks" => ok(TASKS),
        "/api/v1/vm/web1/tags" => {
            ok(r#"{"name": "web1", "tags": [{"name": "prod", "type": "user", "protected": false},
                {"name": "backup", "type": "user", "protected": true}]}"#)
        }
        _ => cluster(request, before),
    }
}

/// Every list, by the column to sort it by.
const LISTS: [(&str, &str); 33] = [
    ("cluster fault list", "id"),
    ("cluster task", "id"),
    ("cluster task list", "id"),
    ("connection detail", "name"),
    ("connection list", "name"),
    ("image list", "name"),
    ("network acl list web1", "order"),
    ("network dhcp list web1", "hostname"),
    ("network list", "vni"),
    ("network sriov pf list pvchv1", "device"),
    ("network sriov vf list pvchv1", "device"),
    ("node list", "name"),
    ("provisioner ova list", "name"),
    ("provisioner profile list", "name"),
    ("provisioner script list", "name"),
    ("provisioner template network list", "name"),
    ("provisioner template storage list", "name"),
    ("provisioner template system list", "name"),
    ("provisioner userdata list", "name"),
    ("storage benchmark list", "job"),
    ("storage osd list", "id"),
    ("storage pool list", "name"),
    ("storage trash list", "id"),
    ("storage volume list", "name"),
    ("storage volume snapshot list", "name"),
    ("task", "id"),
    ("task list", "id"),
    ("vm list", "name"),
    ("vm memory get web1", "ram"),
    ("vm network get web1", "network"),
    ("vm tag get web1", "name"),
    ("vm vcpu get web1", "vcpus"),
    ("vm volume get web1", "volume"),
];

#[test]
fn every_list_is_csv_with_the_columns_and_in_the_order_that_were_asked_for() {
    let stub = Stub::start(full_cluster);
    let user = User::of(&stub);
    let rows = |line: &str, options: &[&str]| {
        let words: Vec<&str> = ["-q"].into_iter().chain(line.split(' ')).collect();
        let output = user.run(&[&words, options].concat());
        assert_eq!(code(&output), 0, "{line} {options:?}: {output:?}");
        out(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (line, column) in LISTS {
        let whole = rows(line, &["-f", "csv"]);
        assert!(whole.len() > 1, "{line}: {whole:?}");
        let headings: Vec<&str> = whole[0].split(',').collect();
        assert!(headings.contains(&column), "{line}: {whole:?}");
        assert_eq!(rows(line, &["-f", "csv", "--no-headers"]), whole[1..], "{line}");

        let last = headings[headings.len() - 1];
        let two = if last == column { last.to_owned() } else { format!("{last},{column}") };
        let picked = rows(line, &["-f", "csv", "--columns", &two]);
        assert_eq!((&picked[0], picked.len()), (&two, whole.len()), "{line}");

        let one = ["-f", "csv", "--no-headers", "--columns", column, "--sort"];
        let up = rows(line, &[&one[..], &[column]].concat());
        let mut down = rows(line, &[&one[..], &[&format!("-{column}")]].concat());
        down.reverse();
        let mut names = up.clone();
        names.dedup();
        // Rows that are alike, or belong together, keep their order both ways.
        if names.len() == up.len() && !up.iter().any(String::is_empty) {
            assert_eq!(up, down, "{line}");
        }

        let table = rows(line, &["--columns", column]);
        let bare = rows(line, &["--columns", column, "--no-headers"]);
        assert!(table.ends_with(&bare) && table.len() > bare.len(), "{line}: {table:?} {bare:?}");
        let wrong: Vec<&str> = line.split(' ').chain(["--columns", "colour"]).collect();
        assert_eq!(code(&user.run(&wrong)), 2, "{line}");
    }
}

#[test]
fn no_list_is_without_the_options_that_all_lists_have() {
    let path = |line: &str| {
        let words = line.split(' ').skip(1).take_while(|word| word.starts_with(char::is_lowercase));
        words.collect::<Vec<_>>().join(" ")
    };
    let have: Vec<String> =
        TREE.lines().filter(|line| line.contains("--columns=")).map(path).collect();
    let bare = |line: &str| line.trim_end_matches(" web1").trim_end_matches(" pvchv1").to_owned();
    let known = LISTS.map(|(line, _)| bare(line));
    assert_eq!(have, known, "the test above asks all of them");
    let is_list = |path: &String| path.ends_with(" list") || path.ends_with(" get");
    let user = User::without_connection();
    for lacking in TREE.lines().map(path).filter(is_list).filter(|path| !have.contains(path)) {
        let output = user.run(&lacking.split(' ').collect::<Vec<_>>());
        assert_eq!(code(&output), 6, "`{lacking}` is not of a later release: {output:?}");
    }
}

/// Last words of commands that change nothing in the cluster.
const READS: [&str; 18] = [
    "backup",
    "completion",
    "detail",
    "download",
    "dump",
    "events",
    "get",
    "info",
    "is-primary",
    "list",
    "log",
    "man",
    "node",
    "show",
    "status",
    "task",
    "trace",
    "util",
];

#[test]
fn every_change_can_be_tried_and_nothing_else_can() {
    let user = User::without_connection();
    for line in TREE.lines() {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let is_word = |word: &&&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let command: Vec<&str> = words.iter().take_while(is_word).copied().collect();
        let reads = command[0] == "connection" || READS.contains(command.last().unwrap());
        let can_be_tried = words.contains(&"--dry-run");
        assert!(!(reads && can_be_tried), "`{line}` changes nothing");
        if !reads && !can_be_tried {
            let output = user.run(&command);
            assert_eq!(code(&output), 6, "`{line}` is not of a later release: {output:?}");
        }
    }
}

#[test]
fn an_image_in_detail_is_json_where_that_was_asked_for() {
    let user = User::of(&Stub::start(full_cluster));
    let output = user.run(&["-q", "image", "info", "debian", "-f", "json"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let image: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(image["volume"], "image_debian");
}

#[test]
fn a_network_that_does_not_exist_leads_to_the_list_of_those_that_do() {
    let stub = Stub::start(full_cluster);
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "network", "add", "web1", "4242"]);
    assert_eq!(code(&output), 3);
    assert_eq!(
        err(&output),
        "error: no network `4242` in the cluster\nhint: `pvc network list` shows the networks; \
         `upstream`, `cluster` and `storage` always exist\n"
    );
    assert_eq!(changes(&stub), Vec::<String>::new());
    let listed = user.run(&["-q", "network", "list", "-f", "raw"]);
    assert_eq!((code(&listed), out(&listed).as_str()), (0, "100\n1001\n"));
}

#[test]
fn quiet_hides_the_banner_and_silent_everything() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let quiet = user.run(&["-q", "vm", "list", "-f", "raw"]);
    assert_eq!((out(&quiet).as_str(), err(&quiet).as_str()), ("db1\nweb1\n", ""));
    let silent = user.run(&["-s", "vm", "info", "nobody"]);
    assert_eq!((code(&silent), out(&silent), err(&silent)), (3, String::new(), String::new()));
}

#[test]
fn json_is_what_the_api_answered_on_one_line() {
    let stub = Stub::start(|_, _| ok(r#"{"maintenance":"false","new":[1,{"ü":null}]}"#));
    let user = User::of(&stub);
    let line = user.run(&["-q", "cluster", "status", "--format", "json"]);
    assert_eq!(out(&line), "{\"maintenance\": \"false\", \"new\": [1, {\"\\u00fc\": null}]}\n");
    let pretty = user.run(&["-q", "status", "-f", "json-pretty"]);
    assert!(out(&pretty).starts_with("{\n  \"maintenance\": \"false\",\n  \"new\": [\n    1,\n"));
}

#[test]
fn one_vm_is_an_object_and_not_a_list_of_one() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["-q", "vm", "info", "web1", "-f", "json"]);
    let vm: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(vm["name"], "web1");
}

#[test]
fn vcpus_are_texts_in_json() {
    let stub = Stub::start(cluster);
    let output = User::of(&stub).run(&["-q", "vm", "vcpu", "get", "web1", "-f", "json"]);
    let value: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    let expected = serde_json::json!({
        "name": "web1", "vcpus": "2", "sockets": "1", "cores": "2", "threads": "1"
    });
    assert_eq!(value, expected);
}

#[test]
fn an_output_that_cannot_be_written_is_one_clear_error() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    for line in [
        &["-q", "vm", "list"][..],
        &["--help"],
        &["completion", "bash"],
        &["-q", "vm", "dump", "web1"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = user.command(line).stdout(full).output().unwrap();
        assert_eq!(code(&output), 1, "{line:?}");
        assert_eq!(
            err(&output),
            "error: cannot write to standard output: no space left on device\n"
        );
    }
}

#[test]
fn colours_are_for_terminals_and_for_who_asks_for_them() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    assert!(!out(&user.run(&["vm", "list"])).contains('\x1b'));
    assert!(out(&user.run(&["--colour", "vm", "list"])).contains("\x1b[92mstart\x1b[0m"));
    assert!(
        out(&user.run(&["--color", "vm", "list"])).contains("\x1b[91m9999\x1b[0m"),
        "an unknown network is red"
    );
    assert!(user.on_a_terminal("vm list").contains("\x1b[92mstart"));
    let user = user.with("NO_COLOR", "1");
    assert!(!user.on_a_terminal("vm list").contains("\x1b[92m"));
    assert!(user.on_a_terminal("--colour vm list").contains("\x1b[92m"));
}

#[test]
fn a_terminal_obeys_nothing_that_a_server_says() {
    const HOSTILE: &str = r"\u001b]52;c;eA==\u0007\u009b2J\u001b[2J\r";
    let stub = Stub::start(|request, before| match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/vm/web1") => {
            ok(one_vm(0).replace("\"Web server\"", &format!("\"{HOSTILE}\"")))
        }
        ("POST", "/api/v1/vm/web1/state") => {
            status(400, format!(r#"{{"message": "{HOSTILE}", "hint": "{HOSTILE}"}}"#))
        }
        ("POST", _) => message(HOSTILE),
        _ => cluster(request, before),
    });
    let user = User::of(&stub);
    for (line, expected) in [
        ("vm info web1", 0),
        ("vm start web1", 1),
        ("cluster maintenance on", 0),
        ("vm dump web1", 0),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = user.run(&words);
        assert_eq!(code(&output), expected, "{line}: {output:?}");
        let said = out(&output) + &err(&output) + &user.on_a_terminal(&format!("--colour {line}"));
        for obeyed in ["\x1b]", "\x1b[2", "\x07", "\u{9b}"] {
            assert!(!said.contains(obeyed), "{line}: {said:?}");
        }
        assert_eq!(said.contains("\u{fffd}]52;"), line != "vm dump web1", "{line}: {said:?}");
    }
}

#[test]
fn a_reader_that_leaves_early_ends_the_program_quietly() {
    let many = format!("[{}]", vec![one_vm(0).trim_matches(['[', ']']).to_owned(); 2000].join(","));
    let stub = Stub::start(move |_, _| ok(many.clone()));
    let user = User::of(&stub);
    let mut child = user.command(&["-q", "vm", "list", "-f", "json"]).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), err(&output)), (0, String::new()));
}

#[test]
fn networks_pools_and_volumes_are_listed() {
    let networks = include_str!("../../../../crates/pvc-cli/tests/wire/networks.json");
    let pools = include_str!("../../../../crates/pvc-cli/tests/wire/pools.json");
    let stub = Stub::start(move |request, _| match request.path() {
        "/api/v1/network" if request.target.contains("limit=none") => ok("[]"),
        "/api/v1/network" | "/api/v1/network/1001" => ok(networks),
        "/api/v1/network/test-net" => ok("[{\"vni\": 1001, \"type\": \"managed\"}]"),
        "/api/v1/network/1001/lease" => {
            ok("[{\"hostname\": \"web1\", \"ip4_address\": \"10.0.0.5\"}]")
        }
        "/api/v1/network/1001/acl" => status(501, "{\"message\": \"not yet\"}"),
        "/api/v1/storage/ceph/pool" => ok(pools),
        "/api/v1/storage/ceph/volume" => {
            ok(r#"[{"name": "b", "pool": "vms"}, {"name": "a", "pool": "vms"}]"#)
        }
        _ => status(404, r#"{"message": "nothing of that name"}"#),
    });
    let user = User::of(&stub);
    let run = |line: &[&str]| user.run(&[&["-q"], line].concat());
    assert_eq!(out(&run(&["network", "list", "-f", "raw"])), "100\n1001\n");
    assert!(out(&run(&["network", "list"])).contains("1001  test-net"));
    assert_eq!(code(&run(&["network", "list", "none"])), 3);
    let info = run(&["network", "info", "test-net"]);
    assert!(
        out(&info).contains("VNI:                1001\n") && out(&info).contains("web1"),
        "{info:?}"
    );
    assert_eq!(code(&run(&["network", "info", "nothing"])), 3);
    let pools = out(&run(&["storage", "pool", "list", "-f", "raw"]));
    assert_eq!(pools, "vms\nnew\n", "they stay in the order of the API, which is that of Ceph");
    assert_eq!(
        out(&run(&["storage", "volume", "list", "-p", "vms", "-f", "raw"])),
        "vms/a\nvms/b\n"
    );
    assert!(
        stub.lines().contains(&"GET /storage/ceph/volume?pool=vms".to_owned()),
        "{:?}",
        stub.lines()
    );
}

#[test]
fn the_storage_reports_on_itself_as_text_or_as_the_api_answers() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/storage/ceph/status" => ok(r#"{"type": "status", "primary_node": "hv1",
            "ceph_data": "  cluster:\n    health: HEALTH_OK"}"#),
        "/api/v1/storage/ceph/utilization" => ok(r#"{"type": "utilization", "primary_node": "hv1",
            "ceph_data": "--- RAW STORAGE ---\nCLASS  SIZE"}"#),
        _ => status(404, r#"{"message": "nothing of that name"}"#),
    });
    let user = User::of(&stub);
    let run = |line: &[&str]| out(&user.run(&[&["-q", "storage"], line].concat()));
    assert_eq!(
        run(&["status"]),
        "Storage status (primary node hv1):\n\n  cluster:\n    health: HEALTH_OK\n"
    );
    let usage = "Storage utilization (primary node hv1):\n\n--- RAW STORAGE ---\nCLASS  SIZE\n";
    assert_eq!(run(&["util"]), usage);
    assert_eq!(
        run(&["util", "-f", "json"]),
        "{\"type\": \"utilization\", \"primary_node\": \"hv1\", \"ceph_data\": \"--- RAW STORAGE \
         ---\\nCLASS  SIZE\"}\n"
    );
    assert!(stub.lines().contains(&"GET /storage/ceph/fullness".to_owned()), "{:?}", stub.lines());
    let indented = run(&["status", "-f", "json-pretty"]);
    let lines: Vec<&str> = indented.lines().map(str::trim).collect();
    assert_eq!(
        (lines.len(), lines.contains(&"\"primary_node\": \"hv1\",")),
        (5, true),
        "{lines:?}"
    );
}

#[test]
fn what_the_storage_said_long_ago_is_called_old() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let said = |age: u64, ahead: u64| {
        let at = now - age + ahead;
        let stub = Stub::start(move |request, _| match request.path() {
            "/api/v1/storage/ceph/status" => ok(format!(
                r#"{{"type": "status", "primary_node": "hv1", "ceph_data": "HEALTH_OK",
                    "answered_at": {at}}}"#
            )),
            "/api/v1/storage/ceph/pool" => {
                ok(format!(r#"[{{"name": "vms", "answered_at": {at}}}]"#))
            }
            "/api/v1/storage/ceph/osd" => ok(format!(r#"[{{"id": "0", "answered_at": {at}}}]"#)),
            _ => status(404, r#"{"message": "nothing of that name"}"#),
        });
        let user = User::of(&stub);
        let run = |line: &str| {
            let words: Vec<&str> = ["storage"].into_iter().chain(line.split(' ')).collect();
            user.run(&words)
        };
        let (status, pools, osds) = (run("status"), run("pool list"), run("osd list"));
        let bare = err(&run("pool list -f raw")) + &err(&run("status -f json"));
        assert!(!bare.contains("as of"), "there are no figures in it: {bare}");
        (out(&status), [err(&status), err(&pools), err(&osds)])
    };
    let (text, notes) = said(300, 0);
    assert!(
        text.starts_with("Storage status (primary node hv1, as of 5 minutes ago):\n"),
        "{text}"
    );
    for note in notes {
        assert!(
            note.contains(" as of 5 minutes ago: the storage has not answered since"),
            "{note}"
        );
    }
    // The clock of the primary node is fast.
    let (text, notes) = said(0, 7200);
    assert!(
        text.starts_with("Storage status (primary node hv1, as of 0 seconds ago):\n"),
        "{text}"
    );
    assert!(notes.iter().all(|note| !note.contains("as of")), "{notes:?}");
}

#[test]
fn usage_is_shown_with_what_becomes_of_each_pool_where_the_cluster_knows_that() {
    let pools = include_str!("../../../../crates/pvc-cli/tests/wire/fullness.json");
    let report = r#"{"type": "utilization", "primary_node": "hv1", "ceph_data": "CLASS  SIZE"}"#;
    let formatted = |format: &str, fullness: fn(&str) -> Reply| {
        let stub = Stub::start(move |request, _| match request.path() {
            "/api/v1/storage/ceph/utilization" => ok(report),
            "/api/v1/storage/ceph/fullness" => fullness(pools),
            _ => status(404, r#"{"message": "nothing of that name"}"#),
        });
        let output = User::of(&stub).run(&["-q", "storage", "util", "-f", format]);
        (code(&output), out(&output))
    };
    let util = |fullness| formatted("pretty", fullness);
    let (exit, text) = util(|pools| ok(pools));
    assert_eq!(exit, 0);
    assert!(text.contains("\nCLASS  SIZE\n\nPools"), "{text}");
    let vms = text.lines().find(|line| line.starts_with("vms ")).unwrap_or_default();
    let words: Vec<&str> = vms.split_whitespace().collect();
    assert_eq!(words[..4], ["vms", "nearfull", "90.0%", "100G"], "{text}");
    assert!(vms.trim_end().ends_with("now             3 days            10 days"), "{text}");

    // For programs: all of it in JSON, and the table's rows in the others.
    for format in ["json", "json-pretty"] {
        let (exit, text) = formatted(format, |pools| ok(pools));
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((exit, &whole["ceph_data"]), (0, &"CLASS  SIZE".into()));
        assert_eq!(
            whole["pools"],
            serde_json::from_str::<serde_json::Value>(pools).unwrap(),
            "as it came"
        );
        let (exit, text) = formatted(format, |_| status(404, r#"{"message": "no"}"#));
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((exit, whole), (0, serde_json::from_str(report).unwrap()));
        assert_eq!(formatted(format, |_| status(500, r#"{"message": "it broke"}"#)).0, 7);
    }
    let (exit, text) = formatted("csv", |pools| ok(pools));
    let mut lines = text.lines();
    assert!(exit == 0 && lines.next().unwrap().contains("backfill_full_in"), "{text}");
    assert!(lines.any(|line| line.starts_with("vms,nearfull,90.0%,")), "{text}");
    let (exit, text) = formatted("yaml", |pools| ok(pools));
    assert!(exit == 0 && text.contains("vms") && !text.contains("CLASS"), "{text}");

    let alone = (0, "Storage utilization (primary node hv1):\n\nCLASS  SIZE\n".to_owned());
    assert_eq!(util(|_| status(404, r#"{"message": "no"}"#)), alone);
    assert_eq!(util(|_| status(501, r#"{"message": "later"}"#)), alone);
    assert_eq!(util(|_| ok("[]")), alone);
    assert_eq!(util(|_| status(500, r#"{"message": "it broke"}"#)), (7, alone.1));
}

#[test]
fn a_change_can_be_answered_in_json() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let output = user.run(&["-q", "vm", "start", "web1", "-f", "json"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "{\"message\": \"done\"}\n"));
    let output = user.answering("y\n", &["-q", "vm", "stop", "web1", "--format", "json"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "{\"message\": \"done\"}\n"));
    let output = user.run(&["-q", "vm", "migrate", "web1", "-f", "--format", "json"]);
    assert_eq!(out(&output), "{\"message\": \"done\"}\n", "there `-f` is `--force`: {output:?}");
    let user = User::of(&Stub::start(task("SUCCESS")));
    let output = user.run(&["-q", "vm", "flush-locks", "web1", "-f", "json"]);
    let end: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(
        (end["state"].as_str(), end["status"].as_str()),
        (Some("SUCCESS"), Some("locks flushed"))
    );
}

#[test]
fn a_list_is_printed_as_it_was_asked_for() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let run = |line: &[&str]| user.run(&[&["-q", "vm", "list"], line].concat());
    let csv = out(&run(&["--columns", "ram,name", "--sort", "-name", "-f", "csv"]));
    assert!(csv.starts_with("ram,name\n2048,web1\n"), "{csv}");
    let bare = out(&run(&["--columns=name", "--no-headers"]));
    assert_eq!(bare, "db1\nweb1\n");
    let yaml = out(&run(&["--columns", "name,state", "-f", "yaml"]));
    assert_eq!(yaml, "- name: \"db1\"\n  state: \"fail\"\n- name: \"web1\"\n  state: \"start\"\n");
    let wrong = run(&["--columns", "colour"]);
    assert_eq!(code(&wrong), 2);
    assert!(err(&wrong).contains("there are name, state, tags"), "{wrong:?}");
    assert_eq!(code(&run(&["--sort", "ram", "-f", "json"])), 2);
    assert_eq!(code(&user.run(&["-q", "task", "abc", "-f", "csv"])), 2, "one task is no list");
    let wide = out(&run(&[]));
    assert!(
        wide.contains("Snapshots") && wide.contains("Migrated"),
        "a pipe has room for all: {wide}"
    );
}

#[test]
fn on_a_narrow_terminal_columns_leave_and_no_line_is_broken() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let line = format!("stty cols 60 rows 24; exec {} vm list", env!("CARGO_BIN_EXE_pvc"));
    let output = user.typed(&line).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table: Vec<&str> =
        text.lines().filter(|line| line.contains("web1") || line.contains("Name")).collect();
    assert!(table.len() >= 2 && text.contains("Current"), "{text}");
    assert!(text.contains("(no room for: ") && text.contains("snapshots"), "{text}");
    let bare =
        |line: &str| line.replace("\x1b[1m", "").replace("\x1b[92m", "").replace("\x1b[0m", "");
    assert!(table.iter().all(|line| bare(line).trim_end().chars().count() <= 60), "{text}");
}

#[test]
fn a_list_that_is_empty_is_fine_and_a_search_that_finds_nothing_is_not() {
    let stub = Stub::start(|_, _| status(404, r#"{"message": "No VMs found"}"#));
    let user = User::of(&stub);
    let all = user.run(&["-q", "vm", "list", "-f", "json"]);
    assert_eq!((code(&all), out(&all).as_str()), (0, "[]\n"));
    assert_eq!(code(&user.run(&["-q", "vm", "list", "^web"])), 3);
}
