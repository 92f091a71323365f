//! Every mistake at once, each with its line and what to do.

use pvc_config::{Config, ConfigErrors, Problem};

use crate::{OLD_SAMPLE, SAMPLE};

fn errors_of(text: &str) -> ConfigErrors {
    Config::parse(text, "/etc/pvc/pvc.conf", "pvchv1").expect_err("the file has mistakes")
}

/// The only error of the sample with `from` replaced by `to`, whose line is checked too.
fn only_error(sample: &str, from: &str, to: &str) -> Problem {
    assert_eq!(sample.matches(from).count(), 1, "`{from}` must be in the sample once");
    let text = sample.replace(from, to);
    let errors = errors_of(&text).errors;
    let [error] = errors.as_slice() else {
        panic!("one error expected:\n{}", pvc_config::render(&errors))
    };
    // At the change, or at the section that now lacks something.
    let change = sample.lines().zip(text.lines()).take_while(|(a, b)| a == b).count() + 1;
    let line = error.place.expect("it has a place").line;
    let lines = change.saturating_sub(5)..change + 2 + to.lines().count();
    assert!(lines.contains(&line), "line {line} is not in {lines:?}: {error}");
    error.clone()
}

fn only_warning(sample: &str, from: &str, to: &str) -> Problem {
    assert_eq!(sample.matches(from).count(), 1, "`{from}` must be in the sample once");
    let config = Config::parse(&sample.replace(from, to), "pvc.conf", "pvchv1")
        .unwrap_or_else(|e| panic!("{e}"));
    let [warning] = config.warnings.as_slice() else {
        panic!("one warning expected:\n{}", pvc_config::render(&config.warnings))
    };
    warning.clone()
}

#[test]
fn ten_mistakes_are_all_reported_with_their_lines() {
    let mistakes = [
        (
            "enable_storage: yes",
            "enable_storage: \"yes\"",
            "`subsystem.enable_storage` is the text `\"yes\"`, expected `true` or `false`",
        ),
        (
            "      domain: mydomain.net",
            "      domian: mydomain.net",
            "`cluster.networks.upstream.domian` is not a known key",
        ),
        (
            "      device: ens5\n      mtu: 9000",
            "      device: ens5\n      mtu: 90000",
            "`cluster.networks.cluster.mtu` is `90000`, expected a whole number of bytes from 68 \
             to 65535",
        ),
        (
            "floating_address: 10.2.0.250",
            "floating_address: 10.3.0.250",
            "`cluster.networks.storage.ipv4.floating_address` is `10.3.0.250`, which is outside of \
             the network `10.2.0.0/24`, expected an address from 10.2.0.1 to 10.2.0.254",
        ),
        (
            "    port: 5432",
            "    port: 0",
            "`database.postgres.port` is `0`, expected a port number from 1 to 65535",
        ),
        (
            "  keepalive_interval: 5",
            "  keepalive_interval: five",
            "`timer.keepalive_interval` is `five`, expected a whole number of seconds (1 or more)",
        ),
        (
            "    fence_intervals: 6 ",
            "    fence_intervals: 010 ",
            "`fencing.intervals.fence_intervals` is `010`, expected a whole number of keepalive \
             intervals (0 or more)",
        ),
        (
            "    successful_fence: migrate",
            "    successful_fence: migrat",
            "`fencing.actions.successful_fence` is `migrat`, expected `migrate` or `none`",
        ),
        (
            "    username: admin\n    password: change-this-password-as-well",
            "    username: admin",
            "`fencing.ipmi.password` is missing, expected text",
        ),
        (
            "  target_selector: mem  ",
            "  target_selector: memory  ",
            "`migration.target_selector` is `memory`, expected `mem`, `memprov`, `vcpus`, `load` \
             or `vms`",
        ),
    ];
    let mut text = SAMPLE.to_owned();
    for (right, wrong, _) in &mistakes {
        assert_eq!(text.matches(right).count(), 1, "`{right}` must be in the sample once");
        text = text.replace(right, wrong);
    }

    let errors = errors_of(&text).errors;

    let messages: Vec<_> = errors.iter().map(Problem::message).collect();
    let expected: Vec<_> = mistakes.iter().map(|(_, _, message)| (*message).to_owned()).collect();
    assert_eq!(messages, expected);
    let line_of = |word: &str| text.lines().position(|line| line.contains(word)).unwrap() + 1;
    let lines: Vec<_> = errors.iter().map(|error| error.place.unwrap().line).collect();
    let words = [
        "enable_storage",
        "domian",
        "90000",
        "10.3.0.250",
        "port: 0",
        "interval: five",
        "010",
        "successful_fence",
        "  ipmi:",
        "memory",
    ];
    let expected: Vec<_> = words.iter().map(|word| line_of(word)).collect();
    assert_eq!(lines, expected);
    assert!(errors.iter().all(|error| error.file == "/etc/pvc/pvc.conf"));
}

