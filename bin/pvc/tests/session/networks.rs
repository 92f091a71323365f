//! Networks, leases and rules are changed by one request each, after a question where something is
//! removed.

use super::*;

/// A server of which every change succeeds.
fn server(request: &Received, before: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/openapi.json") => ok(DOCUMENT),
        ("GET", _) => cluster(request, before),
        ("POST", "/api/v1/network") => ok(r#"{"message": "done", "vni": 1001}"#),
        _ => message("done"),
    }
}

fn words(line: &str) -> Vec<&str> {
    ["-q", "network"].into_iter().chain(line.split(' ')).collect()
}

#[test]
fn each_change_of_a_network_is_one_request() {
    for (line, request) in [
        (
            "add 100 -p bridged -d office",
            "POST /network?vni=100&description=office&nettype=bridged",
        ),
        (
            "add auto -d web -p managed -i 10.20.1.0/24 -g 10.20.1.1 --dhcp --dhcp-start \
             10.20.1.100 --dhcp-end 10.20.1.199 -n web.example --dns-server ns1 --dns-server ns2 \
             -m 1400 --masquerade",
            "POST /network?vni=auto&description=web&nettype=managed&mtu=1400&domain=web.example\
             &name_servers=ns1&name_servers=ns2&ip4_network=10.20.1.0%2F24&ip4_gateway=10.20.1.1\
             &dhcp4=True&dhcp4_start=10.20.1.100&dhcp4_end=10.20.1.199&masquerade=True",
        ),
        (
            "add 7 -d six -p managed -i6 fd00::/64 -g6=fd00::1 --no-dhcp",
            "POST /network?vni=7&description=six&nettype=managed&ip6_network=fd00%3A%3A%2F64\
             &ip6_gateway=fd00%3A%3A1&dhcp4=False",
        ),
        ("modify web --spoof-guard", "PUT /network/web?spoof_guard=True"),
        ("modify web --masquerade --no-masquerade", "PUT /network/web?masquerade=False"),
        ("modify web -i6= -m=", "PUT /network/web?mtu=&ip6_network="),
        ("modify web --dns-server=", "PUT /network/web?name_servers="),
        ("modify 1001 -d shop", "PUT /network/1001?description=shop"),
        ("remove web -y", "DELETE /network/web"),
        ("remove web --force -y", "DELETE /network/web?force=True"),
        (
            "dhcp add web 10.20.1.10 web1 52:54:00:00:00:01",
            "POST /network/web/lease?macaddress=52%3A54%3A00%3A00%3A00%3A01&ipaddress=10.20.1.10\
             &hostname=web1",
        ),
        ("dhcp remove web web1 -y", "DELETE /network/web/lease/web1"),
        (
            "acl add web -d ssh -r accept",
            "POST /network/web/acl?description=ssh&rule=accept&direction=in",
        ),
        (
            "acl add web --out -d mail -r drop -o 0",
            "POST /network/web/acl?description=mail&rule=drop&order=0",
        ),
        ("acl remove web ssh -y", "DELETE /network/web/acl/ssh"),
        (
            "modify web -g 10.20.1.254 --confirm 60s",
            "PUT /network/web?ip4_gateway=10.20.1.254&confirm=60",
        ),
        (
            "acl add web -d ssh -r accept --confirm 5",
            "POST /network/web/acl?description=ssh&rule=accept&direction=in&confirm=5",
        ),
        ("acl remove web ssh -y --confirm 3600s", "DELETE /network/web/acl/ssh?confirm=3600"),
        ("confirm web", "POST /network/web/confirm"),
        (
            "sriov vf set hv1 ens1f0v1 --vlan-id 100 --qos-prio 3 --tx-min 10 --tx-max 1000 \
             --link-state enable --spoof-check --no-trust --query-rss",
            "PUT /sriov/vf/hv1/ens1f0v1?vlan_id=100&vlan_qos=3&tx_rate_min=10&tx_rate_max=1000\
             &link_state=enable&spoof_check=True&trust=False&query_rss=True",
        ),
        (
            "sriov vf set hv1 ens1f0v1 --vlan-id 0 --no-spoof-check --trust --no-query-rss",
            "PUT /sriov/vf/hv1/ens1f0v1?vlan_id=0&spoof_check=False&trust=True&query_rss=False",
        ),
    ] {
        let stub = Stub::start(server);
        let output = User::of(&stub).run(&words(line));
        assert_eq!((code(&output), out(&output).as_str()), (0, "done\n"), "{line}: {output:?}");
        assert_eq!(changes(&stub), [request], "{line}");
    }
}

