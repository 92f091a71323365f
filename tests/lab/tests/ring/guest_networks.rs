//! Networks of VMs between real nodes: addresses, names, ways and what is forbidden, for guests
//! that move under a primary that moves.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::eventually;

pub(crate) const GATEWAY: &str = "10.20.1.1";

pub(crate) fn a_network_is_made(lab: &Lab) {
    let words = "network add 1001 -d net1 -p managed -n net1.example -i 10.20.1.0/24 -g 10.20.1.1 \
                 --dhcp --dhcp-start 10.20.1.100 --dhcp-end 10.20.1.199 --masquerade";
    lab.pvc(&words.split_whitespace().collect::<Vec<_>>()).ok();
    for node in lab.nodes() {
        has_the_network(lab, &node);
    }
}

pub(crate) fn has_the_network(lab: &Lab, node: &str) {
    eventually(&format!("{node} has the bridge and the tunnel"), 60, || {
        let links = lab.on(node, "ip -o link show master vmbr1001");
        if links.stdout.contains("vxlan1001") { Ok(()) } else { Err(links.to_string()) }
    });
}

/// Starts a guest with a card in the network. Returns the address that it was given.
pub(crate) fn guest(lab: &Lab, name: &str, node: &str) -> String {
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

/// The MAC address that the VM has in the network.
fn mac(lab: &Lab, name: &str) -> String {
    let script = format!("pvc --connection local vm dump {name} | grep -o '52:54:00:[0-9a-f:]*'");
    let said = lab.on("pvchv1", &script);
    said.ok().lines().last().expect("it has a card").to_owned()
}

/// Runs cloud-init in the namespace `guest` of `node`, with nothing of the node's own state, and
/// returns what it has found, as `jq` shows it by `filter`.
fn cloud_init(lab: &Lab, node: &str, filter: &str) -> String {
    let script = format!(
        "cat >/tmp/cloud.cfg <<'END'
datasource_list: [Ec2]
datasource: {{ Ec2: {{ strict_id: false, timeout: 10, max_wait: 60 }} }}
network: {{ config: disabled }}
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
    let filter =
        "[.v1.instance_id,(.ds[\"meta-data\"]|.[\"local-hostname\"],.[\"local-ipv4\"],.name)]";
    let found = cloud_init(&lab, node, filter);
    println!("cloud-init found {found}");
    assert_eq!(found, format!("[\"{uuid}\",\"web1.net1.example\",\"10.20.1.30\",\"web1\"]"));

    // Under an address that is nobody's.
    unplugged(&lab, node);
    plugged(&lab, node, "10.20.1.31");
    reaches(&lab, node, GATEWAY);
    assert_eq!(lab.on(node, asks).stdout.trim(), "404");
    unplugged(&lab, node);
}

/// Number of networks of the story that has many.
const MANY: usize = 200;

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