#[test]
fn a_problem_is_printed_with_place_and_hint() {
    let error = only_error(SAMPLE, "keepalive_interval: 5", "keepalive_interval: 5s");
    let line = SAMPLE.lines().position(|line| line.contains("keepalive_interval")).unwrap() + 1;
    assert_eq!(
        error.to_string(),
        format!(
            "error: /etc/pvc/pvc.conf:{line}:23: `timer.keepalive_interval` is `5s`, \
             expected a whole number of seconds (1 or more)\n  hint: write the number alone, \
             without a unit: 5"
        )
    );
}

#[test]
fn wrong_values_are_refused_with_a_hint() {
    let cases = [
        ("port: 2181", "port: 70000", "the largest value is 65535"),
        ("port: 2181", "port: -1", ""),
        ("vm_shutdown_timeout: 180", "vm_shutdown_timeout: 3:00", "sixties"),
        ("vm_shutdown_timeout: 180", "vm_shutdown_timeout: 1.5", "without a fraction"),
        ("vm_shutdown_timeout: 180", "vm_shutdown_timeout: 0", "smallest value is 1"),
        ("vm_shutdown_timeout: 180", "vm_shutdown_timeout: 99999999999999999999999", "too large"),
        (
            "fence_intervals: 6 ",
            "fence_intervals: 0o10 ",
            "octal and mean 8 in YAML 1.1, which is seldom wanted: write 10",
        ),
        ("dynamic_directory: /run/pvc", "dynamic_directory: run/pvc", "begin the path with `/`"),
        ("device: ens4\n      mtu", "device: a-very-long-device-name\n      mtu", ""),
        (
            "gateway_address: 10.0.0.254",
            "gateway_address: 10.0.0.254/24",
            "write the address without its mask: `10.0.0.254`",
        ),
        ("gateway_address: 10.0.0.254", "gateway_address: fe80::1", "PVC's own networks are IPv4"),
        ("netmask: 24                     #", "netmask: 255.0.255.0 #", "ones followed by zeros"),
        ("network_address: 10.1.0.0", "network_address: 10.1.0.7", "write `10.1.0.0`"),
        ("secret_uuid: 2f6d7b2e-", "secret_uuid: 2f6d7b2e", ""),
        ("address: 10.0.0.250\n    port", "address: example.com\n    port", ""),
        ("  enable_worker: yes", "  enable_worker:", ""),
        ("  enable_worker: yes", "  enable_worker: ja", ""),
        ("    source: token", "    source: tokens", "did you mean `token`?"),
        (
            "description: everyday use\n",
            "description: everyday use\n      role: operators\n",
            "did you mean `operator`?",
        ),
        ("description: everyday use\n", "description: everyday use\n      role:\n", ""),
        ("description: everyday use\n", "description: everyday use\n      role: \"\"\n", ""),
        (
            "ipmi:\n    hostname: pvchv{node_id}-lom.mydomain.net",
            "ipmi:\n    hostname: pvchv{id}-lom",
            "the only placeholder",
        ),
        ("      vfcount: 4", "", ""),
        ("  name: cluster1", "  name: \"\"", ""),
        ("    - pvchv1.storage.local", "    - pvchv1:6789", "the port has a key of its own"),
    ];
    for (from, to, hint) in cases {
        let error = only_error(SAMPLE, from, to);
        assert!(error.hint().unwrap_or_default().contains(hint), "{to}: {error}");
    }
}

