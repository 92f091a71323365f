//! Networks of VMs between real nodes: addresses, names, ways and what is forbidden, for guests
//! that move under a primary that moves.

use pvc_lab_tests::{GATEWAY, Lab, OUTSIDE};
use pvc_standalone_tests::{Output, eventually, exit};
use serde_json::Value;

pub(crate) fn a_network_is_made(lab: &Lab) {
    let words = "network add 1001 -d net1 -p managed -n net1.example -i 10.20.1.0/24 -g 10.20.1.1 \
                 --dhcp --dhcp-start 10.20.1.100 --dhcp-end 10.20.1.199 --masquerade";
    lab.pvc(&words.split_whitespace().collect::<Vec<_>>()).ok();
    for node in lab.nodes() {
        has_the_network(lab, &node);
    }
}

pub(crate) fn has_the_network(lab: &Lab, node: &str) {
    has_bridge(lab, node, "1001");
}

/// Waits until `node` has the bridge of the network with this number, with its tunnel.
pub(crate) fn has_bridge(lab: &Lab, node: &str, vni: &str) {
    eventually(&format!("{node} has the bridge and the tunnel of network {vni}"), 60, || {
        let links = lab.on(node, &format!("ip -o link show master vmbr{vni}"));
        let has_tunnel = links.stdout.contains(&format!("vxlan{vni}"));
        if has_tunnel { Ok(()) } else { Err(links.to_string()) }
    });
}

/// Starts a guest with a card in the network. Returns the address that it was given.
pub(crate) fn guest(lab: &Lab, name: &str, node: &str) -> String {
    lab.define(name);
    lab.pvc(&["vm", "network", "add", name, "1001", "--no-live", "--no-restart"]).ok();
    lab.start(name, node);
    address_of(lab, name, node)
}

