//! Networks of VMs between real nodes: addresses, names, ways and what is forbidden, for guests
//! that move under a primary that moves.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::eventually;

const GATEWAY: &str = "10.20.1.1";

fn a_network_is_made(lab: &Lab) {
    let words = "network add 1001 -d net1 -p managed -n net1.example -i 10.20.1.0/24 -g 10.20.1.1 \
                 --dhcp --dhcp-start 10.20.1.100 --dhcp-end 10.20.1.199 --masquerade";
    lab.pvc(&words.split_whitespace().collect::<Vec<_>>()).ok();
    for node in lab.nodes() {
        eventually(&format!("{node} has the bridge and the tunnel"), 60, || {
            let links = lab.on(&node, "ip -o link show master vmbr1001");
            if links.stdout.contains("vxlan1001") { Ok(()) } else { Err(links.to_string()) }
        });
    }
}

/// Starts a guest with a card in the network. Returns the address that it was given.
fn guest(lab: &Lab, name: &str, node: &str) -> String {
    lab.define(name);
    lab.pvc(&["vm", "network", "add", name, "1001", "--no-live", "--no-restart"]).ok();
    lab.start(name, node);
    let log = format!("grep -ao 'eth0 has [0-9.]*' /var/log/libvirt/{name}.log | tail -n 1");
    eventually(&format!("{name} has an address"), 120, || {
        let said = lab.on(node, &log);
        match said.stdout.trim().strip_prefix("eth0 has 10.20.1.") {
            Some(host) => Ok(format!("10.20.1.{host}")),
            None => Err(said.to_string()),
        }
    })
}

/// Has `node` stand for a guest that is no VM: a network namespace plugged into the bridge.
fn plugged(lab: &Lab, node: &str, address: &str) {
    let script = format!(
        "ip netns del guest 2>/dev/null
        set -e
        ip netns add guest
        ip link add plug0 type veth peer name eth0 netns guest
        ip link set plug0 master vmbr1001 up
        ip netns exec guest ip link set lo up
        ip netns exec guest ip address add {address}/24 dev eth0
        ip netns exec guest ip link set eth0 up
        ip netns exec guest ip route add default via {GATEWAY}
        mkdir -p /etc/netns/guest
        echo 'nameserver {GATEWAY}' >/etc/netns/guest/resolv.conf"
    );
    lab.on(node, &script).ok();
}

fn unplugged(lab: &Lab, node: &str) {
    lab.on(node, "ip netns del guest; rm -r /etc/netns/guest").ok();
}

fn reaches(lab: &Lab, node: &str, address: &str) {
    eventually(&format!("{address} is reached from {node}"), 60, || {
        let ping = lab.on(node, &format!("ip netns exec guest ping -c 1 -W 1 {address}"));
        if ping.code == 0 { Ok(()) } else { Err(ping.to_string()) }
    });
}

/// Waits until the DNS server of the network, at the gateway, knows the guest by its name.
fn has_a_name(lab: &Lab, address: &str) {
    let script = "ip netns exec guest getent ahostsv4 hello.net1.example | cut -d' ' -f1 | head -1";
    eventually("the guest has a name", 60, || {
        let answer = lab.on("pvchv3", script);
        if answer.stdout.trim() == address { Ok(()) } else { Err(answer.to_string()) }
    });
}

/// Waits until the guest's name is known outside of its network, at the floating address of the
/// upstream network.
fn is_known_outside(lab: &Lab, address: &str) {
    let script = "echo 'nameserver 10.99.0.250' >/tmp/outside
        unshare -m sh -c 'mount --bind /tmp/outside /etc/resolv.conf
            getent ahostsv4 hello.net1.example' | cut -d' ' -f1 | head -1";
    eventually("the guest's name is known outside", 120, || {
        let answer = lab.on("pvchv3", script);
        if answer.stdout.trim() == address { Ok(()) } else { Err(answer.to_string()) }
    });
}

#[test]
fn guests_reach_each_other_over_the_tunnels_while_they_and_the_primary_move() {
    let lab = Lab::whole_and_quiet();
    a_network_is_made(&lab);
    let web1 = guest(&lab, "web1", "pvchv1");
    plugged(&lab, "pvchv3", "10.20.1.20");
    reaches(&lab, "pvchv3", &web1);
    reaches(&lab, "pvchv3", GATEWAY);

    // Its name, and its metadata.
    let primary = lab.primary();
    has_a_name(&lab, &web1);
    is_known_outside(&lab, &web1);
    let url = "http://169.254.169.254/latest/meta-data/name";
    lab.types("pvchv1", "web1", &format!("run echo name is $(wget -qO- {url})"), "name is web1");

    let ping = lab.watch_from("pvchv3", &web1);
    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv2", "--wait"]).ok();
    reaches(&lab, "pvchv3", &web1);
    let lost = ping.lost();
    println!("{lost} pings of 40 a second were lost while the guest moved");
    assert!(lost <= 80, "{lost} pings of 40 a second were lost while the guest moved");

    let heir = if primary == "pvchv2" { "pvchv1" } else { "pvchv2" };
    let ping = lab.watch_from("pvchv3", GATEWAY);
    lab.pvc(&["node", "primary", heir, "--wait"]).ok();
    lab.until_primary(heir);
    reaches(&lab, "pvchv3", GATEWAY);
    let lost = ping.lost();
    println!("{lost} pings of 40 a second were lost while the primary moved");
    assert!(lost <= 40, "{lost} pings of 40 a second were lost while the primary moved");
    // The new primary knows the leases of the former one.
    has_a_name(&lab, &web1);
    // So it does the zones, in the database that has come along.
    is_known_outside(&lab, &web1);
    unplugged(&lab, "pvchv3");
}

#[test]
fn a_rule_stops_a_guest_and_a_server_that_dies_and_frr_that_restarts_are_no_end() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    let web1 = guest(&lab, "web1", "pvchv2");
    plugged(&lab, "pvchv3", "10.20.1.20");
    reaches(&lab, "pvchv3", &web1);
    let primary = lab.primary();
    lab.on(&primary, "pkill -KILL -f 'dnsmasq.*vmbr1001'").ok();
    has_a_name(&lab, &web1);
    lab.on("pvchv2", "systemctl restart frr").ok();
    eventually("FRR has its sessions again", 60, || {
        let summary = lab.on("pvchv2", "vtysh -c 'show bgp l2vpn evpn summary json'");
        match summary.stdout.matches("\"state\":\"Established\"").count() {
            2.. => Ok(()),
            _ => Err(summary.to_string()),
        }
    });
    // What the others know of its guest goes with its sessions, and comes again.
    lab.on("pvchv3", "ip netns exec guest ip neigh flush all").ok();
    reaches(&lab, "pvchv3", &web1);

    // The way out, under the primary's address.
    let beyond = "ip netns exec guest ping -c 1 -W 1 10.99.0.254";
    reaches(&lab, "pvchv3", "10.99.0.254");
    let rule = "network acl add 1001 -d no-ping --out -r";
    let words: Vec<&str> = rule.split(' ').chain(["ip protocol icmp drop"]).collect();
    lab.pvc(&words).ok();
    eventually("it does not pass", 30, || {
        let ping = lab.on("pvchv3", beyond);
        if ping.code != 0 { Ok(()) } else { Err(ping.to_string()) }
    });
    lab.pvc(&["network", "acl", "remove", "1001", "no-ping", "-y"]).ok();
    reaches(&lab, "pvchv3", "10.99.0.254");
    unplugged(&lab, "pvchv3");
}
