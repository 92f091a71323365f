//! Frames for managed networks (VXLAN) come from nodes alone: nobody else sends into the tunnels.

use pvc_lab_tests::{GATEWAY, Lab, NODES, number};
use pvc_standalone_tests::eventually;

use crate::guest_networks::{a_network_is_made, has_bridge, plugged, reaches, unplugged};

/// Port to which the datagrams go that are in nodes' frames.
const OF_NODES: &str = "7007";

/// Port of those in the frames of anybody else.
const OF_OTHERS: &str = "6666";

/// Source in whose place the kernel puts the sender's own address.
const OWN: &str = "0.0.0.0";

/// Address of the cluster network, from which tunnels come. No node has it.
const OF_THE_CLUSTER: &str = "10.99.1.9";

/// Sends a frame of VXLAN 1002, which is a broadcast datagram to the port that is the second
/// argument, to the port of the tunnels at each address behind it. The packets come from the
/// address that is the first argument, whoever has it.
const SENDER: &str = "
import socket, struct, sys
source, port, targets = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def udp(port, payload): return struct.pack('!HHHH', 7006, port, 8 + len(payload), 0) + payload
def ip(source, target, payload):
    ends = socket.inet_aton(source), socket.inet_aton(target)
    def head(check):
        return struct.pack('!BBHIBBH4s4s', 69, 0, 20 + len(payload), 0, 64, 17, check, *ends)
    return head(65535 - sum(struct.unpack('!10H', head(0))) % 65535) + payload
ethernet = bytes([255] * 6 + [2, 0, 0, 0, 0, 9, 8, 0])
frame = ethernet + ip('10.20.2.99', '255.255.255.255', udp(port, b'frame'))
vxlan = bytes([8, 0, 0, 0]) + struct.pack('!I', 1002 << 8)
sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for target in targets:
    sender.sendto(ip(source, target, udp(4789, vxlan + frame)), (target, 0))
";

/// Runs [`SENDER`] at a place of the lab, which is given as words for the lab's `exec`.
fn sends(lab: &Lab, place: &[&str], source: &str, port: &str, targets: &[&str]) {
    let program = ["/usr/bin/python3", "-c", SENDER, source, port];
    lab.does(&[&["exec"][..], place, &program, targets].concat()).ok();
}

/// Has `node` stand for a guest of network 1002 that counts the frames that come to it, and count
/// what comes to the port of the tunnels from guests of network 1001, and from upstream.
fn counts(lab: &Lab, node: &str) {
    let address = format!("10.20.2.{}", number(node));
    // The table `story` of a node goes when the lab is mended.
    let script = format!(
        "ip netns del other 2>/dev/null
        set -e
        ip netns add other
        ip link add plug1 type veth peer name eth0 netns other
        ip link set plug1 master vmbr1002 up
        ip -n other link set lo up
        ip -n other address add {address}/24 dev eth0
        ip -n other link set eth0 up
        count() {{
            nft 'add table inet story'
            nft 'add chain inet story arrivals {{ type filter hook prerouting priority -300; }}'
            for match in \"$@\"; do nft \"add rule inet story arrivals $match counter\"; done
        }}
        export -f count
        count 'iifname \"vmbr1001\" udp dport 4789' 'iifname \"brupstream\" udp dport 4789'
        ip netns exec other bash -c \
        'count \"udp dport {OF_NODES}\" \"udp dport {OF_OTHERS}\"'"
    );
    lab.on(node, &script).ok();
}

/// Takes away what [`counts`] has made.
fn counts_no_more(lab: &Lab, node: &str) {
    lab.on(node, "ip netns del other; nft delete table inet story").ok();
}

/// Number of packets that a rule has counted whose match has these words: on `node`, or where
/// `within` leads from there.
fn counted(lab: &Lab, node: &str, within: &str, words: &str) -> Result<usize, String> {
    let rules = lab.on(node, &format!("{within} nft list chain inet story arrivals"));
    let line = rules.stdout.lines().find(|line| line.contains(words)).unwrap_or_default();
    let mut after = line.split(' ').skip_while(|word| *word != "packets");
    let count = after.nth(1).and_then(|count| count.parse().ok());
    count.ok_or_else(|| rules.to_string())
}