/// Waits until the guest has said at its console on `node` which address it was given. Returns it.
pub(crate) fn address_of(lab: &Lab, name: &str, node: &str) -> String {
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
pub(crate) fn plugged(lab: &Lab, node: &str, address: &str) {
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

pub(crate) fn unplugged(lab: &Lab, node: &str) {
    lab.on(node, "ip netns del guest; rm -r /etc/netns/guest").ok();
}

pub(crate) fn reaches(lab: &Lab, node: &str, address: &str) {
    eventually(&format!("{address} is reached from {node}"), 60, || {
        let ping = lab.on(node, &format!("ip netns exec guest ping -c 1 -W 1 {address}"));
        if ping.code == 0 { Ok(()) } else { Err(ping.to_string()) }
    });
}

/// A DHCP client, in Python: asks by the card `eth0` as a new guest does. Its arguments are its own
/// name, and the address of the server. It prints the address that it was given.
const DHCP_CLIENT: &str = "
import socket, sys
name, server = sys.argv[1].encode(), socket.inet_aton(sys.argv[2])
card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
card.bind(('eth0', 0))
mac = card.getsockname()[4]
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'eth0')
client.bind(('', 68))
client.settimeout(10)
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
def asks(kind, answer, options=b''):
    transaction = mac[2:]
    # With the flag that answers are to be broadcast.
    head = bytes([1, 1, 6, 0]) + transaction + bytes([0, 0, 128, 0]) + bytes(16)
    own = bytes([99, 130, 83, 99, 53, 1, kind, 12, len(name)]) + name
    message = head + mac + bytes(202) + own + options + bytes([255])
    client.sendto(message, ('255.255.255.255', 67))
    while True:
        reply = client.recv(2000)
        if reply[4:8] == transaction and reply[242] == answer: return reply[16:20]
offered = asks(DISCOVER, OFFER)
given = asks(REQUEST, ACK, bytes([50, 4]) + offered + bytes([54, 4]) + server)
print(socket.inet_ntoa(given))
";

/// Has the guest that `node` stands for ask DHCP under this name, and take the address that it is
/// given. Returns the address.
pub(crate) fn leased(lab: &Lab, node: &str, name: &str) -> String {
    let within = ["exec", node, "--", "ip", "netns", "exec", "guest"];
    let asks = [&within[..], &["python3", "-c", DHCP_CLIENT, name, GATEWAY]].concat();
    let address = eventually(&format!("DHCP gives `{name}` on {node} an address"), 60, || {
        let said = lab.does(&asks);
        let address = said.stdout.trim().to_owned();
        if said.code == 0 && address.starts_with("10.20.1.") { Ok(address) } else { Err(said) }
    });
    lab.on(node, &format!("ip -n guest address replace {address}/24 dev eth0")).ok();
    address
}

/// Waits until the lease is recorded.
pub(crate) fn is_leased(lab: &Lab, name: &str, address: &str) {
    eventually(&format!("the lease of {address} to `{name}` is recorded"), 30, || {
        let leases = lab.json(&["network", "dhcp", "list", "1001"])?;
        let is_it = |lease: &Value| lease["hostname"] == name && lease["ip4_address"] == address;
        let is_there = leases.as_array().is_some_and(|all| all.iter().any(is_it));
        if is_there { Ok(()) } else { Err(leases.to_string()) }
    });
}

/// Waits until the DNS server of the network, at the gateway, knows the guest by this name, asked
/// by the guest that `node` stands for.
pub(crate) fn is_named(lab: &Lab, node: &str, name: &str, address: &str) {
    let script = format!(
        "ip netns exec guest getent ahostsv4 {name}.net1.example | cut -d' ' -f1 | head -1"
    );
    eventually(&format!("`{name}` is {address} to the DNS server of its network"), 60, || {
        let answer = lab.on(node, &script);
        if answer.stdout.trim() == address { Ok(()) } else { Err(answer.to_string()) }
    });
}

/// A client of NTP, in Python, which asks the address that is its argument. It prints whose answer
/// it is, if a server has sent it that has the same time as this machine.
const ASKS_THE_TIME: &str = "
import socket, struct, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(5)
CLIENT, SERVER = 3, 4
client.sendto(bytes([4 << 3 | CLIENT]) + bytes(47), (sys.argv[1], 123))
answer, sender = client.recvfrom(100)
seconds = struct.unpack('!I', answer[40:44])[0] - 2208988800
is_right = answer[0] & 7 == SERVER and 0 < answer[1] < 16 and abs(seconds - time.time()) < 5
print(sender[0] if is_right else answer)
";

/// Waits until the guest that `node` stands for is given the time by its gateway.
fn gateway_has_the_time(lab: &Lab, node: &str) {
    let asks = ["ip", "netns", "exec", "guest", "python3", "-c", ASKS_THE_TIME, GATEWAY];
    let asks = [&["exec", node, "--"][..], &asks].concat();
    eventually("the gateway has the time", 60, || {
        let said = lab.does(&asks);
        if said.stdout.trim() == GATEWAY { Ok(()) } else { Err(said) }
    });
}

/// Waits until the guest's name is known outside of its network, at the floating address of the
/// upstream network, asked by `node`.
pub(crate) fn is_known_outside(lab: &Lab, node: &str, address: &str) {
    let script = "echo 'nameserver 10.99.0.250' >/tmp/outside
        unshare -m sh -c 'mount --bind /tmp/outside /etc/resolv.conf
            getent ahostsv4 hello.net1.example' | cut -d' ' -f1 | head -1";
    eventually("the guest's name is known outside", 120, || {
        let answer = lab.on(node, script);
        if answer.stdout.trim() == address { Ok(()) } else { Err(answer.to_string()) }
    });
}

/// Waits until `node` alone has the gateway and the network's server.
pub(crate) fn is_served_by(lab: &Lab, node: &str) {
    eventually(&format!("the gateway and its server are on {node} alone"), 60, || {
        let serves = |node: &String| lab.on(node, "pgrep -f '[d]nsmasq.*vmbr1001'").code == 0;
        let servers: Vec<String> = lab.nodes().into_iter().filter(serves).collect();
        let holders = lab.holders_of(GATEWAY);
        if holders == [node] && servers == [node] {
            Ok(())
        } else {
            Err(format!("{GATEWAY} is on {holders:?}, servers run on {servers:?}"))
        }
    });
}

/// Address outside of the cluster as well, which a rule of the story about moves forbids.
const FORBIDDEN: &str = "10.99.0.202";

/// Has the VM `web1`, which runs on `node`, ping this address until it says `word` and whether an
/// answer came.
pub(crate) fn web1_pings(lab: &Lab, node: &str, address: &str, word: &str, is_answered: bool) {
    let line = format!("run ping -c 1 -W 2 {address} >/dev/null; echo {word} $?");
    lab.types(node, "web1", &line, &format!("{word} {}", u8::from(!is_answered)));
}

/// Lets guests reach [`OUTSIDE`] by one rule, and nobody else upstream by another. `web1` runs on
/// `node`.
fn two_rules_are_made(lab: &Lab, node: &str) {
    web1_pings(lab, node, FORBIDDEN, "without-rules", true);
    let allows = format!("ip daddr {OUTSIDE} accept");
    for (name, rule) in [("outside", &*allows), ("no-upstream", "ip daddr 10.99.0.0/24 drop")] {
        lab.pvc(&["network", "acl", "add", "1001", "--out", "-d", name, "-r", rule]).ok();
    }
    web1_pings(lab, node, FORBIDDEN, "with-rules", false);
}

/// Has `web1`, on `node` now, find the way and the rules that it had: since that moment no ping was
/// answered that a rule drops.
fn way_and_rules_are_kept(lab: &Lab, node: &str, since: &str) {
    reaches(lab, "pvchv3", OUTSIDE);
    web1_pings(lab, node, OUTSIDE, &format!("{since}-allowed"), true);
    let forbidden = format!("{since}-forbidden");
    web1_pings(lab, node, FORBIDDEN, &forbidden, false);
    let passed = lab.on(node, &format!("grep -ac '{forbidden} 0' /var/log/libvirt/web1.log"));
    assert_eq!(passed.stdout.trim(), "0", "what a rule drops has passed: {passed}");
}

#[test]
fn guests_reach_each_other_over_the_tunnels_while_they_and_the_primary_move() {
    let lab = Lab::whole_and_quiet();
    // Names outside come from it.
    lab.until_database_leads_on(&lab.primary());
    a_network_is_made(&lab);
    let web1 = guest(&lab, "web1", "pvchv1");
    plugged(&lab, "pvchv3", "10.20.1.20");
    reaches(&lab, "pvchv3", &web1);
    reaches(&lab, "pvchv3", GATEWAY);

    // Its name, its metadata, its time, and what is forbidden.
    let primary = lab.primary();
    is_named(&lab, "pvchv3", "hello", &web1);
    is_known_outside(&lab, "pvchv3", &web1);
    let url = "http://169.254.169.254/latest/meta-data/name";
    lab.types("pvchv1", "web1", &format!("run echo name is $(wget -qO- {url})"), "name is web1");
    gateway_has_the_time(&lab, "pvchv3");
    two_rules_are_made(&lab, "pvchv1");

    web1_moves(&lab, &web1, "pvchv2");
    way_and_rules_are_kept(&lab, "pvchv2", "moved");

    let heir = if primary == "pvchv2" { "pvchv1" } else { "pvchv2" };
    the_primary_moves(&lab, &web1, heir);
    way_and_rules_are_kept(&lab, "pvchv2", "handed-over");
    gateway_has_the_time(&lab, "pvchv3");
    // The new primary knows the leases of the former one.
    is_named(&lab, "pvchv3", "hello", &web1);
    // So it does the zones, in the database that has come along.
    is_known_outside(&lab, "pvchv3", &web1);
    unplugged(&lab, "pvchv3");
}

/// Has `web1`, whose address is given, move to `node` while it is pinged.
fn web1_moves(lab: &Lab, address: &str, node: &str) {
    let ping = lab.watch_from("pvchv3", address);
    lab.pvc(&["vm", "migrate", "web1", "--target", node, "--wait"]).ok();
    reaches(lab, "pvchv3", address);
    let lost = ping.lost();
    println!("{lost} pings of 40 a second were lost while the guest moved");
    assert!(lost <= 30, "{lost} pings of 40 a second were lost while the guest moved");
}

/// Has `heir` become primary, while the gateway, the guest with this address, and an address that a
/// rule forbids are pinged.
fn the_primary_moves(lab: &Lab, guest: &str, heir: &str) {
    let (to_gateway, to_guest, to_forbidden) = (
        lab.watch_from("pvchv3", GATEWAY),
        lab.watch_from("pvchv3", guest),
        lab.watch_from("pvchv3", FORBIDDEN),
    );
    lab.pvc(&["node", "primary", heir, "--wait"]).ok();
    lab.until_primary(heir);
    reaches(lab, "pvchv3", GATEWAY);
    reaches(lab, "pvchv3", guest);
    let (of_gateway, of_guest) = (to_gateway.lost(), to_guest.lost());
    let passed = to_forbidden.answered();
    println!(
        "while the primary moved, of 40 pings a second {of_gateway} were lost to the gateway and \
         {of_guest} between guests"
    );
    assert!(of_guest <= 1, "{of_guest} pings between guests were lost while the primary moved");
    // It is on no two nodes, so for a moment it is on none: one ping's time on a quiet machine.
    assert!(of_gateway <= 5, "{of_gateway} pings to the gateway were lost");
    assert_eq!(passed, 0, "{passed} pings passed a rule that drops them while the primary moved");
}

#[test]
fn a_rule_stops_a_guest_and_a_server_that_dies_and_frr_that_restarts_are_no_end() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    let primary = lab.primary();
    // Its way out leads through a tunnel.
    let node = lab.witness(&primary);
    let web1 = guest(&lab, "web1", node);
    plugged(&lab, "pvchv3", "10.20.1.20");
    reaches(&lab, "pvchv3", &web1);
    lab.on(&primary, "pkill -KILL -f 'dnsmasq.*vmbr1001'").ok();
    is_named(&lab, "pvchv3", "hello", &web1);
    let ping = lab.watch_from("pvchv3", &web1);
    lab.on(node, "systemctl restart frr").ok();
    eventually("FRR has its sessions again", 60, || {
        let summary = lab.on(node, "vtysh -c 'show bgp l2vpn evpn summary json'");
        match summary.stdout.matches("\"state\":\"Established\"").count() {
            2.. => Ok(()),
            _ => Err(summary.to_string()),
        }
    });
    reaches(&lab, "pvchv3", &web1);
    let lost = ping.lost();
    println!("{lost} pings of 40 a second to its guest were lost while FRR was restarted");
    // Two seconds on a quiet machine: FRR takes with it what it knew, and its sessions come again.
    assert!(lost <= 240, "{lost} pings of 40 a second were lost while FRR was restarted");
    // What the others know of its guest goes with its sessions, and comes again.
    lab.on("pvchv3", "ip netns exec guest ip neigh flush all").ok();
    reaches(&lab, "pvchv3", &web1);

    it_goes_out_by_the_primary(&lab, node, &primary);
    nothing_passes_that_a_rule_drops(&lab, &primary);
    it_makes_itself_an_address_of_ipv6(&lab, &primary);
    unplugged(&lab, "pvchv3");
}

