//! Help, options, completions and man pages.

use super::*;

#[test]
fn a_group_without_a_command_shows_its_help_and_is_no_mistake() {
    let output = User::without_connection().run(&["vm"]);
    assert_eq!((code(&output), err(&output).as_str()), (0, ""));
    assert!(out(&output).contains("Usage: pvc vm <COMMAND>"));
}

#[test]
fn help_says_what_a_later_release_brings() {
    let user = User::without_connection();
    let top = out(&user.run(&["--help"]));
    assert!(top.contains("  provisioner  Make VMs from templates\n"), "{top}");
    let provisioner = out(&user.run(&["provisioner", "--help"]));
    assert!(provisioner.contains("  create    Make a VM from a profile\n"), "{provisioner}");
    assert!(!provisioner.contains("[arrives"), "{provisioner}");
    assert!(top.contains("  storage      Manage the storage\n"), "{top}");
    let storage = out(&user.run(&["storage", "--help"]));
    assert!(!storage.contains("[arrives"), "{storage}");
    let network = out(&user.run(&["network", "--help"]));
    assert!(network.contains("  sriov    Manage SR-IOV devices\n"), "{network}");
    assert!(!network.contains("[arrives"), "{network}");
    let vm = out(&user.run(&["vm", "--help"]));
    assert!(vm.contains("  snapshot     Manage snapshots of a VM [arrives with release "), "{vm}");
    assert!(!vm.contains("List the VMs [arrives"), "{vm}");
    let group = out(&user.run(&["storage", "volume"]));
    assert!(!group.contains("[arrives"), "{group}");
    let group = out(&user.run(&["vm", "snapshot"]));
    assert!(group.contains("Not part of this release: it arrives with release "), "{group}");
}

#[test]
fn a_global_option_behind_the_group_is_shown_where_it_belongs() {
    let output = User::without_connection().run(&["vm", "list", "-q"]);
    assert_eq!((code(&output), out(&output)), (2, String::new()));
    assert_eq!(
        err(&output),
        "error: `-q` is a global option, and those stand before the group\nhint: `pvc -q vm list`\n"
    );
}

#[test]
fn help_and_version_are_found_by_whoever_looks_for_them() {
    let user = User::without_connection();
    let help = |line: &[&str]| out(&user.run(line));
    assert_eq!(help(&["help"]), help(&["--help"]));
    assert_eq!(help(&["help", "vm", "list"]), help(&["vm", "list", "--help"]));
    assert_eq!(help(&["version"]), help(&["--version"]));
    let ls = user.run(&["vm", "ls"]);
    assert_eq!((code(&ls), out(&ls)), (2, String::new()));
    assert_eq!(
        err(&ls),
        "error: there is no command `pvc vm ls`\nhint: `pvc vm list`: List the VMs\n"
    );
}

#[test]
fn of_an_option_that_is_repeated_the_last_one_counts() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let output =
        user.run(&["-q", "-q", "-c", "gone", "-c", "lab", "vm", "list", "-f", "json", "-f", "raw"]);
    assert_eq!((code(&output), out(&output).as_str()), (0, "db1\nweb1\n"), "{output:?}");
}

#[test]
fn options_of_two_letters_work_where_they_always_have() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    user.run(&["node", "list", "-ds", "run", "-cs=primary", "x", "-vs", "ready"]);
    assert_eq!(
        stub.lines(),
        ["GET /node?limit=x&daemon_state=run&coordinator_state=primary&domain_state=ready"]
    );
    let line = ["-q", "network", "add", "10", "-d", "x", "-p", "managed", "-i6", "fd00::/64"];
    user.run(&line);
    let asked = stub.lines().pop().unwrap();
    assert!(asked.ends_with("&ip6_network=fd00%3A%3A%2F64"), "{asked}");
}

/// Asks what a shell's function asks at a Tab behind these words.
fn complete(user: &User, words: &[&str]) -> Output {
    let mut command = user.command(&["--", "pvc"]);
    command.args(words).env("_PVC_COMPLETE_SHELL", "bash");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_COMPLETE_SPACE", "true");
    command.output().unwrap()
}

