//! The networks of VMs on one machine: bridges, addresses, names, ways out and what is let through,
//! as a guest sees them.

use std::process::{Child, Command};

use nix::sched::{CloneFlags, unshare};
use pvc_standalone_tests::{
    Machine, SerialLine, Settings, eventually, hello_image, never_within, run,
};

#[test]
fn a_guest_gets_an_address_a_name_and_a_way_out_and_what_is_forbidden_does_not_pass() {
    hello_image(); // its parts come from outside
    in_a_network_of_its_own();
    let outside = Outside::beside();
    let mut machine = Machine::with(Settings { networks: true, ..Settings::default() });
    a_network_is_made(&machine);
    machine.define_hello("hello");
    machine.pvc(&["vm", "network", "add", "hello", "1001", "-R", "-y"]).ok();
    machine.pvc(&["vm", "start", "hello", "--wait"]).ok();
    let mut line = SerialLine::open(&machine.libvirt().console("hello"));
    it_has_its_address_and_its_name(&machine, &mut line);
    it_reaches_the_outside_unless_forbidden(&machine, &mut line);
    a_server_that_dies_is_started_again_and_knows_its_leases(&mut machine, &mut line);
    a_guarded_guest_keeps_what_is_its_own_and_sends_as_nobody_else(&machine, &mut line);
    a_card_comes_and_goes_while_it_runs(&machine, &mut line);
    what_is_in_use_stays_and_what_is_removed_leaves_nothing(&machine);
    drop(outside);
}

/// Has this test, and everything that it starts, have a network of its own from now on.
pub fn in_a_network_of_its_own() {
    unshare(CloneFlags::CLONE_NEWNET).expect("these tests run as root");
    ip("link set lo up");
}

fn ip(words: &str) -> String {
    run(Command::new("ip").args(words.split(' ')), "").ok().to_owned()
}

/// A machine on the other side of this one's network card, with the address 192.0.2.1.
struct Outside(Child);

impl Outside {
    fn beside() -> Outside {
        let child = Command::new("unshare").args(["--net", "sleep", "900"]).spawn();
        let outside = Outside(child.expect("unshare is there"));
        let pid = outside.0.id().to_string();
        // It has its own network once the program runs that unshare becomes.
        eventually("the other network is there", 10, || {
            let net = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            if net(&pid) != net("thread-self") { Ok(()) } else { Err(pid.clone()) }
        });
        ip(&format!("link add up0 type veth peer name out0 netns {pid}"));
        ip("addr add 192.0.2.2/24 dev up0");
        ip("link set up0 up");
        outside.does("ip link set lo up");
        outside.does("ip addr add 192.0.2.1/24 dev out0");
        outside.does("ip link set out0 up");
        outside
    }

