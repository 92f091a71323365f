//! Values that valid files come to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pvc_config::*;
use pvc_model::role::Role;
use pvc_model::vm::Selector;

use crate::{OLD_SAMPLE, SAMPLE};

const STANDALONE_SAMPLE: &str = include_str!("../../../../packaging/config/standalone.conf");

fn parse(text: &str, hostname: &str) -> Config {
    Config::parse(text, "pvc.conf", hostname).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn the_samples_are_free_of_warnings() {
    for sample in [SAMPLE, OLD_SAMPLE, STANDALONE_SAMPLE] {
        assert_eq!(parse(sample, "pvchv1").warnings, []);
    }
}

#[test]
fn both_formats_say_the_same_about_the_same_cluster() {
    // What the older format has no place for, or no switch to leave out, is given at its 1.0 place.
    let old = OLD_SAMPLE.replace("ceph:\n", "ceph:\n  monitor_port: 6789\n")
        + "cluster:\n  name: cluster1\n\
           timer:\n  monitoring_interval: 60\n\
           logging:\n  zookeeper_logging: yes\n  node_log_lines: 2000\n\
           database:\n  keydb:\n    hostname: 10.1.0.250\n";

    let (mut new, mut old) =
        (parse(SAMPLE, "pvchv1.mydomain.net"), parse(&old, "pvchv1.mydomain.net"));
    // The older format knows nothing of a filter, unless it is given at its 1.0 place; then it
    // cannot name all nodes.
    assert!(new.firewall.take().is_some() && old.firewall.is_none());
    let addresses = std::mem::take(&mut new.node_addresses);
    assert!(addresses.is_upstream_apart && !addresses.needs_upstream, "{addresses:?}");
    let addresses = std::mem::take(&mut old.node_addresses);
    assert!(addresses.is_upstream_apart && addresses.needs_upstream, "{addresses:?}");

    assert_eq!(new, old);
}

#[test]
fn the_upstream_network_is_apart_if_it_has_a_device_for_itself() {
    for (from, to, is_apart) in [
        ("device: ens6", "device: ens6", true),
        ("device: ens6", "device: ens5", true),
        ("device: ens6", "device: ens4.7", true),
        ("device: ens6", "device: ens4", false),
        ("device: ens5", "device: ens4", false),
    ] {
        let text = SAMPLE.replace("mtu: 9000", "mtu: 1500").replacen(from, to, 1);
        let addresses = parse(&text, "pvchv1").node_addresses;
        assert_eq!(addresses.is_upstream_apart, is_apart, "{to}");
        assert_eq!(addresses.needs_upstream, !is_apart, "{to}");
        // Three nodes and a floating address in each network.
        assert_eq!((addresses.upstream.len(), addresses.inner.len()), (4, 8), "{to}");
    }
}

#[test]
fn the_sample_reads_as_written() {
    let config = parse(SAMPLE, "pvchv2.mydomain.net");
    assert_eq!(config.node.name, "pvchv2");
    assert_eq!(config.node.domain, "mydomain.net");
    assert_eq!(config.node.id.number, 2);
    assert!(config.is_coordinator());
    assert_eq!(config.zookeeper_servers(), ["pvchv1:2181", "pvchv2:2181", "pvchv3:2181"]);
    let networks = config.networks.as_ref().expect("networking is on");
    assert_eq!(networks.upstream.address.unwrap().to_string(), "10.0.0.2/24");
    assert_eq!(networks.cluster.floating.to_string(), "10.1.0.250/24");
    assert_eq!(networks.upstream.gateway.unwrap().to_string(), "10.0.0.254");
    assert_eq!(networks.storage.mtu, 9000);
    assert_eq!(config.fencing.ipmi.as_ref().unwrap().hostname, "pvchv2-lom.mydomain.net");
    assert_eq!(config.fencing.successful_fence, FenceAction::Migrate);
    assert_eq!(config.fencing.suicide_intervals, None);
    assert_eq!(config.ceph.as_ref().unwrap().config_file, Path::new("/etc/ceph/ceph.conf"));
    assert_eq!(config.api.authentication.tokens[0].description, "everyday use");
    assert_eq!(config.api.listen.to_string(), "10.0.0.250:7370");
    assert_eq!(config.api.tls, None);
    assert_eq!(config.autobackup, None);
    assert_eq!(config.standalone, None);
}

#[test]
fn a_cluster_file_of_the_required_keys_alone_gets_every_default() {
    let text = "
path: {dynamic_directory: /run/pvc, system_log_directory: /var/log/pvc, console_log_directory: \
/var/log/libvirt}
subsystem: {enable_networking: no, enable_storage: no, enable_api: no, enable_worker: no}
cluster: {name: c1, all_nodes: [hv1], coordinator_nodes: [hv1]}
database: {zookeeper: {port: 2181}}
fencing: {disable_on_ipmi_failure: no, ipmi: {hostname: lom, username: u, password: p}}
";
    let config = parse(text, "hv1");
    assert_eq!(config.paths.plugins, Path::new("/usr/share/pvc/plugins"));
    assert_eq!(config.paths.ceph, Path::new("/etc/ceph"));
    assert!(config.subsystems.hypervisor && config.subsystems.prometheus);
    assert_eq!(config.timers.vm_shutdown_timeout, Duration::from_secs(180));
    assert_eq!(config.timers.keepalive_interval, Duration::from_secs(5));
    assert_eq!(config.timers.monitoring_interval, Duration::from_secs(15));
    assert_eq!(config.fencing.fence_intervals.unwrap().get(), 6);
    assert_eq!(config.fencing.suicide_intervals, None);
    assert_eq!(config.fencing.successful_fence, FenceAction::Nothing);
    assert_eq!(config.fencing.failed_fence, FenceAction::Nothing);
    assert_eq!(config.migration.target_selector, Selector::Mem);
    assert_eq!((config.migration.parallel, config.migration.tls), (4, false));
    assert_eq!(config.logging, Logging::default());
    assert_eq!(config.guest_networking, GuestNetworking::default());
    assert_eq!(
        config.database,
        Database {
            zookeeper: Zookeeper { port: 2181, password: None, tls: None },
            keydb: None,
            metadata: None,
            dns: None
        }
    );
    assert_eq!(config.api.listen.to_string(), "127.0.0.1:7370");
    assert_eq!(config.api.authentication, Authentication::default());
    assert_eq!((config.networks, config.ceph), (None, None));
    assert_eq!((config.autobackup, config.automirror), (None, None));

    let with_subsystems = text.replace(
        "enable_networking: no, enable_storage: no, enable_api: no, enable_worker: no",
        "",
    );
    let errors = Config::parse(&with_subsystems, "pvc.conf", "hv1")
        .expect_err("each subsystem needs its keys");
    let missing: Vec<_> =
        errors.errors.iter().map(|error| error.key.clone().unwrap_or_default()).collect();
    let expected = [
        "api",
        "ceph",
        "guest_networking",
        "path.ceph_directory",
        "cluster.networks",
        "database.keydb",
        "database.postgres",
    ];
    assert_eq!(missing, expected, "{errors}");
    assert_eq!(
        errors.errors[2].to_string(),
        "error: pvc.conf:1:1: `guest_networking` is missing, expected a section with \
         `bridge_device`, `bridge_mtu`\n  \
         hint: needed while `subsystem.enable_networking` is on"
    );
    assert!(errors.errors[4].message().contains("`upstream.ipv4.gateway_address`"), "{errors}");
}

#[test]
fn each_cluster_key_is_required_on_its_own() {
    let required = [
        "dynamic_directory",
        "system_log_directory",
        "console_log_directory",
        "ceph_directory",
        "name",
        "monitor_port",
        "ceph_config_file",
        "ceph_keyring_file",
        "secret_uuid",
        "disable_on_ipmi_failure",
        "bridge_device",
        "bridge_mtu",
    ];
    for key in required {
        let text: String = SAMPLE
            .split_inclusive('\n')
            .filter(|line| !line.trim_start().starts_with(&format!("{key}:")))
            .collect();
        let errors = Config::parse(&text, "pvc.conf", "pvchv1").expect_err(key).errors;
        assert_eq!(errors.len(), 1, "{key}: {errors:?}");
        assert!(errors[0].message().contains(&format!("{key}` is missing")), "{}", errors[0]);
    }
}

#[test]
fn standalone_mode_needs_no_file() {
    let config = Config::standalone(Path::new("/srv/pvc"), "box.example.com");
    assert_eq!(config.warnings, []);
    assert_eq!(config.node.name, "box");
    assert_eq!(config.cluster.coordinators, ["box"]);
    assert_eq!(config.cluster.all_nodes, ["box"]);
    assert!(config.is_coordinator());
    assert_eq!(config.cluster.name.as_deref(), Some("standalone"));
    let standalone = config.standalone.as_ref().expect("it is standalone");
    assert_eq!(standalone.state_directory, Path::new("/srv/pvc"));
    assert_eq!(standalone.volume_directory, Path::new("/srv/pvc/volumes"));
    assert_eq!(standalone.libvirt_uri, None);
    assert_eq!(config.paths.dynamic, Path::new("/srv/pvc/run"));
    assert_eq!(config.paths.log, Path::new("/srv/pvc/log"));
    assert_eq!(config.paths.console_log, Path::new("/srv/pvc/log/console"));
    let on = Subsystems {
        networking: true,
        storage: false,
        hypervisor: true,
        worker: true,
        api: true,
        prometheus: true,
    };
    assert_eq!(config.subsystems, on);
    assert!(config.logging.file && config.logging.zookeeper && config.logging.dates);
    assert_eq!((config.logging.console_log_lines, config.logging.node_log_lines), (1000, 2000));
    assert_eq!(config.timers.keepalive_interval, Duration::from_secs(5));
    assert_eq!(config.timers.vm_shutdown_timeout, Duration::from_secs(180));
    assert_eq!(config.api.listen.to_string(), "127.0.0.1:7370");
    assert!(!config.api.authentication.enabled);
    assert_eq!(
        (config.api.tls, config.fencing.ipmi, config.networks, config.ceph),
        (None, None, None, None)
    );
}

#[test]
fn standalone_mode_takes_any_host_name_and_a_relative_directory() {
    for (hostname, name) in
        [("", "localhost"), ("my_box!", "my-box"), ("ümlaut", "mlaut"), ("...", "localhost")]
    {
        assert_eq!(Config::standalone(Path::new("state"), hostname).node.name, name);
    }
    let config = Config::standalone(Path::new("state"), "box");
    assert!(config.paths.log.is_absolute());
    Config::standalone(Path::new("/a: b #c"), &"x".repeat(300));
}

#[test]
fn a_standalone_file_may_say_as_little_as_it_likes() {
    let text = "standalone:\n  state_directory: /data\napi:\n  authentication: {enabled: yes, \
                secret_key: abcdefghijklmnop}\n  token:\n  - {token: abcdefghijklmnop}\n";
    let config = parse(text, "box");
    assert_eq!(config.warnings, []);
    assert_eq!(config.paths.dynamic, Path::new("/data/run"));
    assert_eq!(config.standalone.unwrap().volume_directory, Path::new("/data/volumes"));
    assert_eq!(config.api.authentication.tokens[0].token.reveal(), "abcdefghijklmnop");

    let machine = Machine::named("box", |name| (name == "PVC_STATE").then(|| "/elsewhere".into()));
    let config = Config::parse_for("standalone:\n", "pvc.conf", &machine)
        .expect("an empty section is enough");
    assert_eq!(config.paths.log, Path::new("/elsewhere/log"));
    let config = Config::parse_for("", "pvc.conf", &machine.standalone()).expect("and so is none");
    assert!(config.standalone.is_some());
}

#[test]
fn a_standalone_machine_has_no_other_coordinators() {
    let errors = Config::parse(
        "standalone:\ncluster:\n  coordinator_nodes: [hv1, hv2]\n",
        "pvc.conf",
        "hv1",
    )
    .unwrap_err();
    assert!(errors.to_string().contains("standalone mode has only this one"), "{errors}");
}

#[test]
fn words_and_numbers_mean_what_yaml_1_1_says() {
    let text = SAMPLE
        .replace("enable_worker: yes", "enable_worker: OFF")
        .replace("debug_logging: no", "debug_logging: On")
        .replace("keepalive_interval: 5", "keepalive_interval: 0x1e")
        .replace("port: 5432", "port: \"5_433\"")
        .replace("netmask: 24                     #", "netmask: 255.255.255.0 #")
        .replace("failed_fence: none", "failed_fence: None")
        .replace("successful_fence: migrate", "successful_fence: null");
    let config = parse(&text, "pvchv1");
    assert_eq!(config.warnings, []);
    assert!(!config.subsystems.worker && config.logging.debug);
    assert_eq!(config.timers.keepalive_interval, Duration::from_secs(30));
    assert_eq!(config.database.dns.unwrap().port, 5433);
    assert_eq!(config.networks.unwrap().upstream.network.prefix_len(), 24);
    assert_eq!(config.fencing.failed_fence, FenceAction::Nothing);
    assert_eq!(config.fencing.successful_fence, FenceAction::Nothing);
}

#[test]
fn a_gateway_of_python_s_none_is_no_gateway() {
    let config = parse(
        &SAMPLE.replace(
            "floating_address: 10.1.0.250\n",
            "floating_address: 10.1.0.250\n        gateway_address: None\n",
        ),
        "pvchv1",
    );
    assert_eq!(config.networks.unwrap().cluster.gateway, None);
    let text = SAMPLE.replace("gateway_address: 10.0.0.254", "gateway_address: None");
    let errors = Config::parse(&text, "pvc.conf", "pvchv1")
        .expect_err("the upstream network needs one")
        .errors;
    assert_eq!(errors.len(), 1);
}

#[test]
fn anchors_and_merges_work() {
    let text = SAMPLE.replace("      api:\n", "      api: &account\n").replace(
        "        database: pvcdns\n        username: pvcdns\n        password: \
         change-this-password-too",
        "        <<: *account\n        database: pvcdns",
    );
    let dns = parse(&text, "pvchv1").database.dns.unwrap();
    assert_eq!((dns.database.as_str(), dns.username.as_str()), ("pvcdns", "pvcapi"));
    assert_eq!(dns.password.reveal(), "change-this-password");
}

#[test]
fn old_spellings_are_accepted() {
    let text = SAMPLE
        .replace("    suicide_intervals: 0 ", "    suicide_interval: 4 ")
        .replace("- phy: ens1f1", "- device: bond0.100");
    let config = parse(&text, "pvchv1");
    assert_eq!(config.warnings, []);
    assert_eq!(config.fencing.suicide_intervals.unwrap().get(), 4);
    assert_eq!(config.guest_networking.sriov_devices[0].phy, "bond0.100");

    let text = OLD_SAMPLE
        .replace("log_keepalive_plugin_details: True", "log_keepalive_storage_details: True")
        .replace("address: by-id\n        cluster", "address: None\n        cluster")
        .replace(
            "          device: ens5\n          mtu: 9000\n          address: by-id",
            "          device: ens5\n          mtu: 9000\n          address: 10.1.0.77/24",
        )
        .replace("        bridge_mtu: 1500\n", "");
    let config = parse(&text, "pvchv1");
    assert_eq!(config.warnings, []);
    assert!(config.logging.monitoring_details);
    assert_eq!(config.guest_networking.bridge_mtu, None);
    let networks = config.networks.unwrap();
    assert_eq!(
        (networks.upstream.selection, networks.upstream.address),
        (AddressSelection::Unassigned, None)
    );
    assert_eq!(networks.cluster.address.unwrap().to_string(), "10.1.0.77/24");
}

#[test]
fn the_intervals_of_the_manual_s_headings_are_found_too() {
    let text = OLD_SAMPLE.replace(
        "    fencing:\n      intervals:\n        keepalive_interval: 5\n        fence_intervals: \
         6\n        suicide_intervals: 0\n",
        "    intervals:\n      keepalive_interval: 7\n      fence_intervals: \
         3\n      suicide_intervals: 2\n    fencing:\n",
    );
    let config = parse(&text, "pvchv1");
    assert_eq!(config.warnings, []);
    assert_eq!(config.timers.keepalive_interval, Duration::from_secs(7));
    assert_eq!(config.fencing.fence_intervals.unwrap().get(), 3);
}

#[test]
fn the_older_format_names_its_node() {
    let config = parse(OLD_SAMPLE, "something-else");
    assert_eq!(config.node.name, "pvchv1");
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    let without_api = OLD_SAMPLE.split("# This was in pvcapid.yaml.").next().unwrap();
    let config = parse(without_api, "pvchv1");
    assert_eq!(config.api.listen.to_string(), "127.0.0.1:7370");
    assert_eq!(config.cluster.name, None);
    assert!(
        config.warnings[0].to_string().contains("listens on 127.0.0.1 only"),
        "{:?}",
        config.warnings
    );
}

#[test]
fn a_section_for_the_worker_is_passed_on() {
    let text = SAMPLE.replace(
        "#automirror:\n",
        "automirror:\n  destinations:\n    c2: {key: \
                                                 hunter2hunter2, ssl: yes, port: \
                                                 7370}\n  keep_snapshots: 7\n",
    );
    let config = parse(&text, "pvchv1");
    let section = config.automirror.as_ref().expect("it is given");
    assert_eq!(section.value()["destinations"]["c2"]["ssl"], true);
    assert_eq!(section.value()["keep_snapshots"], 7);
    assert_eq!(format!("{section:?}"), "RawSection([\"destinations\", \"keep_snapshots\"])");
}

#[test]
fn the_file_is_found_through_variables_and_defaults() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pvc.conf");
    std::fs::write(&file, SAMPLE).unwrap();
    let set = |variable: &'static str, path: PathBuf| {
        move |name: &str| (name == variable).then(|| path.clone().into_os_string())
    };
    assert_eq!(Config::locate(set("PVC_CONFIG_FILE", file.clone())), Ok(file.clone()));
    assert_eq!(Config::locate(set("PVCD_CONFIG_FILE", file.clone())), Ok(file));
    let error = Config::locate(set("PVC_CONFIG_FILE", "/nowhere/pvc.conf".into())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`PVC_CONFIG_FILE` names `/nowhere/pvc.conf`, which does not exist"
    );
}