#[test]
fn structure_gone_wrong_is_reported_once() {
    let error = only_error(
        SAMPLE,
        "timer:\n  vm_shutdown_timeout: 180\n  keepalive_interval: 5\n  monitoring_interval: 60",
        "timer: 5",
    );
    assert_eq!(error.message(), "`timer` is a plain value, expected a section of keys");
    let error =
        only_error(SAMPLE, "    - phy: ens1f1\n      mtu: 9000\n      vfcount: 4", "    - ens1f1");
    assert_eq!(
        error.message(),
        "`guest_networking.sriov_device[0]` is a plain value, expected a section of keys"
    );
    let error = only_error(
        SAMPLE,
        "    - phy: ens1f1\n      mtu: 9000",
        "      phy: ens1f1\n      mtu: 9000",
    );
    assert_eq!(
        error.message(),
        "`guest_networking.sriov_device` is a section of keys, expected a list of sections"
    );
    let error = errors_of("just some words").errors.remove(0);
    assert_eq!(error.message(), "the file is a plain value, expected a section of keys");
}

#[test]
fn yaml_that_is_none_is_reported_with_its_position() {
    for (text, line, hint) in [
        ("path:\n\tplugin_directory: /x\n", 2, "tabs"),
        ("timer:\n  keepalive_interval: [5\nlogging:\n  log_dates: no\n", 3, ""),
        ("timer:\n  keepalive_interval: \"5\n", 3, ""),
        ("api:\n  listen: x\n port: 7\n", 3, ""),
        ("a: *nowhere\n", 1, ""),
        ("a: @x\n", 1, "quotes"),
        ("a: 1\n---\nb: 2\n", 2, "one document"),
    ] {
        let errors = errors_of(text).errors;
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert_eq!(errors[0].place.unwrap().line, line, "{text}: {}", errors[0]);
        assert!(errors[0].hint().unwrap_or_default().contains(hint), "{text}: {}", errors[0]);
    }
}

#[test]
fn a_key_written_twice_is_refused() {
    let error = only_error(
        SAMPLE,
        "  monitoring_interval: 60",
        "  monitoring_interval: 60\n  keepalive_interval: 7",
    );
    assert!(
        error
            .message()
            .contains("`keepalive_interval` is written twice in one section, first in line"),
        "{error}"
    );
}

#[test]
fn aliases_that_explode_are_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    let error = errors_of(&text).errors.remove(0);
    assert!(error.message().contains("repeats too much"), "{error}");
}

#[test]
fn a_slip_in_a_key_is_an_error_and_another_unknown_key_a_warning() {
    let error = only_error(SAMPLE, "  log_colours: yes", "  log_colors: yes");
    assert_eq!(error.hint(), Some("did you mean `log_colours`?"));
    let warning =
        only_warning(SAMPLE, "  log_colours: yes", "  log_colours: yes\n  site_note: rack 4");
    assert_eq!(warning.message(), "`logging.site_note` is not a known key");
    let warning = only_warning(SAMPLE, "  debug_logging: no", "  debug: yes");
    assert!(warning.hint().unwrap().contains("perhaps `debug_logging` is meant"), "{warning}");
    // Next to the key that it resembles, it is somebody's own.
    let warning =
        only_warning(SAMPLE, "  log_colours: yes", "  log_colours: yes\n  log_colour: yes");
    assert_eq!(warning.message(), "`logging.log_colour` is not a known key");
    let warning = only_warning(
        SAMPLE,
        "  monitoring_interval: 60",
        "  monitoring_interval: 60\n  fence_intervals: 4",
    );
    assert!(
        warning.hint().unwrap().contains("belongs at `fencing.intervals.fence_intervals`"),
        "{warning}"
    );
}