    fn does(&self, words: &str) {
        let pid = self.0.id().to_string();
        let mut command = Command::new("nsenter");
        run(command.args(["-t", &pid, "-n"]).args(words.split(' ')), "").ok();
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes network 1001 with DHCP and a way out.
pub fn a_network_is_made(machine: &Machine) {
    let network = "network add 1001 -d net1 -p managed -n net1.example -i 10.20.1.0/24 \
                   -g 10.20.1.1 --dhcp --dhcp-start 10.20.1.100 --dhcp-end 10.20.1.199 \
                   --masquerade";
    machine.pvc(&network.split(' ').collect::<Vec<_>>()).ok();
    eventually("the network has its bridge and gateway", 20, || {
        let links = ip("-br addr");
        if links.contains("vmbr1001") && links.contains("10.20.1.1/24") {
            Ok(())
        } else {
            Err(format!("{links}\n{}", machine.said()))
        }
    });
}

/// Has the guest do something, until it says `wanted` of it.
fn does(line: &mut SerialLine, command: &str, wanted: &str) {
    let from = line.hear().len();
    line.say(&format!("run {command}"));
    let mut again = 0;
    eventually(&format!("the guest says `{wanted}`"), 90, || {
        let text = line.hear()[from..].to_owned();
        if text.contains(wanted) {
            return Ok(());
        }
        again += 1;
        if again % 20 == 0 {
            line.say(&format!("run {command}"));
        }
        Err(text)
    });
}

fn it_has_its_address_and_its_name(machine: &Machine, line: &mut SerialLine) {
    eventually("the guest has an address", 120, || {
        let text = line.hear();
        let answers = ["eth0 has 10.20.1.1", "router=10.20.1.1 domain=net1.example"];
        if answers.iter().all(|answer| text.contains(answer)) {
            Ok(())
        } else {
            Err(format!("{text}\n{}", machine.said()))
        }
    });
    eventually("the lease is recorded", 20, || {
        let list = machine.pvc(&["network", "dhcp", "list", "1001", "-f", "raw"]);
        if list.ok().contains("|10.20.1.1") && list.ok().trim().ends_with("|hello") {
            Ok(())
        } else {
            Err(list.to_string())
        }
    });
    does(line, "ping -c 1 -W 2 10.20.1.1 >/dev/null && echo gateway-$((1+1))", "gateway-2");
    does(line, "nslookup hello.net1.example; echo asked-$((2+2))", "asked-4");
    assert!(line.hear().contains("Address: 10.20.1.1"), "{}", line.hear());
}

fn it_reaches_the_outside_unless_forbidden(machine: &Machine, line: &mut SerialLine) {
    let ping = |word: &str| {
        format!("ping -c 1 -W 2 192.0.2.1 >/dev/null && echo out-{word}-ok || echo out-{word}-no")
    };
    does(line, &ping("first"), "out-first-ok\r");
    let trace = ["network", "trace", "hello"];
    let traced = |rest: &[&str]| machine.pvc(&[&trace[..], rest].concat());
    let outside = ["192.0.2.1", "--protocol", "icmp"];
    traced(&outside).says(&["10.20.1.1", "vmbr1001", "masquerade", "leaves"]);
    let acl = ["network", "acl", "add", "1001", "--out", "-d", "no-outside", "-r"];
    let drop = ["ip daddr 192.0.2.0/24 drop"];
    machine.pvc(&[&acl[..], &drop, &["--confirm", "15s"]].concat()).says(&["network confirm"]);
    does(line, &ping("forbidden"), "out-forbidden-no\r");
    // Nobody confirms it.
    does(line, &ping("taken-back"), "out-taken-back-ok\r");
    // Confirmed, it stays when that time is over.
    machine.pvc(&[&acl[..], &drop, &["--confirm", "15s"]].concat()).ok();
    machine.pvc(&["network", "confirm", "1001"]).ok();
    never_within("a rule that was confirmed is taken back", 17, || {
        let rules = machine.pvc(&["network", "acl", "list", "1001", "-f", "raw"]);
        if rules.ok().contains("192.0.2.0/24 drop") { Ok(()) } else { Err(rules) }
    });
    does(line, &ping("confirmed"), "out-confirmed-no\r");
    machine.pvc(&["network", "confirm", "1001"]).fails_with_hint();
    let dropped = traced(&outside).fails(1);
    assert!(dropped.contains("by rule `no-outside`"), "{dropped}");
    // A second command, and one that names what is not there.
    for bad in ["accept; flush ruleset", "ip daddr @nothing accept", "} flush ruleset"] {
        let acl = ["network", "acl", "add", "1001", "--out", "-d", "bad", "-r", bad];
        machine.pvc(&acl).fails(1);
    }
    machine.pvc(&["network", "acl", "remove", "1001", "no-outside", "-y"]).ok();
    does(line, &ping("again"), "out-again-ok\r");
    // The rest of this machine is closed to guests.
    let port = machine.api().port;
    does(
        line,
        &format!("nc -w 2 10.20.1.1 {port} </dev/null && echo open || echo closed-$((3+3))"),
        "closed-6",
    );
    let port = port.to_string();
    for own in ["10.20.1.1", "192.0.2.2"] {
        let closed = traced(&[own, "--protocol", "tcp", "--port", &port]).fails(1);
        assert!(closed.contains("what guests reach on a node"), "{closed}");
    }
    traced(&["10.20.1.1", "--protocol", "icmp"]).says(&["delivered to node", "VM `hello`"]);
}

fn a_server_that_dies_is_started_again_and_knows_its_leases(
    machine: &mut Machine,
    line: &mut SerialLine,
) {
    machine.stop("standalone");
    assert_eq!(run(Command::new("ip").args(["-br", "link"]), "").ok().matches("vmbr").count(), 1);
    machine.spawn("standalone");
    machine.wait_until_running();
    does(line, "nslookup hello.net1.example; echo known-$((4+4))", "known-8");
    let list = machine.pvc(&["network", "dhcp", "list", "1001", "-f", "raw"]);
    assert!(list.ok().contains("|hello"), "{list}");
}

/// Switches the guard on, starts the guest anew behind it, and switches it off. Whether the kernel
/// can shut a port until its guest is known (`ibrname`) makes no difference to what is seen here.
fn a_guarded_guest_keeps_what_is_its_own_and_sends_as_nobody_else(
    machine: &Machine,
    line: &mut SerialLine,
) {
    // Under an address of the network that DHCP has not given.
    let forged = |word: &str| {
        format!(
            "ip addr add 10.20.1.66/32 dev eth0 2>/dev/null; \
             ping -c 1 -W 2 -I 10.20.1.66 10.20.1.1 >/dev/null; echo {word} $?"
        )
    };
    does(line, &forged("unguarded"), "unguarded 0");
    machine.pvc(&["network", "modify", "1001", "--spoof-guard"]).ok();
    does(line, &forged("forged"), "forged 1");
    let guard = run(Command::new("nft").args(["list", "table", "bridge", "pvc-guard"]), "");
    assert!(guard.ok().contains("10.20.1.1"), "its own address passes: {guard}");

    machine.pvc(&["vm", "stop", "hello", "--wait", "-y"]).ok();
    machine.pvc(&["vm", "start", "hello", "--wait"]).ok();
    *line = SerialLine::open(&machine.libvirt().console("hello"));
    it_has_its_address_and_its_name(machine, line);
    does(line, &forged("anew"), "anew 1");

    machine.pvc(&["network", "modify", "1001", "--no-spoof-guard"]).ok();
    does(line, &forged("open"), "open 0");
    does(line, "ip addr del 10.20.1.66/32 dev eth0; echo own-$((7+7))", "own-14");
}

/// Plugs the running guest into another network, and takes it out of it.
fn a_card_comes_and_goes_while_it_runs(machine: &Machine, line: &mut SerialLine) {
    let network = "network add 1002 -d net2 -p managed -i 10.20.2.0/24 -g 10.20.2.1 --dhcp \
                   --dhcp-start 10.20.2.100 --dhcp-end 10.20.2.199";
    machine.pvc(&network.split(' ').collect::<Vec<_>>()).ok();
    eventually("the other network has its gateway", 20, || {
        let links = ip("-br addr");
        if links.contains("10.20.2.1/24") { Ok(()) } else { Err(links) }
    });
    let plugged = || {
        let list = machine.libvirt().virsh(&["domiflist", "hello"]);
        ["vmbr1001", "vmbr1002"].map(|bridge| list.ok().contains(bridge))
    };
    assert_eq!(plugged(), [true, false]);
    machine.pvc(&["vm", "network", "add", "hello", "1002", "-y"]).ok();
    assert_eq!(plugged(), [true, true]);
    eventually("the guest has an address by its new card", 120, || {
        let text = line.hear();
        if text.contains("eth1 has 10.20.2.1") { Ok(()) } else { Err(text.to_owned()) }
    });
    machine.pvc(&["vm", "network", "remove", "hello", "1002", "-y"]).ok();
    assert_eq!(plugged(), [true, false]);
    does(line, "[ -e /sys/class/net/eth1 ] || echo no-card-$((5+5))", "no-card-10");
    machine.pvc(&["network", "remove", "1002", "-y"]).ok();
}

fn what_is_in_use_stays_and_what_is_removed_leaves_nothing(machine: &Machine) {
    let refused = machine.pvc(&["network", "remove", "1001", "-y"]);
    refused.fails(1);
    assert!(format!("{refused}").contains("hello"), "{refused}");
    machine.pvc(&["vm", "remove", "hello", "-y"]).ok();
    machine.pvc(&["network", "remove", "1001", "-y"]).ok();
    // The packet filter keeps what is gone closed for two minutes.
    eventually("nothing is left of the network", 180, || {
        let links = ip("-br addr");
        let tables = run(Command::new("nft").args(["list", "tables"]), "").stdout;
        match links.contains("vmbr") || tables.contains("pvc-networks") {
            false => Ok(()),
            true => Err(format!("{links}\n{tables}\n{}", machine.said())),
        }
    });
}