#[test]
fn what_is_removed_is_asked_about_and_not_removed_without_a_yes() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    for (line, question) in [
        ("remove web", "Remove network \"web\" with its leases and firewall rules [y/N]? "),
        ("dhcp remove web web1", "Remove the lease of \"web1\" from network \"web\" [y/N]? "),
        ("acl remove web ssh", "Remove rule \"ssh\" from network \"web\" [y/N]? "),
    ] {
        let output = user.answering("n\n", &words(line));
        assert!(out(&output).ends_with("Aborted.\n"), "{line}: {output:?}");
        assert!(err(&output).contains(question), "{line}: {output:?}");
        let nobody = user.run(&words(line));
        assert_eq!(code(&nobody), 1, "{line}: {nobody:?}");
        let made = changes(&stub).into_iter().filter(|line| !line.contains("dry_run=True"));
        assert_eq!(made.count(), 0, "{line}");
    }
}

#[test]
fn scripts_get_the_number_that_was_chosen() {
    let stub = Stub::start(server);
    let output = User::of(&stub).run(&words("add auto -d web -p managed -f json"));
    let answer: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(answer["vni"], 1001);
}

#[test]
fn a_server_that_would_leave_it_out_of_account_is_not_asked_for_what_is_new() {
    let old = |request: &Received, before: usize| match request.path() {
        "/api/v1/openapi.json" => status(404, "{}"),
        _ => server(request, before),
    };
    for line in [
        "add auto -d web -p managed",
        "add 7 -d web -p managed --masquerade",
        "modify web --spoof-guard",
        "modify web -m 1400 --confirm 60s",
        "acl add web -d ssh -r accept --confirm 60s",
        "acl remove web ssh -y --confirm 60s",
    ] {
        let stub = Stub::start(old);
        let output = User::of(&stub).run(&words(line));
        assert_eq!(code(&output), 6, "{line}: {output:?}");
        assert!(err(&output).contains("the server is too old for"), "{line}: {output:?}");
        assert_eq!(changes(&stub), Vec::<String>::new(), "{line}");
    }
}

/// PVC 1.0.3 with one network that has these DNS servers.
fn old_with(servers: &'static str) -> Stub {
    Stub::start(move |request, before| match (request.method.as_str(), request.path()) {
        (_, "/api/v1/openapi.json") => status(404, "{}"),
        ("GET", "/api/v1/network/web") => ok(format!(
            r#"[{{"vni": 1001, "description": "web", "type": "managed", "mtu": "", "domain": "x",
                 "name_servers": [{servers}],
                 "ip6": {{"network": "None", "gateway": "None", "dhcp_flag": "False"}},
                 "ip4": {{"network": "None", "gateway": "None", "dhcp_flag": "False",
                          "dhcp_start": "None", "dhcp_end": "None"}}}}]"#
        )),
        _ => server(request, before),
    })
}

