//! A running cluster is closed to others, step by step as `docs/manual/security.md` says, under
//! its guests.

use std::path::Path;
use std::process::Command;

use pvc_lab_tests::{Lab, NODES, number};
use pvc_standalone_tests::eventually;

const CONFIGURATION: &str = "/etc/pvc/pvc.conf";

/// Script of a program that knows no password.
const OTHER_MACHINE: &str = "
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
tree = KazooClient(hosts='pvchv1:2181,pvchv2:2181,pvchv3:2181')
tree.start(30)
try: print(tree.get('/config')[0].decode(), end='')
except NoAuthError: print('kept out', end='')
tree.stop()
";

/// An authority in `$1`, and a certificate for each of the other arguments.
const CERTIFICATES: &str = r#"
set -e
cd "$1"; shift
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj '/CN=PVC authority' -keyout ca-key.pem -out ca.pem
for node in "$@"; do
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$node" \
        -keyout "$node-key.pem" -out "$node.csr"
    openssl x509 -req -in "$node.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 825 \
        -out "$node.pem" -extfile \
        <(echo "subjectAltName=DNS:$node,DNS:$node.cluster.lab,IP:10.99.1.${node#pvchv}")
done
"#;

/// Ports that nodes have for each other, as network and port: ZooKeeper, libvirt, Patroni; Ceph's
/// monitors and OSDs.
const BETWEEN_NODES: &str = "1:2181 1:3888 1:16509 1:8008 2:3300 2:6789 2:6800";

/// A machine of somebody else's on the networks of the cluster and of its storage, in the switch
/// room.
const STRANGE_MACHINE: &str =
    "ip address replace 10.99.1.77/24 dev cluster && ip address replace 10.99.2.77/24 dev storage";
const NO_STRANGE_MACHINE: &str =
    "ip address del 10.99.1.77/24 dev cluster; ip address del 10.99.2.77/24 dev storage; true";

/// Script of a machine that is attached as a guest is to the bridges of these networks: another
/// machine's stack behind a port of each.
const STRANGE_GUEST: &str = "set -e
ip netns add guest
for network in 1:brcluster 2:brstorage; do
    number=${network%:*} bridge=${network#*:}
    ip link add tap-$number type veth peer name eth$number netns guest
    ip link set tap-$number master $bridge up
    ip -n guest address add 10.99.$number.78/24 dev eth$number
    ip -n guest link set eth$number up
done";
const NO_STRANGE_GUEST: &str = "ip netns del guest || true";

#[test]
fn another_machine_and_a_guest_on_a_clusters_network_reach_nothing_that_nodes_have_for_each_other()
{
    let lab = Lab::whole();
    lab.on("pvchv1", NO_STRANGE_GUEST).ok();
    lab.on("switch", STRANGE_MACHINE).ok();
    lab.on("pvchv1", STRANGE_GUEST).ok();
    for node in NODES {
        let number = number(node);
        // Those that take a connection, in the order of the list.
        let knock = format!(
            "for at in {BETWEEN_NODES}; do
                timeout 3 bash -c \"</dev/tcp/10.99.${{at%:*}}.{number}/${{at#*:}}\" 2>/dev/null \
                && touch /tmp/$at &
            done
            wait
            for at in {BETWEEN_NODES}; do rm /tmp/$at 2>/dev/null && echo -n \"$at \"; done; true"
        );
        assert_eq!(
            lab.on(lab.witness(node), &knock).ok().trim(),
            BETWEEN_NODES,
            "a node reaches {node}"
        );
        assert_eq!(lab.on("switch", &knock).ok(), "", "another machine reaches {node}");
        let guest = format!("ip netns exec guest bash -c '{knock}'");
        assert_eq!(lab.on("pvchv1", &guest).ok(), "", "a guest on pvchv1 reaches {node}");
        // It is the port that is shut, not the way.
        for network in [1, 2] {
            let ping = format!("ping -c 1 -W 2 10.99.{network}.{number}");
            lab.on("switch", &ping).ok();
            lab.on("pvchv1", &format!("ip netns exec guest {ping}")).ok();
        }
        lab.on(node, "nft list table inet pvc-hosts | grep -q 'counter packets [1-9]'").ok();
    }
    lab.on("pvchv1", NO_STRANGE_GUEST).ok();
    lab.on("switch", NO_STRANGE_MACHINE).ok();
    let faults = lab.json(&["cluster", "fault", "list"]).expect("the API answers").to_string();
    assert!(!faults.contains("FIREWALL"), "{faults}");
}

#[test]
fn a_running_cluster_is_closed_by_a_password_and_goes_over_to_tls_under_its_guests() {
    let lab = Lab::whole();
    lab.goes_with_this_story();
    lab.start("web1", "pvchv1");
    let process = lab.processes_of("web1");
    let refused = lab.pvc(&["cluster", "store", "close", "--yes"]).fails_with_hint();
    assert!(refused.contains("knows no password"), "{refused}");
    let seen = other_machine(&lab);
    assert_eq!(seen, lab.key("/config"), "whoever reaches it reads it");

    the_store_is_closed(&lab);
    assert_eq!(lab.processes_of("web1"), process, "the guest has noticed nothing");
    let certificates = tempfile::tempdir().expect("a directory");
    make_certificates(certificates.path());
    zookeeper_speaks_tls(&lab, certificates.path());
    libvirt_speaks_tls(&lab, certificates.path());
    assert_eq!(lab.processes_of("web1"), process, "the guest has noticed nothing");
    // By now the servers know each daemon by its certificate as well.
    lab.pvc(&["cluster", "store", "close", "--yes"]).ok();
    let show = lab.json(&["cluster", "store", "show"]).expect("the API answers");
    assert_eq!((&show["access"], &show["open"]), (&"members".into(), &0.into()), "{show}");

    lab.pvc(&["vm", "migrate", "web1", "--target", "pvchv2", "--wait"]).ok();
    assert_eq!(lab.running_on("web1"), ["pvchv2"]);
    let to = if lab.primary() == "pvchv3" { "pvchv2" } else { "pvchv3" };
    lab.pvc(&["node", "primary", to]).ok();
    lab.until_primary(to);
    for node in NODES {
        lab.node_is(node, "run", "ready");
        assert!(lab.fence(node).is_err(), "somebody was taken for dead: {:?}", lab.fence(node));
    }
    // And back, as before a node of 1.0.3 comes in.
    for node in NODES {
        let listens = "sed -i 's/listen_tcp = 0/listen_tcp = 1/' /etc/libvirt/libvirtd.conf";
        lab.on(node, &format!("{listens} && systemctl restart libvirtd")).ok();
    }
    lab.pvc(&["cluster", "store", "open", "--yes"]).ok();
    assert_eq!(other_machine(&lab), seen);
}

fn other_machine(lab: &Lab) -> String {
    lab.does(&["exec", "pvchv3", "--", "python3", "-c", OTHER_MACHINE]).ok().to_owned()
}

fn the_store_is_closed(lab: &Lab) {
    let password = "s/^    port: 2181$/&\\n    password: 0123456789abcdef0123456789abcdef/";
    for node in NODES {
        lab.on(node, &format!("sed -i '{password}' {CONFIGURATION} && systemctl restart pvcnoded"))
            .ok();
        lab.node_is(node, "run", "ready");
    }
    // The other APIs, and all workers, have not been told of it.
    lab.on(NODES[0], "systemctl restart pvcapid").ok();
    eventually("every node knows the password", 30, || {
        let show = lab.pvc(&["cluster", "store", "show"]);
        if show.stdout.contains("Nodes without password: none") { Ok(()) } else { Err(show) }
    });
    let workers =
        || NODES.map(|node| lab.on(node, "systemctl show -P MainPID pvcworkerd").ok().to_owned());
    let before = workers();
    let closed = lab.pvc(&["cluster", "store", "close", "--yes"]).ok().to_owned();
    assert!(closed.contains("the store is closed"), "{closed}");
    assert_eq!(other_machine(lab), "kept out");
    for (node, before) in NODES.into_iter().zip(before) {
        let script =
            "systemctl is-active pvcapid pvcworkerd && systemctl show -P MainPID pvcworkerd";
        eventually(&format!("the worker of {node} has begun anew"), 60, || {
            let now = lab.on(node, script);
            let is_new = now.stdout.lines().last().is_some_and(|process| process != before.trim());
            if now.code == 0 && is_new { Ok(()) } else { Err(now) }
        });
        eventually(&format!("the API of {node} answers"), 60, || {
            let status = lab.pvc_on(node, &["vm", "list"]);
            if status.stdout.contains("web1") { Ok(()) } else { Err(status) }
        });
        lab.node_is(node, "run", "ready");
    }
}

fn make_certificates(directory: &Path) {
    let made =
        Command::new("bash").args(["-c", CERTIFICATES, "make"]).arg(directory).args(NODES).output();
    let made = made.expect("there is a bash");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn zookeeper_speaks_tls(lab: &Lab, certificates: &Path) {
    let read = |name: &str| std::fs::read_to_string(certificates.join(name)).expect("it was made");
    for node in NODES {
        let (certificate, key) = (read(&format!("{node}.pem")), read(&format!("{node}-key.pem")));
        lab.put(node, "/etc/zookeeper/tls/ca.pem", &read("ca.pem"));
        lab.put(node, "/etc/zookeeper/tls/server.pem", &(key.clone() + &certificate));
        for (content, name) in
            [(read("ca.pem"), "ca"), (certificate, node), (key, &format!("{node}-key"))]
        {
            lab.put(node, &format!("/etc/pvc/tls/{name}.pem"), &content);
        }
        let settings = "secureClientPort=2281\n\
            serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
            ssl.keyStore.location=/etc/zookeeper/tls/server.pem\n\
            ssl.trustStore.location=/etc/zookeeper/tls/ca.pem\nssl.clientAuth=need\n";
        lab.on(
            node,
            &format!(
                "chown -R zookeeper /etc/zookeeper/tls && chmod -R go= /etc/zookeeper/tls \
                 /etc/pvc/tls
                printf '\\n{settings}' >>/etc/zookeeper/conf/zoo.cfg
                sed -i 's#slf4j-simple.jar#&:/usr/share/java/netty-codec.jar#' \
                /etc/systemd/system/zookeeper.service
                systemctl daemon-reload"
            ),
        )
        .ok();
    }
    let mode = |node: &str| {
        lab.on(node, "echo srvr | nc -w 2 10.99.1.${HOSTNAME#pvchv} 2181 | grep Mode:")
    };
    let (leader, others): (Vec<_>, Vec<_>) =
        NODES.into_iter().partition(|node| mode(node).stdout.contains("leader"));
    for node in others.into_iter().chain(leader) {
        lab.on(node, "systemctl restart zookeeper").ok();
        eventually(&format!("ZooKeeper of {node} serves"), 60, || match mode(node) {
            serves if serves.code == 0 => Ok(()),
            not => Err(not),
        });
    }
    for node in NODES {
        let ssl = format!(
            "    ssl:\\n      enabled: yes\\n      authority: /etc/pvc/tls/ca.pem\\n      \
             certificate: /etc/pvc/tls/{node}.pem\\n      private_key: /etc/pvc/tls/{node}-key.pem"
        );
        let restart = "systemctl restart pvcnoded pvcapid pvcworkerd";
        lab.on(
            node,
            &format!("sed -i 's#^    password: 0123.*#&\\n{ssl}#' {CONFIGURATION} && {restart}"),
        )
        .ok();
        lab.node_is(node, "run", "ready");
        let plain = "ss -Htnp state established '( dport = :2181 )' | grep pvc";
        eventually(&format!("{node} speaks TLS alone"), 30, || match lab.on(node, plain) {
            none if none.code == 1 => Ok(()),
            some => Err(some),
        });
        lab.on(node, "ss -Htnp state established '( dport = :2281 )' | grep pvcnoded").ok();
    }
}

fn libvirt_speaks_tls(lab: &Lab, certificates: &Path) {
    let read = |name: &str| std::fs::read_to_string(certificates.join(name)).expect("it was made");
    for node in NODES {
        lab.put(node, "/etc/pki/CA/cacert.pem", &read("ca.pem"));
        for side in ["server", "client"] {
            let certificate = format!("/etc/pki/libvirt/{side}cert.pem");
            lab.put(node, &certificate, &read(&format!("{node}.pem")));
            let key = format!("/etc/pki/libvirt/private/{side}key.pem");
            lab.put(node, &key, &read(&format!("{node}-key.pem")));
        }
        let listens = "sed -i 's/listen_tls = 0/listen_tls = 1/' /etc/libvirt/libvirtd.conf";
        lab.on(node, &format!("{listens} && systemctl restart libvirtd")).ok();
    }
    for node in NODES {
        let asks =
            format!("sed -i 's/^  target_selector: mem$/&\\n  libvirt_tls: yes/' {CONFIGURATION}");
        lab.on(node, &format!("{asks} && systemctl restart pvcnoded")).ok();
        lab.node_is(node, "run", "ready");
    }
    for node in NODES {
        let silent = "sed -i 's/listen_tcp = 1/listen_tcp = 0/' /etc/libvirt/libvirtd.conf";
        lab.on(node, &format!("{silent} && systemctl restart libvirtd")).ok();
        eventually(&format!("libvirt of {node} listens with TLS alone"), 30, || {
            let listens = lab.on(node, "ss -Htln '( sport = :16509 or sport = :16514 )'");
            let alone = listens.stdout.contains(":16514") && !listens.stdout.contains(":16509");
            if alone { Ok(()) } else { Err(listens) }
        });
        lab.node_is(node, "run", "ready");
    }
}