#[test]
fn a_check_tells_what_it_found_and_ends_with_a_verdict() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pvc.conf");
    std::fs::write(&file, SAMPLE).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let shown = file.display();
    let report = check(&file, "pvchv1");
    assert_eq!(
        (report.exit_code(), report.to_string()),
        (0, format!("{shown}: good for coordinator `pvchv1` of cluster `cluster1`"))
    );

    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let report = check(&file, "pvchv1");
    assert_eq!(report.exit_code(), 0);
    assert!(
        report
            .to_string()
            .ends_with("good for coordinator `pvchv1` of cluster `cluster1`, 1 warning"),
        "{report}"
    );
    assert!(report.to_string().contains("chmod 0640"), "{report}");

    std::fs::write(&file, SAMPLE.replace("port: 2181", "port: x")).unwrap();
    let report = check(&file, "pvchv1");
    assert_eq!(report.exit_code(), 1);
    assert!(report.to_string().ends_with("pvc.conf: 1 error"), "{report}");

    for (path, words) in [("/nowhere/pvc.conf", "cannot be read"), ("/etc", "is a directory")] {
        let report = check(Path::new(path), "pvchv1");
        assert_eq!(report.exit_code(), 1);
        assert!(report.to_string().contains(words), "{report}");
    }
    std::fs::write(&file, b"a: 1\nb: \xff\xfe\n").unwrap();
    assert!(check(&file, "pvchv1").to_string().contains("line 2 holds other bytes"));
}

