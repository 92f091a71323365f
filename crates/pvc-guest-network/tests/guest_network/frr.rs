//! FRR's configuration as PVC writes it, read by FRR's own `vtysh`.

#![allow(clippy::disallowed_methods, reason = "a test looks at real files")]

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::guest_network::evpn::{EvpnSettings, Forwarding, block, merged};

use crate::common::dual;

const INSTALLED: &str = "/usr/bin/vtysh";

/// Place of the lab's nodes, which have FRR.
const LAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/lab/base/root");

/// A `vtysh` of this machine, or that of the lab's nodes; `None` if FRR is nowhere.
fn vtysh() -> Option<Command> {
    let in_lab = format!("{LAB}{INSTALLED}");
    if Path::new(INSTALLED).exists() {
        return Some(Command::new(INSTALLED));
    }
    Path::new(&in_lab).exists().then(|| {
        let libraries = format!("{LAB}/usr/lib/x86_64-linux-gnu");
        let mut vtysh = Command::new(in_lab);
        vtysh.env("LD_LIBRARY_PATH", format!("{libraries}/frr:{libraries}"));
        vtysh
    })
}

/// Has FRR look at a file, without any of its daemons; `None` if there is no FRR.
fn looked_at(directory: &Path, text: &str) -> Option<Output> {
    let file = directory.join("frr.conf");
    fs::write(&file, text).unwrap();
    Some(vtysh()?.arg("-C").arg("-f").arg(&file).output().unwrap())
}

fn settings(is_coordinator: bool, routers: &[&str]) -> EvpnSettings {
    EvpnSettings {
        asn: 65500,
        routers: routers.iter().map(|router| router.parse::<IpAddr>().unwrap()).collect(),
        router_asn: 65501,
        own: "10.0.0.1".parse().unwrap(),
        network: "10.0.0.0/24".parse().unwrap(),
        coordinators: ["hv1", "hv2"].map(NodeName::new).into(),
        configured: [("hv1", "10.0.0.1"), ("hv2", "10.0.0.2"), ("hv9", "10.0.0.9")]
            .map(|(name, address)| (NodeName::new(name), address.parse().unwrap()))
            .into(),
        is_coordinator,
    }
}

#[test]
fn frr_takes_every_line_that_is_written_for_it_and_of_another_it_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::default();
    cluster.networks.insert("1001".to_owned(), Arc::new(dual()));
    let both = ["192.0.2.1", "2001:db8::1"];
    let mut seen = BTreeSet::new();
    for (is_coordinator, routers) in
        [(true, &both[..]), (true, &both[..1]), (true, &both[1..]), (true, &[]), (false, &both)]
    {
        let settings = settings(is_coordinator, routers);
        for (ip4, ip6) in [(true, true), (false, false)] {
            let block = block(&settings, &cluster, Forwarding { ip4, ip6 });
            let text = merged("frr defaults datacenter\nlog syslog\n", &block, 65500).unwrap();
            let Some(output) = looked_at(directory.path(), &text) else {
                eprintln!("skipped: FRR is neither installed (`apt install frr`) nor in the lab");
                return;
            };
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !said.contains("Unknown"), "{said}\n{text}");
            seen.extend(text.lines().map(str::to_owned));
        }
    }
    for line in [
        " neighbor 2001:db8::1 peer-group pvc-routers",
        "ipv6 prefix-list pvc-networks6 seq 1002 permit 2001:db8:1::/64",
        " bgp listen range 10.0.0.9/32 peer-group pvc-hypervisors",
        "no ipv6 forwarding",
    ] {
        assert!(seen.contains(line), "{line}");
    }
    // It reads them indeed.
    let wrong = looked_at(directory.path(), "router bgp 65500\n bgp graceful-restrt\n").unwrap();
    assert!(!wrong.status.success(), "{wrong:?}");
}