/// Follows a ping from `web1` to [`OUTSIDE`] by what is recorded; the primary alone knows all of
/// its own addresses.
fn traced(lab: &Lab, primary: &str) -> Output {
    lab.pvc_on(primary, &["network", "trace", "web1", OUTSIDE, "--protocol", "icmp"])
}

/// Holds a packet's way, as it is followed, against a packet's.
fn it_goes_out_by_the_primary(lab: &Lab, node: &str, primary: &str) {
    reaches(lab, "pvchv3", OUTSIDE);
    let words = [
        format!("vxlan1001 from {node}"),
        format!("{GATEWAY} of network 1001 on {primary}, the primary"),
        format!("goes on under the address of {primary}"),
        format!("leaves {primary} by the upstream network"),
        format!("delivered to VM `web1` on {node}"),
    ];
    // A fault that FRR or the server has left behind goes by itself.
    eventually("a packet's way out is followed to its end", 60, || {
        let trace = traced(lab, primary);
        let is_whole = words.iter().all(|words| trace.stdout.contains(words));
        if trace.code == 0 && is_whole { Ok(()) } else { Err(trace) }
    });
}

/// Forbids pings to the outside, once unconfirmed and once for good.
fn nothing_passes_that_a_rule_drops(lab: &Lab, primary: &str) {
    let does_not_pass = || {
        let beyond = format!("ip netns exec guest ping -c 1 -W 1 {OUTSIDE}");
        eventually("it does not pass", 30, || {
            let ping = lab.on("pvchv3", &beyond);
            if ping.code != 0 { Ok(()) } else { Err(ping) }
        });
    };
    let add = ["network", "acl", "add", "1001", "-d", "no-ping", "--out", "-r"];
    let rule = ["ip protocol icmp drop"];
    let unconfirmed = lab.pvc(&[&add[..], &rule, &["--confirm", "20s"]].concat());
    unconfirmed.says(&["taken back in 20 seconds", "pvc network confirm"]);
    does_not_pass();
    // Nobody confirms it.
    reaches(lab, "pvchv3", OUTSIDE);
    eventually("the rule is taken back", 30, || {
        let rules = lab.pvc(&["network", "acl", "list", "1001", "-f", "raw"]);
        if rules.ok().trim().is_empty() { Ok(()) } else { Err(rules) }
    });

    lab.pvc(&[&add[..], &rule].concat()).ok();
    does_not_pass();
    let dropped = traced(lab, primary).fails(exit::FAILED);
    assert!(dropped.contains(&format!("dropped on {primary} by rule `no-ping`")), "{dropped}");
    lab.pvc(&["network", "acl", "remove", "1001", "no-ping", "-y"]).ok();
    reaches(lab, "pvchv3", OUTSIDE);
}