#[test]
fn a_client_reads_the_api_of_a_file_whose_rest_is_broken() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pvc.conf");
    std::fs::write(
        &file,
        SAMPLE
            .replace("name: cluster1", "name:")
            .replace("address: 10.0.0.250", "address: 0.0.0.0"),
    )
    .unwrap();
    let api = read_api(&file).expect("the API's section is fine");
    assert_eq!(api.local_address().to_string(), "127.0.0.1:7370");
    assert_eq!(api.authentication.tokens.len(), 1);
}

#[test]
fn a_token_may_do_everything_unless_a_role_is_set() {
    let role = |set: &str| {
        let described = "description: everyday use\n";
        let text = SAMPLE.replace(described, &format!("{described}{set}"));
        let config = parse(&text, "pvchv1");
        assert_eq!(config.warnings, []);
        config.api.authentication.tokens[0].role
    };
    assert_eq!(role(""), Role::Administrator);
    assert_eq!(role("      role: reader\n"), Role::Reader);
    assert_eq!(role("      role: operator\n"), Role::Operator);
}

#[test]
fn images_are_made_where_it_is_set_and_leave_others_as_much_room_as_is_set() {
    let images = |set: &str| {
        let text = SAMPLE.replace("\napi:\n", &format!("\napi:\n{set}"));
        let config = parse(&text, "pvchv1");
        assert_eq!(config.warnings, []);
        config.api.images
    };
    let usual = Images { directory: "/var/tmp".into(), least_free_mib: None };
    assert_eq!(images(""), usual);
    let set = images("  images:\n    directory: /srv/images\n    least_free_mib: 0\n");
    let wanted = Images { directory: "/srv/images".into(), least_free_mib: Some(0) };
    assert_eq!(set, wanted);
}

#[test]
fn every_directory_to_create_is_named() {
    let paths = parse(SAMPLE, "pvchv1").paths.to_create();
    for path in [
        "/run/pvc",
        "/run/pvc/nft",
        "/var/log/pvc/dnsmasq",
        "/var/log/pvc/pdns",
        "/var/log/libvirt",
    ] {
        assert!(paths.contains(&PathBuf::from(path)), "{path}");
    }
}

/// A description that ends with a bracket is not followed by another one.
#[test]
fn the_reference_page_says_once_and_in_a_sentence_what_pvc_1_0_3_does_not_know() {
    let page = reference_page();
    let rows = page.lines().filter(|line| line.contains("PVC 1.0.3 does not know"));
    let rows: Vec<&str> = rows.collect();
    assert!(!rows.is_empty());
    for row in rows {
        assert!(row.ends_with(". PVC 1.0.3 does not know this key. |"), "{row}");
        assert_eq!(row.matches("1.0.3 does not know").count(), 1, "{row}");
    }
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual/configuration.md");
    let page = reference_page();
    if std::env::var_os("PVC_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "run this test with PVC_WRITE_DOCS=1 to write {}", path.display());
}
