//! Networks, their leases and their rules.

use pvc_model::guest_network::plan::LargestMtus;
use pvc_model::guest_network::request::Neighbour;
use pvc_ports::Network;
use pvc_testkit::MemoryNetwork;

use super::*;

const WEB: &str = "vni=2001&nettype=managed&description=web&ip4_network=10.20.1.0/24\
                   &ip4_gateway=10.20.1.1";

async fn with_network() -> Api {
    let api = with_vms(0).await;
    api.post(&format!("/network?{WEB}")).await.ok();
    api
}

fn message(reply: &Reply) -> String {
    reply.ok()["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_network_is_made_in_both_forms_and_shown_as_pvc_1_0_3_shows_it() {
    let api = with_vms(0).await;
    let made = api
        .post(&format!(
            "/network?{WEB}&dhcp4=True&dhcp4_start=10.20.1.100&dhcp4_end=10.20.1.199\
             &name_servers=ns1.example&masquerade=true"
        ))
        .await;
    assert_eq!(made.ok(), json!({"message": "Created network 2001 \"web\".", "vni": 2001}));
    let shown = json!([{
        "vni": 2001, "description": "web", "type": "managed", "mtu": "", "domain": "web.local",
        "name_servers": ["ns1.example"],
        "ip6": {"network": "None", "gateway": "None", "dhcp_flag": "False"},
        "ip4": {"network": "10.20.1.0/24", "gateway": "10.20.1.1", "dhcp_flag": "True",
                "dhcp_start": "10.20.1.100", "dhcp_end": "10.20.1.199"},
        "masquerade": true, "spoof_guard": false, "unconfirmed_since": null,
    }]);
    assert_eq!(api.get("/network/2001").await.ok(), shown);
    assert_eq!(api.get("/network/web").await.ok(), shown);
    // Q14: the number in the path is the network's.
    let made =
        api.post("/network/2002?nettype=managed&description=six&ip6_network=fd00::/64").await;
    assert_eq!(made.ok()["vni"], 2002);
    let six = api.get("/network/2002").await.ok();
    let expected = json!({"network": "fd00::/64", "gateway": "fd00::1", "dhcp_flag": "True"});
    assert_eq!(six[0]["ip6"], expected);
    let free = api.post("/network?vni=auto&nettype=bridged&description=lan").await.ok();
    assert_eq!(free, json!({"message": "Created network 2 \"lan\".", "vni": 2}));
}

#[tokio::test]
async fn the_ends_of_what_a_network_may_be_are_exact() {
    let api = with_vms(0).await;
    const MTU: &str = "a number of bytes from 576 to 65535";
    const MANAGED: &str = "vni: ";
    let before = api.get("/network").await.ok();
    let managed = |rest: &str| format!("/network?nettype=managed&description=a&{rest}");
    let bridged = |rest: &str| format!("/network?nettype=bridged&description=a&{rest}");
    for (path, words) in [
        (managed("vni=3001&mtu=68"), MTU),
        (managed("vni=3001&mtu=575"), MTU),
        (managed("vni=3001&mtu=65536"), MTU),
        (managed("vni=0"), MANAGED),
        (managed("vni=16777215"), MANAGED),
        (managed("vni=16777216"), MANAGED),
        (managed("vni=abc"), MANAGED),
        (bridged("vni=4095"), "a VLAN's number"),
        (managed("vni=3001&domain=two%20words"), "`domain` is `two words`"),
    ] {
        let said = api.post(&path).await.refused(400);
        assert!(said.contains(words), "{path}: {said}");
    }
    assert_eq!(api.get("/network").await.ok(), before, "nothing was made");
    for (path, vni, member, value) in [
        (managed("vni=3001&mtu=576"), 3001, "mtu", json!("576")),
        (managed("vni=3001&mtu=65535"), 3001, "mtu", json!("65535")),
        (managed("vni=1"), 1, "type", json!("managed")),
        (managed("vni=16777214"), 16_777_214, "type", json!("managed")),
        (bridged("vni=4094"), 4094, "type", json!("bridged")),
        (managed("vni=3001&domain=two.words"), 3001, "domain", json!("two.words")),
    ] {
        api.post(&path).await.ok();
        let shown = api.get(&format!("/network/{vni}")).await.ok();
        assert_eq!(shown[0][member], value, "{path}");
        api.delete(&format!("/network/{vni}")).await.ok();
    }
}

#[tokio::test]
async fn an_mtu_above_what_nodes_carry_is_taken_and_said() {
    let largest_mtus = LargestMtus { managed: Some(1450), bridged: Some(1500) };
    let settings = ApiSettings { largest_mtus, ..settings() };
    let api = start(&Shape::with_vms(0).dump(), settings).await;
    for (path, is_cut) in [
        ("/network?vni=2001&nettype=managed&description=a&mtu=1451", true),
        ("/network?vni=2002&nettype=managed&description=b&mtu=1450", false),
        ("/network?vni=2003&nettype=managed&description=c", false),
        ("/network?vni=101&nettype=bridged&description=d&mtu=9000", true),
        ("/network?vni=102&nettype=bridged&description=e&mtu=1500", false),
    ] {
        assert_eq!(message(&api.post(path).await).contains("pvchv1 carries"), is_cut, "{path}");
    }
    for (path, words) in [
        (
            "/network/a?mtu=9000",
            "Changed network 2001 \"a\". Its MTU is 1450 for now: node pvchv1 carries no larger \
             packets, and nodes cut the 9000 to what they carry.",
        ),
        ("/network/a?masquerade=true", "Changed network 2001 \"a\"."),
        ("/network/a?mtu=", "Changed network 2001 \"a\"."),
        ("/network/d?mtu=1500", "Changed network 101 \"d\"."),
    ] {
        assert_eq!(message(&api.put(path).await), words, "{path}");
    }
}

#[tokio::test]
async fn a_node_says_whether_it_can_carry_bridged_networks() {
    let api = with_vms(0).await;
    assert_eq!(api.get("/node/pvchv1").await.ok()[0]["vlans"], json!(null));
    for (note, vlans) in [
        (r#"{"said_by": "0.2.0"}"#, json!(null)),
        (r#"{"said_by": "0.2.0", "has_vlans": false}"#, json!(false)),
        (r#"{"said_by": "0.2.0", "has_vlans": true}"#, json!(true)),
    ] {
        api.write("/pvcrs/nodes/pvchv1", note.to_owned()).await;
        assert_eq!(api.get("/node/pvchv1").await.ok()[0]["vlans"], vlans, "{note}");
    }
}

#[tokio::test]
async fn q15_one_name_server_is_one_name_server_and_several_are_several() {
    let api = with_network().await;
    for (given, expected) in [
        ("name_servers=ns1.example", json!(["ns1.example"])),
        ("name_servers=ns1.example,ns2.example", json!(["ns1.example", "ns2.example"])),
        (
            "name_servers=ns1.example&name_servers=ns2.example",
            json!(["ns1.example", "ns2.example"]),
        ),
        ("mtu=1400", json!(["ns1.example", "ns2.example"])),
        ("name_servers=", json!([])),
    ] {
        api.put(&format!("/network/2001?{given}")).await.ok();
        assert_eq!(api.get("/network/2001").await.ok()[0]["name_servers"], expected, "{given}");
    }
}

#[tokio::test]
async fn q46_q36_a_network_that_cannot_be_is_refused_with_what_helps() {
    let api = with_network().await;
    for (given, words) in [
        ("vni=abc&description=x&nettype=managed", "vni: "),
        ("vni=0&description=x&nettype=managed", "vni: "),
        ("vni=16777215&description=x&nettype=managed", "vni: "),
        ("vni=5000&description=x&nettype=bridged", "a VLAN's number"),
        ("vni=2001&description=x&nettype=managed", "there is network 2001 `web` already"),
        ("vni=2003&description=web&nettype=managed", "there is network 2001 `web` already"),
        ("vni=2003&description=x&nettype=other", "nettype: `other` is not one of"),
        ("vni=2003&nettype=managed", "description: is required"),
        ("vni=2003&description=x&nettype=managed&ip6_network=nonsense", "`ip6_network`"),
        ("vni=2003&description=x&nettype=managed&dhcp4=true", "DHCP for IPv4 needs"),
        ("vni=2003&description=x&nettype=managed&mtu=9", "from 576 to 65535"),
        ("vni=2003&description=x&nettype=managed&ip4_network=10.20.1.77/25", "10.20.1.0/25"),
        ("vni=2003&description=x&nettype=managed&ip4_network=10.20.0.0/16", "overlaps"),
        ("vni=2003&description=x&nettype=bridged&masquerade=1", "is for managed networks"),
    ] {
        let said = api.post(&format!("/network?{given}")).await.refused(400);
        assert!(said.contains(words), "{given}: {said}");
    }
    assert_eq!(api.get("/network").await.ok().as_array().unwrap().len(), 5, "nothing was made");
    let reply = api.post("/network?vni=2001&description=x&nettype=managed").await;
    assert!(reply.json()["hint"].as_str().unwrap().contains("auto"), "{}", reply.text());
}

#[tokio::test]
async fn a_network_that_machines_are_in_is_refused_with_its_name() {
    let core_networks = vec![Neighbour {
        network: "10.0.1.0/24".parse().unwrap(),
        name: "the cluster network".to_owned(),
    }];
    let settings = ApiSettings { core_networks, ..settings() };
    let mut api = start(&Shape::with_vms(0).dump(), settings).await;
    let machine = MemoryNetwork::new().with_device("eno1");
    machine.add_address("eno1", "192.168.1.7/24".parse().unwrap()).await.unwrap();
    api.router = pvc_api::router(api.state.clone().with_machine(Arc::new(machine)));
    api.post(&format!("/network?{WEB}")).await.ok();
    for (net, words) in [
        ("10.0.1.0/24", "overlaps 10.0.1.0/24, the cluster network"),
        ("192.168.1.0/25", "overlaps 192.168.1.0/24, which this machine is in by `eno1`"),
    ] {
        let new = format!("/network?vni=2002&description=x&nettype=managed&ip4_network={net}");
        for said in [
            api.post(&new).await.refused(400),
            api.post(&format!("{new}&dry_run=true")).await.refused(400),
            api.put(&format!("/network/web?ip4_network={net}")).await.refused(400),
        ] {
            assert!(said.contains(words), "{said}");
        }
    }
}

#[tokio::test]
async fn q69_q14_a_change_is_of_what_is_given_and_of_a_network_that_there_is() {
    let api = with_network().await;
    let range = "dhcp4=true&dhcp4_start=10.20.1.100&dhcp4_end=10.20.1.199&ip6_network=fd00::/64";
    let changed = api.put(&format!("/network/web?{range}&spoof_guard=on")).await;
    assert_eq!(message(&changed), "Changed network 2001 \"web\".");
    let shown = api.get("/network/2001").await.ok();
    assert_eq!(shown[0]["ip4"]["dhcp_flag"], "True", "however it was spelt");
    assert_eq!(
        (&shown[0]["ip6"]["gateway"], &shown[0]["spoof_guard"]),
        (&json!("fd00::1"), &json!(true))
    );
    api.put("/network/2001?ip6_network=&dhcp4=false").await.ok();
    let shown = api.get("/network/2001").await.ok();
    let off = json!({"network": "None", "gateway": "None", "dhcp_flag": "False"});
    assert_eq!(shown[0]["ip6"], off);
    assert_eq!(shown[0]["ip4"]["dhcp_flag"], "False");
    assert_eq!(shown[0]["spoof_guard"], true, "what is not given stays");
    assert_eq!(api.put("/network/4242?mtu=1400").await.refused(404), "there is no network `4242`");
    assert_eq!(api.put("/network/web").await.refused(400), "nothing is to be changed");
    api.put("/network/web?description=1000").await.refused(400);
}

#[tokio::test]
async fn q61_a_network_is_removed_unless_a_vm_is_plugged_into_it() {
    let api = with_network().await;
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    api.post("/vm/web/networks?network=web").await.ok();
    let said = api.delete("/network/web").await.refused(400);
    assert_eq!(said, "network 2001 `web` is used by VM `web`");
    api.delete("/network/web?dry_run=true&force=true").await.ok();
    let gone = message(&api.delete("/network/web?force=true").await);
    let named = "It is still named by the definition of VM `web`.";
    assert_eq!(gone, format!("Removed network 2001 \"web\". {named}"));
    assert_eq!(api.delete("/network/web").await.refused(404), "there is no network `web`");
    api.get("/network/2001").await.refused(404);
}

#[tokio::test]
async fn q47_addresses_are_reserved_in_both_forms_and_released_by_any_name() {
    let api = with_network().await;
    let first = "macaddress=52-54-00-AA-BB-01&ipaddress=10.20.1.10&hostname=web1";
    let made = message(&api.post(&format!("/network/web/lease?{first}")).await);
    assert_eq!(made, "Reserved 10.20.1.10 for 52:54:00:aa:bb:01 in network 2001.");
    api.post("/network/2001/lease/52:54:00:aa:bb:02?ipaddress=10.20.1.11").await.ok();
    let leases = api.get("/network/web/lease").await.ok();
    let lease = json!({"hostname": "None", "ip4_address": "10.20.1.11",
                       "mac_address": "52:54:00:aa:bb:02", "ip6_address": null, "duid": null,
                       "timestamp": "static"});
    assert_eq!(leases[1], lease);
    for (given, words) in [
        (first, "has a reservation already"),
        ("macaddress=52:54:00:aa:bb:03&ipaddress=10.20.1.10", "is reserved for"),
        ("macaddress=52:54:00:aa:bb:03&ipaddress=999.1.1.1", "an IPv4 address"),
        ("macaddress=52:54:00:aa:bb:03&ipaddress=10.20.2.1", "is not an address of a host"),
        ("macaddress=nonsense&ipaddress=10.20.1.12", "`nonsense` is not the MAC address"),
    ] {
        let said = api.post(&format!("/network/web/lease?{given}")).await.refused(400);
        assert!(said.contains(words), "{given}: {said}");
    }
    api.post(&format!("/network/none/lease?{first}")).await.refused(404);
    // Q41: one element, in any notation.
    let one = api.get("/network/web/lease/52-54-00-AA-BB-02").await.ok();
    assert_eq!(one, json!([lease]));
    api.get("/network/web/lease/52:54:00").await.refused(404);
    let gone = message(&api.delete("/network/web/lease/web1").await);
    let expected = "Removed the reservation of 10.20.1.10 for 52:54:00:aa:bb:01 from network 2001.";
    assert_eq!(gone, expected);
    api.delete("/network/web/lease/10.20.1.11").await.ok();
    api.delete("/network/web/lease/10.20.1.11").await.refused(404);
    assert_eq!(api.get("/network/web/lease").await.ok(), json!([]));
}

fn rule(direction: &str, order: u32, name: &str, rule: &str) -> serde_json::Value {
    json!({"direction": direction, "order": order, "description": name, "rule": rule})
}

#[tokio::test]
async fn a_bridged_network_is_refused_where_nothing_could_carry_it() {
    let settings = ApiSettings { lacks_bridge_device: true, ..settings() };
    let api = start(&Shape::with_vms(0).dump(), settings).await;
    for path in ["/network?vni=100&", "/network/100?", "/network?dry_run=true&vni=100&"] {
        let refused = api.post(&format!("{path}nettype=bridged&description=office")).await;
        let hint = refused.json()["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains("`guest_networking.bridge_device`"), "{hint}");
        assert_eq!(refused.refused(400), "this machine has no device for bridged networks");
    }
    api.post("/network?vni=auto&nettype=managed&description=web").await.ok();
}

#[tokio::test]
async fn a_comment_behind_a_rule_is_not_dropped_without_a_word() {
    let api = with_network().await;
    let given = "description=ssh&direction=in&rule=tcp%20dport%2022%20accept%20%23%20from%20all";
    let said = message(&api.post(&format!("/network/web/acl?{given}")).await);
    assert_eq!(
        said,
        "Added rule \"ssh\" to network 2001, in 0. The comment behind it is not kept, its \
         description is: `# from all`."
    );
    assert_eq!(api.get("/network/web/acl/ssh").await.ok()[0]["rule"], "tcp dport 22 accept");
}

#[tokio::test]
async fn q10_rules_are_stored_as_given_in_dense_orders() {
    let api = with_network().await;
    let add = async |given: &str| message(&api.post(&format!("/network/web/acl?{given}")).await);
    let accept = "rule=tcp%20dport%2022%20accept";
    let first = add(&format!("description=ssh&direction=in&{accept}")).await;
    assert_eq!(first, "Added rule \"ssh\" to network 2001, in 0.");
    let out = add("description=all&rule=drop").await;
    assert_eq!(out, "Added rule \"all\" to network 2001, out 0.", "`out` without a direction");
    api.post("/network/2001/acl/web?direction=in&order=0&rule=tcp%20dport%2080%20accept")
        .await
        .ok();
    let rules = api.get("/network/web/acl").await.ok();
    let expected = json!([
        rule("in", 0, "web", "tcp dport 80 accept"),
        rule("in", 1, "ssh", "tcp dport 22 accept"),
        rule("out", 0, "all", "drop"),
    ]);
    assert_eq!(rules, expected);
    // Q41
    assert_eq!(api.get("/network/web/acl/ssh").await.ok(), json!([expected[1]]));
    api.get("/network/web/acl/ss").await.refused(404);
    let gone = message(&api.delete("/network/web/acl/web").await);
    assert_eq!(gone, "Removed rule \"web\" from network 2001.");
    assert_eq!(api.get("/network/web/acl/ssh").await.ok()[0]["order"], 0);
    api.delete("/network/web/acl/web").await.refused(404);
}

#[tokio::test]
async fn h10_a_rule_that_would_keep_the_others_from_being_loaded_is_refused() {
    let api = with_network().await;
    api.firewall.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("dport nosuch")));
    for (given, words) in [
        ("description=x&rule=tcp%20dport%20nosuch%20accept", "nft does not take the rule"),
        ("description=x&rule=accept;%20flush%20ruleset", "the rule is not taken: "),
        ("description=x&rule=tcp%20dport%2022", "it has no verdict"),
        ("description=a%2fb&rule=drop", "a description cannot have a `/`"),
        ("description=x&rule=drop&order=x", "order: `x` is not a whole number"),
        ("description=x&rule=drop&direction=sideways", "direction: `sideways`"),
        ("description=x", "rule: is required"),
    ] {
        let said = api.post(&format!("/network/web/acl?{given}")).await.refused(400);
        assert!(said.contains(words), "{given}: {said}");
    }
    api.post("/network?vni=9&nettype=bridged&description=lan").await.ok();
    let said = api.post("/network/lan/acl?description=x&rule=drop").await.refused(400);
    assert_eq!(said, "`acl` is for managed networks, and this one is bridged");
    assert_eq!(api.get("/network/web/acl").await.ok(), json!([]));
}

#[tokio::test]
async fn a_rule_of_a_megabyte_is_refused_and_nothing_of_it_is_kept() {
    let api = with_network().await;
    for (bytes, status, words) in [
        (4_097, 400, "it has more than 4 KiB"),
        (1_000_000, 400, "it has more than 4 KiB"),
        (1 << 20, 413, "the request body is larger than 1 MiB"),
    ] {
        let rule = "a".repeat(bytes);
        for path in ["/network/web/acl?description=x", "/network/web/acl/x?direction=in"] {
            let said = api.form(Method::POST, path, "rule", &rule).await.refused(status);
            assert!(said.contains(words) && said.len() < 1000, "{bytes} to {path}: {said}");
        }
    }
    assert_eq!(api.get("/network/web/acl").await.ok(), json!([]));
}

#[tokio::test]
async fn a_vm_is_plugged_into_networks_of_both_kinds_and_into_no_other() {
    let api = with_network().await;
    api.post("/network?vni=9&nettype=bridged&description=lan").await.ok();
    api.define("?node=pvchv1", &xml("web", UUID)).await.ok();
    for network in ["2001", "9", "lan"] {
        api.post(&format!("/vm/web/networks?network={network}")).await.ok();
    }
    let said = api.post("/vm/web/networks?network=4242").await;
    assert_eq!(said.refused(404), "no network `4242` in the cluster");
    assert!(said.json()["hint"].as_str().unwrap().contains("pvc network list"));
    api.delete("/vm/web/networks?network=lan").await.ok();
    let left = api.get("/vm/web/networks").await.ok();
    let vnis: Vec<&str> =
        left.as_array().unwrap().iter().map(|nic| nic["vni"].as_str().unwrap()).collect();
    assert_eq!(vnis, ["2001"]);
}

#[tokio::test]
async fn a_change_that_is_to_be_confirmed_says_so_and_holds_up_others_until_it_is() {
    let api = with_network().await;
    for seconds in ["4", "3601"] {
        let refused = api.put(&format!("/network/2001?mtu=1400&confirm={seconds}")).await;
        assert!(refused.refused(400).contains("5 to 3600 seconds can be waited"));
    }
    let changed = api.put("/network/2001?mtu=1400&confirm=60").await;
    assert_eq!(
        message(&changed),
        "Changed network 2001 \"web\". It is taken back in 60 seconds unless it is confirmed: \
         `pvc network confirm 2001`."
    );
    assert!(api.get("/network/web").await.ok()[0]["unconfirmed_since"].is_u64());
    let other = api.post("/network/2001/acl/ssh?rule=accept").await;
    assert!(other.refused(400).contains("waits to be confirmed"));
    let confirmed = api.post("/network/web/confirm").await;
    assert_eq!(message(&confirmed), "Confirmed the change of network 2001 \"web\".");
    assert_eq!(api.get("/network/web").await.ok()[0]["unconfirmed_since"], json!(null));
    api.post("/network/2001/acl/ssh?rule=accept&confirm=60").await.ok();
    api.post("/network/2001/confirm").await.ok();
    api.delete("/network/2001/acl/ssh?confirm=60").await.ok();
    api.post("/network/2001/confirm").await.ok();
    let none = api.post("/network/2001/confirm").await;
    assert!(none.refused(400).contains("no change of network 2001"));
}