/// Gives the network IPv6 as well: the guest that a node stands for makes itself an address, and
/// finds its way to the gateway.
fn it_makes_itself_an_address_of_ipv6(lab: &Lab, primary: &str) {
    lab.pvc(&["network", "modify", "1001", "--ipnet6", "2001:db8:20::/64"]).ok();
    eventually("the primary has the gateway of IPv6", 60, || {
        let shown = lab.on(primary, "ip -6 -o address show dev vmbr1001 scope global");
        if shown.stdout.contains(" 2001:db8:20::1/64 ") { Ok(()) } else { Err(shown) }
    });
    // A guest asks for routers when its card comes up.
    let script = "ip -n guest link set eth0 down && ip -n guest link set eth0 up";
    lab.on("pvchv3", script).ok();
    eventually("the guest has an address of IPv6 and a way out", 90, || {
        let script = "ip -n guest -6 -o address show dev eth0 scope global
            ip -n guest -6 route show default";
        let shown = lab.on("pvchv3", script);
        let words = [" 2001:db8:20:", "via fe80::"];
        let has_both = words.iter().all(|words| shown.stdout.contains(words));
        if has_both { Ok(()) } else { Err(shown) }
    });
    reaches(lab, "pvchv3", "2001:db8:20::1");
}

/// The MAC address that the VM has in the network.
fn mac(lab: &Lab, name: &str) -> String {
    let script = format!("pvc --connection local vm dump {name} | grep -o '52:54:00:[0-9a-f:]*'");
    let said = lab.on("pvchv1", &script);
    said.ok().lines().last().expect("it has a card").to_owned()
}