#[test]
fn q69_q14_pvc_1_0_3_is_given_the_number_and_the_dns_servers_with_each_change() {
    for (servers, line, request) in [
        (
            r#""ns1", "ns2""#,
            "modify web -m 1400",
            "PUT /network/1001?mtu=1400&name_servers=ns1&name_servers=ns2",
        ),
        (r#""""#, "modify web -m 1400", "PUT /network/1001?mtu=1400"),
        (r#""ns1", "ns2""#, "modify web --dns-server=", "PUT /network/1001?name_servers="),
        (
            r#""ns1""#,
            "modify web --dns-server a --dns-server b",
            "PUT /network/1001?name_servers=a&name_servers=b",
        ),
    ] {
        let stub = old_with(servers);
        let output = User::of(&stub).run(&words(line));
        assert_eq!(code(&output), 0, "{line}: {output:?}");
        assert_eq!(changes(&stub), [request], "{line}");
    }
}

#[test]
fn q15_pvc_1_0_3_is_not_given_one_dns_server_whose_letters_it_would_take_for_servers() {
    for (servers, line) in [
        (r#""ns1""#, "modify web -m 1400"),
        (r#""ns1", "ns2""#, "modify web --dns-server a"),
        ("", "add 7 -d x -p managed --dns-server a"),
    ] {
        let stub = old_with(servers);
        let output = User::of(&stub).run(&words(line));
        assert_eq!(code(&output), 6, "{line}: {output:?}");
        assert!(err(&output).contains("too old for a network with one DNS server"), "{output:?}");
        assert_eq!(changes(&stub), [""; 0], "{line}");
    }
}

#[test]
fn what_the_server_would_refuse_is_refused_before_the_question() {
    let stub = Stub::start(|request, before| match request.line().contains("dry_run=True") {
        true => status(400, r#"{"message": "VM `web1` is plugged into it", "hint": "wait"}"#),
        false => server(request, before),
    });
    let user = User::of(&stub);
    for line in ["remove web", "dhcp remove web web1", "acl remove web ssh"] {
        let output = user.answering("y\n", &words(line));
        assert_eq!(code(&output), 1, "{line}: {output:?}");
        assert_eq!(
            err(&output),
            "error: VM `web1` is plugged into it\nhint: wait\n",
            "{line}: no question"
        );
    }
    let asked = changes(&stub);
    assert!(
        asked.len() == 3 && asked.iter().all(|line| line.ends_with("dry_run=True")),
        "{asked:?}"
    );
}

#[test]
fn a_line_that_asks_for_nothing_or_for_nonsense_asks_nobody() {
    let stub = Stub::start(server);
    let user = User::of(&stub);
    for line in [
        "modify web",
        "add 7 -d x -p other",
        "add 7 -p managed",
        "acl add web -d x -r drop -o first",
        "acl add web -d x",
        "modify web --confirm 60s",
        "modify web -m 1400 --confirm 60m",
        "acl remove web x -y --confirm soon",
        "sriov vf set hv1 ens1f0v1",
        "sriov vf set hv1 ens1f0v1 --link-state maybe",
        "sriov vf set hv1 ens1f0v1 --vlan-id none",
    ] {
        assert_eq!(code(&user.run(&words(line))), 2, "{line}");
    }
    assert!(changes(&stub).is_empty());
}

#[test]
fn leases_and_rules_are_listed_as_scripts_know_them() {
    let stub = Stub::start(|request, _| match request.path() {
        "/api/v1/network/web/lease" if request.target.contains("limit=none") => ok("[]"),
        "/api/v1/network/web/lease" => ok(LEASES),
        "/api/v1/network/web/acl" => ok(RULES),
        _ => status(400, r#"{"message": "there is no network `no`"}"#),
    });
    let user = User::of(&stub);
    let run = |line: &str| out(&user.run(&words(line)));
    assert_eq!(
        run("dhcp list web -f raw"),
        "52:54:00:00:00:02|10.20.1.101|db1\n52:54:00:00:00:01|10.20.1.10|web1\n"
    );
    assert_eq!(
        run("acl list web -f raw"),
        "in|2|tcp dport 22 accept\nin|10|drop\nout|0|accept\n",
        "orders are numbers"
    );
    run("dhcp list web -s");
    run("acl list web --out");
    let asked = stub.lines();
    assert_eq!(
        asked[2..],
        ["GET /network/web/lease?static=True", "GET /network/web/acl?direction=out"]
    );
    assert_eq!(code(&user.run(&words("dhcp list web none"))), 3);
    assert_eq!(code(&user.run(&words("acl list no"))), 1);
}

#[test]
fn a_trace_is_a_line_for_each_step_and_its_code_says_whether_it_arrives() {
    let server = |request: &Received, before: usize| {
        let arrives = !request.line().contains("port=25");
        let end = if arrives { "leaves hv1" } else { "dropped on hv1" };
        match request.path() {
            "/api/v1/vm/web1/trace" => ok(format!(
                r#"{{"vm": "web1", "target": "192.0.2.1", "passes": {arrives}, "back": null,
                     "there": {{"from": null, "to": "192.0.2.1", "depends": [], "assumed": [],
                       "steps": [{{"kind": "bridge", "text": "vmbr7 on hv1", "node": "hv1",
                                   "network": null}}],
                       "end": {{"kind": "leaves", "text": "{end}", "node": "hv1",
                                "arrives": {arrives}}}}}}}"#
            )),
            _ => cluster(request, before),
        }
    };
    let stub = Stub::start(server);
    let user = User::of(&stub);
    let output = user.run(&words("trace web1 192.0.2.1"));
    let lines = "web1 to 192.0.2.1:\n  bridge      vmbr7 on hv1\n  end         leaves hv1\n";
    assert_eq!((code(&output), out(&output).as_str()), (0, lines), "{output:?}");
    let asked = stub.lines().pop().unwrap();
    assert!(asked.ends_with("/vm/web1/trace?target=192.0.2.1"), "{asked}");

    let line = "trace web1 192.0.2.1 --network web --protocol tcp --port 25 -f json";
    let output = user.run(&words(line));
    assert_eq!((code(&output), err(&output).as_str()), (1, ""), "{output:?}");
    let answer: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(answer["there"]["end"]["text"], "dropped on hv1");
    let asked = stub.lines().pop().unwrap();
    assert!(asked.ends_with("?target=192.0.2.1&network=web&protocol=tcp&port=25"), "{asked}");

    for wrong in ["trace web1 192.0.2.1 --port 25", "trace web1 192.0.2.1 -p tcp -P 0"] {
        assert_eq!(code(&user.run(&words(wrong))), 2, "{wrong}");
    }
}

const CARD: &str = "/api/v1/network/1001/lease/52%3A54%3A00%3Aaa%3Abb%3Acc";

/// A network with DHCP, where the guest asks for its address after the second look.
fn with_leases() -> impl Fn(&Received, usize) -> Reply + Send + Sync {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    let network = NETWORKS.replace(r#""dhcp_flag": "None""#, r#""dhcp_flag": "True""#);
    let networks: Vec<serde_json::Value> = serde_json::from_str(&network).unwrap();
    move |request, before| match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/network/1001") => ok(format!("[{}]", networks[0])),
        ("GET", CARD) => match looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 | 1 => status(404, r#"{"message": "no lease"}"#),
            _ => ok(r#"[{"hostname": "web1", "ip4_address": "10.20.1.101",
                "mac_address": "52:54:00:aa:bb:cc", "timestamp": "1"}]"#),
        },
        ("GET", "/api/v1/tasks/0a1b2c3d") => {
            ok(r#"{"state": "SUCCESS", "current": 2, "total": 2, "status": "VM \"web1\" is made"}"#)
        }
        ("POST", "/api/v1/vm/web1/create") => {
            status(202, r#"{"task_id": "0a1b2c3d", "task_name": "vm.create", "run_on": "hv1"}"#)
        }
        _ => cluster(request, before),
    }
}

#[test]
fn whoever_makes_and_starts_a_vm_is_shown_its_address_when_dhcp_has_given_it_one() {
    let stub = Stub::start(with_leases());
    let user = User::of(&stub);
    let before = user.run(&["-q", "vm", "info", "web1"]);
    assert!(!out(&before).contains("Addresses"), "{before:?}");
    let made = user.run(&["-q", "vm", "create", "web1", "-i", "debian", "-n", "1001", "--start"]);
    assert_eq!(code(&made), 0, "{made:?}");
    assert!(out(&made).ends_with("It has the address 10.20.1.101 (1001).\n"), "{made:?}");
    let looks = stub.received().iter().filter(|request| request.path() == CARD).count();
    assert_eq!(looks, 3, "once by `vm info`");
    let after = user.run(&["-q", "vm", "info", "web1"]);
    assert!(out(&after).contains("Addresses:          10.20.1.101 (1001)\n"), "{after:?}");
}

#[test]
fn what_the_agent_in_a_guest_says_is_shown_beside_the_address_of_its_lease() {
    let leases = with_leases();
    let stub = Stub::start(move |request, before| match request.path() {
        "/api/v1/vm/web1" => {
            let mut vms: serde_json::Value = serde_json::from_str(&one_vm(0)).unwrap();
            vms[0]["networks"][0]["addresses"] = serde_json::json!(["10.20.1.101", "2001:db8::5"]);
            ok(vms.to_string())
        }
        _ => leases(request, before),
    });
    let user = User::of(&stub);
    let info = || out(&user.run(&["-q", "vm", "info", "web1"]));
    let of_agent = "2001:db8::5 (1001, by its agent)\n";
    let alone = format!("Addresses:          10.20.1.101 (1001, by its agent), {of_agent}");
    for shown in [&alone, &alone, &format!("Addresses:          10.20.1.101 (1001), {of_agent}")] {
        let said = info();
        assert!(said.contains(shown.as_str()), "{shown}: {said}");
    }
}

#[test]
fn whoever_starts_a_new_vm_is_shown_the_address_that_its_agent_says_or_where_to_look_for_it() {
    for (said, shown) in [
        (vec!["192.0.2.7"], "It has the address 192.0.2.7 (1001, by its agent).\n"),
        (vec![], "hint: `pvc vm info web1` shows its address when its agent says it\n"),
    ] {
        let leases = with_leases();
        // The network has no DHCP of the cluster.
        let stub = Stub::start(move |request, before| match request.path() {
            "/api/v1/network/1001" => cluster(request, before),
            CARD => status(404, r#"{"message": "no lease"}"#),
            "/api/v1/vm/web1" => {
                let mut vms: serde_json::Value = serde_json::from_str(&one_vm(0)).unwrap();
                vms[0]["networks"][0]["addresses"] = serde_json::json!(said);
                ok(vms.to_string())
            }
            _ => leases(request, before),
        });
        let line = ["-q", "vm", "create", "web1", "-i", "debian", "-n", "1001", "--start"];
        let made = User::of(&stub).run(&line);
        assert_eq!(code(&made), 0, "{made:?}");
        assert!(format!("{}{}", out(&made), err(&made)).ends_with(shown), "{made:?}");
    }
}

#[test]
fn whoever_installs_a_system_learns_how_to_get_to_its_screen_and_its_console() {
    let stub = Stub::start(with_leases());
    let user = User::of(&stub);
    let line = "-q vm create web1 --from-iso installer --disk 4G --start";
    let made = user.run(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(code(&made), 0, "{made:?}");
    let said = "Its screen is VNC at 127.0.0.1:5900 on node \"pvchv1\".\n\
                From elsewhere: `ssh -L 5900:127.0.0.1:5900 pvchv1`, then VNC at 127.0.0.1:5900.\n\
                Its serial console: `pvc vm log web1 -f`.\n";
    assert!(out(&made).ends_with(said), "{made:?}");
}