/// Number of frames that have come to the guest of network 1002 on `node`, by their port.
fn frames(lab: &Lab, node: &str, port: &str) -> Result<usize, String> {
    counted(lab, node, "ip netns exec other", &format!("dport {port} "))
}

/// Waits until so many packets for the tunnels have come to `node` by this link: whatever becomes
/// of them is decided then.
fn have_come(lab: &Lab, node: &str, link: &str, count: usize) {
    eventually(&format!("{count} packets for the tunnels came to {node} by {link}"), 30, || {
        match counted(lab, node, "", link)? {
            come if come >= count => Ok(()),
            come => Err(format!("{come} have come")),
        }
    });
}

/// The addresses of all nodes on this network of the lab.
fn addresses(network: u8) -> Vec<String> {
    NODES.map(|node| format!("10.99.{network}.{}", number(node))).into()
}

/// A guest of network 1001 on `node` sends frames of network 1002 to each address of each node,
/// and to its gateway, under its own address and under one of the cluster network.
fn a_guest_sends(lab: &Lab, node: &str, primary: &str) {
    let all = [addresses(0), addresses(1), addresses(2), vec![GATEWAY.to_owned()]].concat();
    let targets: Vec<&str> = all.iter().map(String::as_str).collect();
    reaches(lab, node, GATEWAY);
    for source in [OWN, OF_THE_CLUSTER] {
        let place = [node, "--", "ip", "netns", "exec", "guest"];
        sends(lab, &place, source, OF_OTHERS, &targets);
    }
    have_come(lab, primary, "vmbr1001", 2 * targets.len());
}

/// A machine on the upstream network sends them to the nodes, under both as well.
fn a_machine_upstream_sends(lab: &Lab) {
    let all = addresses(0);
    let targets: Vec<&str> = all.iter().map(String::as_str).collect();
    for source in [OWN, OF_THE_CLUSTER] {
        sends(lab, &["switch", "--"], source, OF_OTHERS, &targets);
    }
    for node in NODES {
        have_come(lab, node, "brupstream", 2);
    }
}

/// Waits until each guest of network 1002 has one more frame that another node has sent, and
/// reaches the guests of the other nodes.
fn tunnels_of_nodes_are_open(lab: &Lab) {
    for node in NODES {
        let target = format!("10.99.1.{}", number(node));
        let before = frames(lab, node, OF_NODES).expect("frames are counted");
        eventually(&format!("a node's frame comes to the guest on {node}"), 30, || {
            sends(lab, &[lab.witness(node), "--"], OWN, OF_NODES, &[&target]);
            match frames(lab, node, OF_NODES)? {
                none if none == before => Err(format!("none but {before} that came before")),
                _ => Ok(()),
            }
        });
        for other in NODES.into_iter().filter(|other| *other != node) {
            let ping = format!("ip netns exec other ping -c 1 -W 1 10.20.2.{}", number(other));
            eventually(&format!("the guest on {other} is reached from {node}"), 60, || {
                let ping = lab.on(node, &ping);
                if ping.code == 0 { Ok(()) } else { Err(ping) }
            });
        }
    }
}

#[test]
fn frames_that_no_node_has_sent_reach_no_guest_of_another_network_while_tunnels_are_open() {
    let lab = Lab::whole();
    a_network_is_made(&lab);
    lab.pvc(&["network", "add", "1002", "-p", "managed", "-d", "net2"]).ok();
    for node in NODES {
        has_bridge(&lab, node, "1002");
        counts(&lab, node);
    }
    let primary = lab.primary();
    let node = lab.witness(&primary);
    plugged(&lab, node, "10.20.1.20");
    tunnels_of_nodes_are_open(&lab);
    a_guest_sends(&lab, node, &primary);
    a_machine_upstream_sends(&lab);
    // What is on its way to a node comes before this.
    tunnels_of_nodes_are_open(&lab);
    for node in NODES {
        let come = frames(&lab, node, OF_OTHERS);
        assert_eq!(come, Ok(0), "frames of a guest, or from upstream, came to one on {node}");
    }
    unplugged(&lab, node);
    for node in NODES {
        counts_no_more(&lab, node);
    }
}