/// Lets the owner of `key` in, by the definition of the VM, which is off.
fn may_log_in(lab: &Lab, name: &str, user: &str, key: &str) {
    let script = format!(
        "set -e
        pvc='pvc --quiet --unsafe --connection local'
        key=\"<pvc:ssh-key name='{user}'>{key}</pvc:ssh-key>\"
        keys=\"<pvc:ssh-keys xmlns:pvc='urn:pvc:vm'>$key</pvc:ssh-keys>\"
        edit=\"s#</domain>#<metadata>$keys</metadata></domain>#\"
        $pvc vm dump {name} | sed \"$edit\" >/tmp/{name}.xml
        $pvc vm modify {name} /tmp/{name}.xml --yes"
    );
    lab.on("pvchv1", &script).ok();
}

/// Runs cloud-init in the namespace `guest` of `node`, with nothing of the node's own state and
/// without giving the node the guest's name, and returns what it has found, as `jq` shows it by
/// `filter`, and behind it, as a line of JSON, the configuration of the network that it makes of
/// that for a card `eth0`.
fn cloud_init(lab: &Lab, node: &str, filter: &str) -> String {
    let script = format!(
        "cat >/tmp/cloud.cfg <<'END'
datasource_list: [Ec2]
datasource: {{ Ec2: {{ strict_id: false, timeout: 10, max_wait: 60 }} }}
network: {{ config: disabled }}
preserve_hostname: true
cloud_init_modules: []
cloud_config_modules: []
cloud_final_modules: []
END
        cat >/tmp/inside <<'END'
set -e
hostname gateway-asks
mkdir -p /var/lib/cloud /run/cloud-init
mount -t tmpfs tmpfs /var/lib/cloud
mount -t tmpfs tmpfs /run/cloud-init
cp /tmp/cloud.cfg /etc/cloud/cloud.cfg.d/99-guest.cfg
trap 'rm /etc/cloud/cloud.cfg.d/99-guest.cfg' EXIT
cloud-init init >/tmp/cloud-init.out 2>&1 || {{ tail -n 30 /tmp/cloud-init.out >&2; exit 1; }}
jq -rc '{filter}' /run/cloud-init/instance-data-sensitive.json
python3 - <<'CODE'
import json
from cloudinit.sources.DataSourceEc2 import convert_ec2_metadata_network_config as made
with open('/run/cloud-init/instance-data-sensitive.json') as file: data = json.load(file)
network = data['ds']['meta-data']['network']
[mac] = network['interfaces']['macs']
print(json.dumps(made(network, {{mac: 'eth0'}})))
CODE
END
        ip netns exec guest unshare --uts --mount bash /tmp/inside"
    );
    lab.on(node, &script).ok().trim().to_owned()
}