#[test]
fn networks_must_fit_together() {
    let cases = [
        ("floating_address: 10.1.0.250", "floating_address: 10.1.0.255", "is not a host's address"),
        ("floating_address: 10.1.0.250", "floating_address: 10.1.0.1", "this node's own address"),
        (
            "floating_address: 10.1.0.250",
            "floating_address: 10.1.0.3",
            "the address that `by-id` gives to the node `pvchv3`",
        ),
        ("floating_address: 10.2.0.250", "floating_address: 10.1.0.250", "outside of the network"),
        ("gateway_address: 10.0.0.254", "gateway_address: 10.9.0.254", "outside of the network"),
        ("gateway_address: 10.0.0.254", "gateway_address: 10.0.0.250", "the floating address"),
        ("gateway_address: 10.0.0.254", "gateway_address: 10.0.0.1", "this node's own address"),
        ("gateway_address: 10.0.0.254", "gateway_address: 10.0.0.2", "gives to the node `pvchv2`"),
        ("gateway_address: 10.0.0.254", "gateway_address:", "is empty"),
        (
            "node_ip_selection: by-id          #",
            "node_ip_selection: 10.4.0.1 #",
            "outside of the network",
        ),
        (
            "network_address: 10.2.0.0\n        netmask: 24\n        floating_address: 10.2.0.250",
            "network_address: 10.1.0.0\n        netmask: 24\n        floating_address: 10.1.0.250",
            "overlaps the network `10.1.0.0/24` of `cluster`",
        ),
        (
            "network_address: 10.1.0.0\n        netmask: 24\n        floating_address: 10.1.0.250",
            "network_address: 10.0.0.0\n        netmask: 15\n        floating_address: 10.1.0.250",
            "overlaps the network",
        ),
    ];
    for (from, to, message) in cases {
        let error = only_error(SAMPLE, from, to);
        assert!(error.message().contains(message), "{to}: {error}");
    }
}

#[test]
fn one_network_may_serve_two_purposes_on_one_device() {
    let text = SAMPLE
        .replace("device: ens6", "device: ens5")
        .replace("10.2.0.0", "10.1.0.0")
        .replace("floating_address: 10.2.0.250", "floating_address: 10.1.0.250");
    let config = Config::parse(&text, "pvc.conf", "pvchv1").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.warnings, []);
}

#[test]
fn a_host_number_beyond_the_network_is_refused() {
    let text = SAMPLE.replacen("    - pvchv3\n", "    - pvchv3\n    - pvchv300\n", 1);
    let errors = Config::parse(&text, "pvc.conf", "pvchv300")
        .expect_err("there is no host 300 in a /24")
        .errors;
    assert_eq!(errors.len(), 3);
    assert!(errors[0].message().contains("has no host number 300"), "{}", errors[0]);
}

#[test]
fn dangerous_but_possible_settings_are_warnings() {
    let cases = [
        ("fence_intervals: 6 ", "fence_intervals: 0 ", "no node is ever taken for dead"),
        ("failed_fence: none", "failed_fence: migrate", "its VMs could run twice"),
        ("suicide_intervals: 0", "suicide_intervals: 9", "only after others took it for dead"),
        (
            "authentication:\n    enabled: yes\n",
            "authentication:\n    enabled: no\n",
            "commands the cluster",
        ),
        ("enable_networking: yes", "enable_networking: no", "there is no filter"),
        (
            "node_ip_selection: by-id\n    # Ceph's",
            "node_ip_selection: 10.1.0.1\n    # Ceph's",
            "all hosts of the network `cluster`",
        ),
        (
            "      token: replace-this-with-another-long-random-text",
            "      token: short",
            "short enough to be guessed",
        ),
        (
            "  zookeeper:\n    port: 2181",
            "  zookeeper:\n    port: 2181\n    password: short",
            "short enough to be guessed",
        ),
        ("  node_log_lines: 2000", "  node_log_lines: 0", "stays empty"),
        (
            "sriov_device:\n    - phy: ens1f1\n      mtu: 9000\n      vfcount: 4",
            "sriov_device:",
            "",
        ),
        ("  vm_shutdown_timeout: 180", "  vm_shutdown_timeout: \"180\"", "number in quotes"),
        ("  coordinator_nodes:\n    - pvchv1\n", "  coordinator_nodes:\n", "even number"),
        (
            "  all_nodes:\n    - pvchv1\n    - pvchv2\n",
            "  all_nodes:\n    - pvchv1\n",
            "lacks the coordinator `pvchv2`",
        ),
        ("    - pvchv3\n  networks", "    - pvchv3\n    - other3\n    - pvchv4\n  networks", ""),
        (
            "      device: ens6\n      mtu: 9000",
            "      device: ens5\n      mtu: 1500",
            "sets 9000 on the same device",
        ),
        (
            "      device: ens6\n      mtu: 9000",
            "      device: ens4\n      mtu: 1500",
            "cannot bridge one device twice",
        ),
    ];
    for (from, to, message) in cases {
        let text = SAMPLE.replacen(from, to, 1);
        assert_ne!(text, SAMPLE, "`{from}` must be in the sample");
        let text = if message.is_empty() {
            text.replace("sriov_enable: no", "sriov_enable: yes")
        } else {
            text
        };
        let config =
            Config::parse(&text, "pvc.conf", "pvchv1").unwrap_or_else(|e| panic!("{to}: {e}"));
        let all = pvc_config::render(&config.warnings);
        assert!(!config.warnings.is_empty() && all.contains(message), "{to}: {all}");
    }
}