#[test]
fn tab_offers_the_names_of_the_vms_there_are() {
    let stub = Stub::start(cluster);
    let user = User::of(&stub);
    let offered = out(&complete(&user, &["vm", "start", ""]));
    assert!(offered.contains("web1") && offered.contains("db1"), "{offered}");
    let offered = out(&complete(&user, &["node", "flush", "h"]));
    assert!(offered.contains("hv2") && !offered.contains("pvchv1"), "{offered}");
    let offered = out(&complete(&user, &["vm", "list", "--tag", ""]));
    assert!(offered.contains("daily"), "{offered}");
    let offered = out(&complete(&user, &["vm", "list", "--state", "st"]));
    assert!(offered.contains("start") && offered.contains("stop"), "{offered}");
    let offered = out(&complete(&user, &["cluster", "fault", "ack", ""]));
    assert!(offered.contains("NODE_FLUSH"), "{offered}");
    let offered = out(&complete(&user, &["task", "cancel", ""]));
    assert!(offered.contains("0a1b2c3d"), "{offered}");
    let offered = out(&complete(&user, &["network", "remove", ""]));
    assert!(offered.contains("1001"), "{offered}");
    let offered = out(&complete(&user, &["network", "trace", "web1", ""]));
    assert!(offered.contains("db1"), "{offered}");
    let offered = out(&complete(&user, &["network", "sriov", ""]));
    assert!(offered.contains("vf"), "{offered}");
}

#[test]
fn tab_says_nothing_of_an_api_that_cannot_reach_its_store() {
    let stale = |request: &Received, before| {
        cluster(request, before).with_headers("X-Pvc-Stale: true\r\nAge: 150\r\n")
    };
    let output = complete(&User::of(&Stub::start(stale)), &["vm", "start", ""]);
    assert!(out(&output).contains("web1"), "{output:?}");
    assert_eq!(err(&output), "");
}

#[test]
fn tab_is_quick_and_silent_when_nobody_answers() {
    let user = User::without_connection().with("PVC_CONFIG_FILE", "/nonexistent");
    let started = Instant::now();
    let output = complete(&user, &["vm", "start", "we"]);
    assert_eq!(err(&output), "");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn every_shell_gets_its_function() {
    let user = User::without_connection();
    for (shell, word) in [("bash", "complete "), ("zsh", "#compdef"), ("fish", "complete ")] {
        let output = user.run(&["completion", shell]);
        assert_eq!(code(&output), 0);
        assert!(out(&output).contains(word), "{shell}: {}", out(&output));
    }
}

#[test]
fn the_first_clients_way_to_activate_completions_works() {
    let user = User::without_connection();
    for (word, expected) in [
        ("bash_source", "complete "),
        ("source_bash", "complete "),
        ("zsh_source", "#compdef"),
        ("fish_source", "complete "),
    ] {
        let output = user.command(&[]).env("_PVC_COMPLETE", word).output().unwrap();
        assert_eq!((code(&output), err(&output)), (0, String::new()), "{word}");
        assert!(out(&output).contains(expected), "{word}: {}", out(&output));
    }
    let question = user.command(&[]).env("_PVC_COMPLETE", "bash_complete").output().unwrap();
    assert_eq!(
        (code(&question), out(&question), err(&question)),
        (0, String::new(), String::new())
    );
    let odd = user.command(&[]).env("_PVC_COMPLETE", "tcsh_source").output().unwrap();
    assert_eq!(code(&odd), 2);
    assert!(err(&odd).contains("hint: `pvc completion bash`"), "{odd:?}");
}

#[test]
fn there_is_a_man_page_for_each_command() {
    let user = User::without_connection();
    let directory = user.home.path().join("man");
    assert_eq!(code(&user.run(&["man", directory.to_str().unwrap()])), 0);
    let page = std::fs::read_to_string(directory.join("pvc-vm-start.1")).unwrap();
    assert!(page.contains(".SH EXAMPLES\n.nf\n  pvc vm start web1\n"), "{page}");
    assert!(directory.join("pvc.1").exists() && directory.join("pvc-network-acl-add.1").exists());
}