#[test]
fn cloud_init_finds_its_metadata_and_other_addresses_do_not() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    // It is the namespace that asks: with the VM's address, and with its card's.
    lab.define("web1");
    lab.pvc(&["vm", "network", "add", "web1", "1001", "--no-live", "--no-restart"]).ok();
    let mac = mac(&lab, "web1");
    lab.pvc(&["network", "dhcp", "add", "1001", "10.20.1.30", "hello", &mac]).ok();
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA alice@desk";
    may_log_in(&lab, "web1", "alice", key);
    let uuid = lab.vm("web1", "/uuid");
    let node = lab.witness(&lab.primary());
    plugged(&lab, node, "10.20.1.30");
    let address = format!("ip netns exec guest ip link set eth0 address {mac}");
    lab.on(node, &address).ok();
    reaches(&lab, node, GATEWAY);
    let asks = "ip netns exec guest curl --silent --max-time 5 -o /dev/null -w '%{http_code}' \
                http://169.254.169.254/latest/meta-data/instance-id";
    eventually("it is known", 30, || match lab.on(node, asks).stdout.trim() {
        "200" => Ok(()),
        other => Err(other.to_owned()),
    });
    let filter = "[.v1.instance_id,.v1.public_ssh_keys,\
                  (.ds[\"meta-data\"]|.[\"local-hostname\"],.[\"local-ipv4\"],.name)]";
    let found = cloud_init(&lab, node, filter);
    println!("cloud-init found {found}");
    let (data, network) = found.split_once('\n').expect("both are printed");
    let own = format!("[\"{uuid}\",[\"{key}\"],\"web1.net1.example\",\"10.20.1.30\",\"web1\"]");
    assert_eq!(data, own);
    let network: serde_json::Value = serde_json::from_str(network).expect("it is JSON");
    let card = serde_json::json!({
        "dhcp4": true, "dhcp6": false, "match": {"macaddress": mac}, "set-name": "eth0"
    });
    assert_eq!(network, serde_json::json!({"version": 2, "ethernets": {"eth0": card}}));

    // Under an address that is nobody's.
    unplugged(&lab, node);
    plugged(&lab, node, "10.20.1.31");
    reaches(&lab, node, GATEWAY);
    assert_eq!(lab.on(node, asks).stdout.trim(), "404");
    unplugged(&lab, node);
}