#[test]
fn an_address_of_a_node_on_a_network_that_serves_two_purposes_is_its_own_on_both() {
    let text = SAMPLE
        .replace("device: ens6", "device: ens5")
        .replace("10.2.0.0", "10.1.0.0")
        .replace("floating_address: 10.2.0.250", "floating_address: 10.1.0.77");
    let (before, storage) =
        text.split_once("    storage:").expect("the sample has a storage network");
    let storage = storage.replacen("node_ip_selection: by-id", "node_ip_selection: 10.1.0.250", 1);
    let errors = errors_of(&format!("{before}    storage:{storage}")).errors;
    let messages: Vec<_> = errors.iter().map(Problem::message).collect();
    assert_eq!(
        messages,
        ["`cluster.networks.cluster.ipv4.floating_address` is 10.1.0.250, which is this node's \
             own address on \
          the network `storage`, expected an address that no node has"]
    );
}

#[test]
fn a_machine_that_no_list_names_is_refused_and_that_is_all_that_is_said() {
    for (hostname, name) in
        [("pvchv9", "pvchv9"), ("vm", "vm"), ("pvchv300.mydomain.net", "pvchv300")]
    {
        let errors = Config::parse(SAMPLE, "pvc.conf", hostname).expect_err(hostname);
        let [error] = errors.errors.as_slice() else { panic!("{hostname}: {errors}") };
        assert_eq!(error.message(), format!("`cluster.all_nodes` lacks this node, `{name}`"));
        assert!(error.hint().unwrap().contains("`hostnamectl hostname pvchv1`"), "{error}");
        assert_eq!(errors.warnings, [], "its addresses are nobody's");
    }
    let alone = SAMPLE.replacen("    - pvchv3\n", "    - pvchv3\n    - storage4\n", 1);
    let config = Config::parse(&alone, "pvc.conf", "storage4").unwrap_or_else(|e| panic!("{e}"));
    assert!(!config.is_coordinator());
}

#[test]
fn the_older_format_lists_no_hypervisors_and_refuses_none() {
    let text = OLD_SAMPLE.replace("  node: pvchv1\n", "  node: pvchv9\n");
    let config = Config::parse(&text, "pvc.conf", "pvchv9").unwrap_or_else(|e| panic!("{e}"));
    assert!(!config.is_coordinator());
}

#[test]
fn a_name_that_is_listed_twice_is_refused() {
    let twice = "    - pvchv1\n    - pvchv2\n    - pvchv2\n    - pvchv3\n";
    for (from, key) in [
        ("  all_nodes:\n    - pvchv1\n    - pvchv2\n    - pvchv3\n", "cluster.all_nodes"),
        (
            "  coordinator_nodes:\n    - pvchv1\n    - pvchv2\n    - pvchv3\n",
            "cluster.coordinator_nodes",
        ),
    ] {
        let list = format!("{}{twice}", &from[..from.find('\n').unwrap() + 1]);
        let error = errors_of(&SAMPLE.replace(from, &list)).errors.remove(0);
        assert_eq!(error.message(), format!("`{key}` names `pvchv2` twice"));
        assert!(error.hint().unwrap().contains("name each node once"), "{error}");
    }
    let error = only_error(OLD_SAMPLE, "      - pvchv3\n", "      - pvchv2\n");
    assert_eq!(error.message(), "`pvc.cluster.coordinators` names `pvchv2` twice");
}

