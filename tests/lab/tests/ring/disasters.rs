//! Servers lose their power, daemons hang, and BMCs are slow, refuse or lie.

use pvc_lab_tests::{GATEWAY, Lab, NODES};
use pvc_standalone_tests::eventually;

use crate::guest_networks::{
    a_network_is_made, address_of, guest, has_the_network, is_known_outside, is_leased, is_named,
    is_served_by, leased, plugged, reaches, unplugged,
};

/// A managed network whose gateway is on a primary that will die: of its guests the VM `web1`,
/// which is called `hello` there, is on that node, and `kept`, which is no VM, on another one.
struct Network<'a> {
    lab: &'a Lab,
    /// The primary that dies.
    old: &'a str,
    /// The node that is neither that primary nor that of `kept`. It stands for one more guest.
    near: &'static str,
    /// The node of `kept`.
    far: &'static str,
    web1: String,
    kept: String,
}

impl<'a> Network<'a> {
    fn with_guests(lab: &'a Lab, old: &'a str) -> Self {
        let others: Vec<&str> = NODES.into_iter().filter(|node| *node != old).collect();
        let [near, far] = others[..] else { panic!("{old} is not one of three nodes") };
        a_network_is_made(lab);
        let web1 = guest(lab, "web1", old);
        plugged(lab, near, "10.20.1.20");
        plugged(lab, far, "10.20.1.21");
        let kept = leased(lab, far, "kept");
        let network = Network { lab, old, near, far, web1, kept };
        network.is_served(old);
        reaches(lab, near, &network.web1);
        network
    }

    /// Waits until the guests on living nodes have all that a network gives them, by `primary`
    /// alone, which knows the leases of those before it.
    fn is_served(&self, primary: &str) {
        let Network { lab, near, far, web1, kept, .. } = self;
        is_served_by(lab, primary);
        reaches(lab, near, GATEWAY);
        reaches(lab, far, GATEWAY);
        reaches(lab, near, kept);
        for (name, address) in [("kept", kept), ("hello", web1)] {
            is_leased(lab, name, address);
            is_named(lab, near, name, address);
        }
    }

    /// Waits until one more guest has an address of its own, and a name.
    fn takes_one_more_guest(&self) {
        let late = leased(self.lab, self.near, "late");
        assert!(late != self.web1 && late != self.kept, "{late} was somebody's already");
        is_leased(self.lab, "late", &late);
        is_named(self.lab, self.far, "late", &late);
    }

    /// Waits until the VM, which was recovered on `node`, has its address and its name there.
    fn has_its_vm_on(&self, node: &str) {
        let Network { lab, far, web1, .. } = self;
        assert_eq!(address_of(lab, "web1", node), *web1, "`web1` has lost its address");
        reaches(lab, far, web1);
        is_named(lab, far, "hello", web1);
        is_known_outside(lab, far, web1);
    }

    /// Waits until the node that had died is a part of the network again, and asserts that
    /// `primary` has kept the gateway. Nobody is plugged in afterwards but VMs.
    fn has_its_node_back(&self, primary: &str) {
        let Network { lab, old, near, far, kept, .. } = self;
        has_the_network(lab, old);
        assert_eq!(lab.holders_of(GATEWAY), [primary], "the gateway was the new primary's");
        plugged(lab, old, "10.20.1.22");
        reaches(lab, old, kept);
        self.is_served(primary);
        for node in [*old, *near, *far] {
            unplugged(lab, node);
        }
    }
}

#[test]
fn a_primary_without_power_loses_role_and_gateways_first_and_its_guests_when_proven_dead() {
    let lab = Lab::whole();
    let old = lab.primary();
    let network = Network::with_guests(&lab, &old);
    let client = lab.writer("web1");
    // Its BMC has no power either, for a while: it can be suspected, and not be proven dead.
    lab.does(&["bmc", &old, "dead"]).ok();
    lab.does(&["power", &old, "off"]).ok();
    lab.until_another_is_primary(&old);
    let primary = lab.primary();
    assert_eq!(lab.holders_of_floating_addresses(), [primary.as_str()]);
    network.is_served(&primary);
    network.takes_one_more_guest();
    lab.node_is(&old, "dead", "ready");
    assert!(lab.running_on("web1").is_empty());

    lab.does(&["bmc", &old, "ok"]).ok();
    let to = lab.recovered("web1", &old);
    lab.may_no_longer_write(&client);
    lab.hears(&to, "web1", "boot 2, counted on");
    let fence = lab.proven_dead(&old, "its BMC said twice that the power is off");
    assert_eq!(fence["recovered"][0], format!("web1 on {to}"), "{fence}");
    lab.fault_says(&format!("NODE_FENCED_{}", old.to_uppercase()), &format!("web1 on {to}"));
    network.has_its_vm_on(&to);
    lab.node_is(&old, "run", "flushed");
    assert!(lab.guests()[&old].is_empty());
    assert_eq!(lab.primary(), primary);
    network.has_its_node_back(&primary);
}