/// Number of networks of the story that has many.
const MANY: usize = 200;

/// Most times as long from a daemon's start until it has made them as by hand: twice as many as on
/// a quiet machine and on a busy one.
const TIMES_BY_HAND: u64 = 4;

/// Waits until `node` has a bridge with a tunnel of each of the [`MANY`] networks.
fn has_many(lab: &Lab, node: &str) {
    let count = "ip -o link show type vxlan | grep -c 'vxlan2[0-9]*:.* master vmbr2'";
    eventually(&format!("{node} has {MANY} networks"), 300, || {
        let said = lab.on(node, count).stdout.trim().to_owned();
        if said == MANY.to_string() { Ok(()) } else { Err(said) }
    });
}

#[test]
fn two_hundred_networks_stand_soon_after_a_node_has_started() {
    let lab = Lab::whole_and_quiet();
    let add = format!(
        "for vni in $(seq 2000 {}); do
            pvc --quiet --connection local network add $vni -d many$vni -p managed || exit 1
        done",
        2000 + MANY - 1
    );
    lab.on("pvchv1", &add).ok();
    for node in lab.nodes() {
        has_many(&lab, &node);
    }
    // A node that starts without any of them, and the same by hand, in a namespace of that node.
    let node = lab.witness(&lab.primary());
    let measure = format!(
        "set -e
        now() {{ date +%s%N; }}
        count() {{ ip -o link show type vxlan | grep -c 'vxlan2[0-9]*:.* master vmbr2' || true; }}
        systemctl stop pvcnoded
        for vni in $(seq 2000 {last}); do ip link del vxlan$vni; ip link del vmbr$vni; done
        ip netns add hand
        begun=$(now)
        for vni in $(seq 2000 {last}); do
            ip -n hand link add vxlan$vni type vxlan id $vni dstport 4789 local 10.0.0.1 nolearning
            ip -n hand link add vmbr$vni type bridge
            ip -n hand link set vxlan$vni master vmbr$vni
            ip -n hand link set vxlan$vni up
            ip -n hand link set vmbr$vni up
        done
        hand=$(( ($(now) - begun) / 1000000 ))
        ip netns del hand
        begun=$(now)
        systemctl start --no-block pvcnoded
        for try in $(seq 2400); do [[ $(count) == {MANY} ]] && break; sleep 0.05; done
        [[ $(count) == {MANY} ]]
        echo \"$hand $(( ($(now) - begun) / 1000000 ))\"",
        last = 2000 + MANY - 1
    );
    let said = lab.on(node, &measure).ok().to_owned();
    let times: Vec<u64> = said.split_whitespace().filter_map(|time| time.parse().ok()).collect();
    let [hand, start] = times[..] else { panic!("two times: {said}") };
    println!("{MANY} networks: {start} ms from the daemon's start, {hand} ms by hand");
    assert!(start <= TIMES_BY_HAND * hand, "{MANY} networks: {start} ms, and {hand} ms by hand");
    lab.node_is(node, "run", "ready");

    let remove = format!(
        "for vni in $(seq 2000 {}); do
            pvc --quiet --unsafe --connection local network remove $vni || exit 1
        done",
        2000 + MANY - 1
    );
    lab.on("pvchv1", &remove).ok();
    for node in lab.nodes() {
        eventually(&format!("{node} has none of them"), 120, || {
            let links = lab.on(&node, "ip -o link show | grep -cE '(vxlan|vmbr)2[0-9]{3}'");
            if links.stdout.trim() == "0" { Ok(()) } else { Err(links.to_string()) }
        });
    }
}