#[test]
fn a_node_without_a_number_is_shown_how_to_get_an_address() {
    let text = SAMPLE.replacen("    - pvchv3\n", "    - pvchv3\n    - backup\n", 1);
    let free = text.replace("gateway_address: 10.0.0.254", "gateway_address: 10.0.0.253");
    let config = Config::parse(&free, "pvc.conf", "backup").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(config.networks.unwrap().upstream.address.unwrap().to_string(), "10.0.0.254/24");
    let names_command =
        |hint: Option<&str>| hint.is_some_and(|hint| hint.contains("`hostnamectl hostname NAME1`"));
    assert!(
        config.warnings.iter().all(|warning| names_command(warning.hint())),
        "{:?}",
        config.warnings
    );
    // Where the last address has another use, on this node as on the others.
    for hostname in ["backup", "pvchv1"] {
        let errors =
            Config::parse(&text, "pvc.conf", hostname).expect_err("it is the gateway's").errors;
        let [error] = errors.as_slice() else { panic!("{errors:?}") };
        assert!(error.message().contains("gateway_address` is 10.0.0.254, which is"), "{error}");
        assert!(names_command(error.hint()), "{error}");
    }
}

#[test]
fn nodes_that_by_id_confuses_are_warned_of() {
    let text = SAMPLE.replacen("    - pvchv3\n", "    - pvchv3\n    - backup3\n", 1);
    let config = Config::parse(&text, "pvc.conf", "pvchv1").unwrap_or_else(|e| panic!("{e}"));
    let all = pvc_config::render(&config.warnings);
    assert!(all.contains("gives `pvchv3` and `backup3` the same address"), "{all}");
}

#[test]
fn authentication_without_a_token_and_tls_without_a_key_are_refused() {
    let tokens = "  token:\n    - description: everyday use\n      token: \
                  replace-this-with-another-long-random-text\n";
    let error = errors_of(&SAMPLE.replace(tokens, "")).errors.remove(0);
    assert!(error.message().contains("nobody could log in"), "{error}");
    let errors = errors_of(
        &SAMPLE.replace("    enabled: no\n    certificate", "    enabled: yes\n    certificate"),
    )
    .errors;
    let messages: Vec<_> = errors.iter().map(Problem::message).collect();
    assert_eq!(
        messages,
        [
            "`api.ssl.certificate` is empty, expected the absolute path of a file",
            "`api.ssl.private_key` is empty, expected the absolute path of a file"
        ]
    );
}

#[test]
fn mistakes_in_the_older_format_name_its_own_keys() {
    let cases = [
        (
            "keepalive_interval: 5",
            "keepalive_interval: five",
            "`pvc.system.fencing.intervals.keepalive_interval` is `five`",
        ),
        (
            "network: \"10.1.0.0/24\"",
            "network: \"10.1.0.0\"",
            "`pvc.cluster.networks.cluster.network` is the text",
        ),
        ("floating_ip: \"10.1.0.250/24\"", "floating_ip: \"10.1.0.250/16\"", "has the mask /16"),
        (
            "floating_ip: \"10.1.0.250/24\"",
            "floating_ip: \"10.7.0.250/24\"",
            "outside of the network",
        ),
        (
            "        gateway: \"10.0.0.254\"",
            "",
            "`pvc.cluster.networks.upstream.gateway` is missing",
        ),
        (
            "      - pvchv1\n",
            "      - pvchv1.mydomain.net\n",
            "has an item 1 that is `pvchv1.mydomain.net`",
        ),
        (
            "device: ens4\n          mtu: 1500\n          address: by-id",
            "device: ens4\n          mtu: 1500\n          address: byid",
            "is `byid`",
        ),
    ];
    for (from, to, message) in cases {
        let error = only_error(OLD_SAMPLE, from, to);
        assert!(error.message().contains(message), "{to}: {error}");
    }
    let error = only_error(OLD_SAMPLE, "file_logging: False", "file_loging: False");
    assert_eq!(error.hint(), Some("did you mean `file_logging`?"));
}