#[test]
fn a_daemon_that_hangs_is_started_anew_before_its_node_is_fenced() {
    let lab = Lab::whole();
    // Not the primary: with what its daemon had started, `docs/dev/lab.md` says why.
    let node = lab.witness(&lab.primary());
    lab.start("web1", node);
    let (process, daemon) = (lab.processes_of("web1"), lab.process_of(node, "pvcnoded"));
    lab.does(&["freeze", node, "pvcnoded"]).ok();
    eventually("systemd has started another daemon", 60, || {
        match lab.process_of(node, "pvcnoded") {
            new if new != daemon && new != "0" => Ok(()),
            same => Err(same),
        }
    });
    lab.node_is(node, "run", "ready");
    assert_eq!(lab.processes_of("web1"), process);
    lab.was_not_fenced(node);
}

#[test]
fn a_guest_waits_until_the_bmc_says_that_its_node_is_off() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    let client = lab.writer("web1");
    lab.does(&["bmc", "pvchv2", "slow"]).ok();
    lab.does(&["power", "pvchv2", "off"]).ok();
    lab.could_not_be_fenced("pvchv2", "10.99.0.202");
    lab.does(&["bmc", "pvchv2", "refuses"]).ok();
    lab.could_not_be_fenced("pvchv2", "Chassis Power Status failed");
    lab.node_is("pvchv2", "dead", "ready");
    assert!(lab.running_on("web1").is_empty());

    lab.does(&["bmc", "pvchv2", "refuses-on"]).ok();
    let to = lab.recovered("web1", "pvchv2");
    lab.may_no_longer_write(&client);
    lab.hears(&to, "web1", "boot 2, counted on");
    let fence = lab.proven_dead("pvchv2", "the power is off");
    assert_eq!(fence["power"], "to be switched on", "{fence}");

    lab.does(&["bmc", "pvchv2", "ok"]).ok();
    lab.node_is("pvchv2", "run", "flushed");
    // It lives, also if the BMC that was in trouble did it and could not say so.
    let power = lab.fence("pvchv2").unwrap()["power"].clone();
    assert!(power == "switched on" || power == "on", "{power}");
}

#[test]
fn the_storage_refuses_what_a_guest_writes_whose_node_is_called_off_by_a_bmc_that_lies() {
    let lab = Lab::whole();
    lab.allow_two_instances();
    lab.start("web1", "pvchv3");
    let client = lab.writer("web1");
    lab.does(&["bmc", "pvchv3", "lies"]).ok();
    lab.hang("pvchv3", "pvcnoded");
    let to = eventually("web1 elsewhere", 90, || {
        match lab.running_elsewhere("web1", "pvchv3").as_slice() {
            [one] => Ok(one.clone()),
            other => Err(format!("{other:?}")),
        }
    });
    lab.hears(&to, "web1", "boot 2, counted on");
    lab.proven_dead("pvchv3", "its BMC said twice that the power is off");
    // Both run. One has the disk, and what the other writes is refused.
    assert_eq!(lab.running_on("web1").len(), 2);
    lab.may_no_longer_write(&client);
    assert_ne!(lab.writer("web1"), client);
    let writes = "run (echo here | dd of=/disk/who conv=fsync && echo it is wri\\tten) & sleep 3; \
                  echo it has tr\\ied";
    lab.types("pvchv3", "web1", writes, "it has tried");
    lab.types(&to, "web1", writes, "it is written");
    let said = lab.on("pvchv3", "cat /var/log/libvirt/web1.log");
    assert!(!said.ok().contains("it is written"), "{said}");

    // Its daemon goes on, and ends the guest that is another node's by now.
    lab.does(&["thaw", "pvchv3", "pvcnoded"]).ok();
    lab.does(&["bmc", "pvchv3", "ok"]).ok();
    lab.node_is("pvchv3", "run", "flushed");
    assert_eq!(lab.running_on("web1"), [to]);
}
