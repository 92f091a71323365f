//! A router outside of the cluster, to which nodes announce managed networks by BGP.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use pvc_standalone_tests::program;

use crate::{Lab, NODES, OUTSIDE};

/// Number of the router's autonomous system, which is not the cluster's.
const ASN: &str = "65001";

/// A router, in Python: it takes the sessions that nodes begin, and prints a line for each network
/// that comes or goes, behind the address of the node. Its arguments are its address and the
/// number of its autonomous system.
const ROUTER: &str = "
import socket, struct, sys, threading
OPEN, UPDATE, KEEPALIVE = 1, 2, 4
address, asn = sys.argv[1], int(sys.argv[2])
def message(kind, body=b''):
    return b'\\xff' * 16 + struct.pack('!HB', 19 + len(body), kind) + body
def networks(data):
    while data:
        size = 1 + (data[0] + 7) // 8
        yield '%s/%d' % (socket.inet_ntoa(data[1:size].ljust(4, b'\\0')), data[0])
        data = data[size:]
def attributes(data):
    while data:
        flags, kind = data[0], data[1]
        start, size = (4, struct.unpack('!H', data[2:4])[0]) if flags & 16 else (3, data[2])
        yield kind, data[start:start + size]
        data = data[start + size:]
def part(data):
    size = 2 + struct.unpack('!H', data[:2])[0]
    return data[2:size], data[size:]
def hears(peer, kind, body):
    if kind == OPEN:
        # IPv4 alone, and nothing is to be kept while this router is away.
        can = bytes([2, 6, 1, 4, 0, 1, 0, 1])
        own = struct.pack('!BHH', 4, asn, 90) + socket.inet_aton(address)
        peer.sendall(message(OPEN, own + bytes([len(can)]) + can) + message(KEEPALIVE))
    if kind == KEEPALIVE: peer.sendall(message(KEEPALIVE))
    if kind == UPDATE:
        gone, rest = part(body)
        known, here = part(rest)
        hop = dict(attributes(known)).get(3, b'')
        for network in networks(gone): yield '- ' + network
        for network in networks(here): yield '+ %s via %s' % (network, socket.inet_ntoa(hop))
def says(node, news):
    sys.stdout.write('%s %s\\n' % (node, news))
    sys.stdout.flush()
def session(peer, node):
    stream = peer.makefile('rb')
    try:
        while len(head := stream.read(19)) == 19:
            size, kind = struct.unpack('!HB', head[16:])
            for news in hears(peer, kind, stream.read(size - 19)): says(node, news)
    except ConnectionError: pass
    says(node, 'gone')
server = socket.create_server((address, 179))
while True:
    peer, (node, _) = server.accept()
    threading.Thread(target=session, args=(peer, node), daemon=True).start()
";

/// A router in the switch room, whose address is [`OUTSIDE`]. The nodes have it in their
/// configuration until it is dropped.
pub struct Router<'lab> {
    lab: &'lab Lab,
    child: Child,
    /// Lines that it has printed.
    printed: Arc<Mutex<Vec<String>>>,
}

impl Lab {
    /// Starts a router in the switch room, and has each coordinator announce networks to it.
    pub fn router(&self) -> Router<'_> {
        let mut command = Command::new(program("xtask"));
        command
            .args(["lab", "exec", "switch", "--"])
            .args(["/usr/bin/python3", "-c", ROUTER, OUTSIDE, ASN])
            .env("PVC_LAB", self.name);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("xtask was built");
        let output = child.stdout.take().expect("it was asked for");
        let printed = Arc::new(Mutex::new(Vec::new()));
        let lines = printed.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                lines.lock().expect("nobody panics with it").push(line);
            }
        });
        let router = Router { lab: self, child, printed };
        let knows_it = format!(
            "sed -i 's/^  evpn:$/&\\n    routers: [{OUTSIDE}]\\n    router_asn: {ASN}/' \
             /etc/pvc/pvc.conf && grep -q '^    routers: ' /etc/pvc/pvc.conf && \
             systemctl restart pvcnoded"
        );
        for node in NODES {
            self.on(node, &knows_it).ok();
            self.node_is(node, "run", "ready");
        }
        router
    }
}

impl Router<'_> {
    /// The addresses of the nodes that announce this network now, each with the next hop that it
    /// names.
    pub fn routes(&self, network: &str) -> BTreeMap<String, String> {
        let mut routes = BTreeMap::new();
        for line in self.printed.lock().expect("nobody panics with it").iter() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                [node, "+", known, "via", hop] if known == network => {
                    routes.insert(node.to_owned(), hop.to_owned());
                }
                [node, "-", known] if known == network => _ = routes.remove(node),
                [node, "gone"] => _ = routes.remove(node),
                _ => {}
            }
        }
        routes
    }
}

impl Drop for Router<'_> {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let forgets_it = "sed -i '/^    routers: /d; /^    router_asn: /d' /etc/pvc/pvc.conf
            systemctl restart pvcnoded";
        for node in NODES {
            self.lab.on(node, forgets_it);
            if !std::thread::panicking() {
                self.lab.node_is(node, "run", "ready");
            }
        }
    }
}