#[test]
fn two_spellings_that_disagree_are_refused() {
    let error = only_error(
        SAMPLE,
        "    suicide_intervals: 0 ",
        "    suicide_interval: 3\n    suicide_intervals: 0 ",
    );
    assert!(
        error.message().contains("is given besides `fencing.intervals.suicide_intervals`"),
        "{error}"
    );
}

#[test]
fn an_empty_file_and_a_host_without_a_usable_name_are_refused() {
    assert_eq!(errors_of("# nothing\n").errors[0].message(), "is empty");
    let errors = Config::parse(SAMPLE, "pvc.conf", "a b").expect_err("no node is called that");
    assert!(errors.to_string().contains("cannot be a node's name"), "{errors}");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn no_text_makes_the_reader_panic(
        line in 0usize..200,
        junk in "(\\PC|[\n\t:{}\\[\\]*&!|>'\"#,-]){0,40}",
        whole in "\\PC{0,80}",
    ) {
        let mut lines: Vec<_> = SAMPLE.lines().map(str::to_owned).collect();
        let at = line.min(lines.len() - 1);
        let key = lines[at].split(": ").next().unwrap_or_default().to_owned();
        lines[at] = format!("{key}: {junk}");
        for text in [lines.join("\n"), junk, whole] {
            let _ = Config::parse(&text, "pvc.conf", "pvchv1");
            let _ = Config::parse(&format!("pvc: {text}"), "pvc.conf", "pvchv1");
        }
    }
}

#[test]
fn nesting_without_end_is_refused() {
    for text in
        ["[".repeat(100_000), "a: ".repeat(50_000), "- ".repeat(100_000), "{a: ".repeat(50_000)]
    {
        assert_eq!(errors_of(&text).errors.len(), 1);
    }
}

#[test]
fn how_zookeeper_is_spoken_to_is_said_whole_or_not_at_all() {
    let with = |lines: &str| {
        let below: String = lines.lines().map(|line| format!("\n    {line}")).collect();
        SAMPLE.replacen(
            "  zookeeper:\n    port: 2181",
            &format!("  zookeeper:\n    port: 2181{below}"),
            1,
        )
    };
    for (lines, message) in [
        (
            "password: \"\"",
            "`database.zookeeper.password` is empty text: it would let everybody in",
        ),
        (
            "password: geheim-für-alle-die-es-nichts-angeht",
            "`database.zookeeper.password` is not ASCII",
        ),
        ("ssl:\n  enabled: yes", "`database.zookeeper.ssl.authority` is missing"),
        (
            "ssl:\n  enabled: yes\n  authority: /ca.pem\n  certificate: /own.pem",
            "`database.zookeeper.ssl.certificate` stands without the other of `certificate` and \
             `private_key`",
        ),
    ] {
        let errors = errors_of(&with(lines)).errors;
        let all: Vec<_> = errors.iter().map(Problem::message).collect();
        assert!(all.iter().any(|found| found.contains(message)), "{lines}: {all:?}");
    }
    let parse = |lines: &str| {
        Config::parse(&with(lines), "pvc.conf", "pvchv1").unwrap_or_else(|e| panic!("{e}"))
    };
    assert_eq!(parse("").zookeeper_servers()[0], "pvchv1:2181");
    let whole = "ssl:\n  enabled: yes\n  authority: /ca.pem\n  certificate: \
                 /own.pem\n  private_key: /own.key";
    let config = parse(whole);
    assert_eq!(config.zookeeper_servers(), ["pvchv1:2281", "pvchv2:2281", "pvchv3:2281"]);
    let own = config.database.zookeeper.tls.and_then(|tls| tls.own).expect("both are given");
    assert_eq!(own, ("/own.pem".into(), "/own.key".into()));
    let off = parse(&whole.replace("enabled: yes", "enabled: no"));
    assert_eq!(off.zookeeper_servers()[0], "pvchv1:2181");
}
