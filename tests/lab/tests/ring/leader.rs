//! The server that dies leads ZooKeeper, so whoever judges it loses its connection in the same
//! moment.

use std::time::Instant;

use pvc_lab_tests::{Lab, NODES};
use pvc_standalone_tests::eventually;

/// After how many seconds of silence a node is taken for dead: `fence_intervals` times
/// `keepalive_interval` of the lab's configuration.
const SILENCE: f64 = 30.0;

/// Most seconds of that which have to pass in contact after an election (ADR 0025).
const CONTACT_AFTER_ELECTION: f64 = 15.0;

/// The silence begins with a stamp, which may be a keepalive old, and another keepalive may pass
/// until somebody looks, in seconds.
const KEEPALIVES: f64 = 10.0;

/// Seconds after the end of a dead primary's session within which another one must have the
/// addresses: the goal is 3 (ADR 0026), which the test prints; this is what three nodes on two busy
/// cores must not exceed. Without ADR 0026 it would take 16.
const TAKEOVER: f64 = 10.0;

#[test]
fn a_node_without_power_that_led_zookeeper_is_found_dead_as_soon_as_any_other() {
    let lab = Lab::whole_and_quiet();
    let node = leader(&lab, &NODES).expect("a lab that is whole has a leader");
    if lab.primary() == node {
        hand_over(&lab, lab.witness(&node));
    }
    let primary = lab.primary();
    lab.start("web1", &node);
    let client = lab.writer("web1");
    let others = NODES.into_iter().filter(|other| *other != node);
    let places: Vec<&str> = ["switch"].into_iter().chain(others.clone()).collect();
    let all_bridges = || places.iter().map(|place| bridges(&lab, place)).collect::<Vec<_>>();
    let bridges_before = all_bridges();

    let begun = Instant::now();
    lab.does(&["power", &node, "off"]).ok();
    let [elected, suspected, ..] = times(
        begun,
        [
            ("another server leads ZooKeeper", &|| leads_again(&lab, &node)),
            ("the node is taken for dead", &|| lab.fence(&node).is_ok()),
            ("it is proven dead", &|| is_proven_dead(&lab, &node)),
            ("its guest runs elsewhere", &|| !lab.running_elsewhere("web1", &node).is_empty()),
        ],
    );
    let bound = SILENCE.max(elected + CONTACT_AFTER_ELECTION) + KEEPALIVES;
    assert!(
        suspected <= bound,
        "another server leads since {elected:.1} s, and the node was taken for dead after \
         {suspected:.1} s: its silence before the election was forgotten"
    );
    assert_eq!(all_bridges(), bridges_before, "a port is gone, and no bridge has another address");

    let to = lab.recovered("web1", &node);
    lab.may_no_longer_write(&client);
    lab.hears(&to, "web1", "boot 2, counted on");
    lab.proven_dead(&node, "its BMC said twice that the power is off");
    assert_eq!(lab.primary(), primary);
    lab.node_is(&node, "run", "flushed");
    assert_eq!(all_bridges(), bridges_before, "a port has come back");
    for other in others {
        lab.was_not_fenced(other);
    }
}

/// The bridges at a place of the lab, each with its MAC address, by which its neighbours find it.
fn bridges(lab: &Lab, place: &str) -> Vec<(String, String)> {
    let shown = lab.does(&["exec", place, "--", "ip", "-br", "link", "show", "type", "bridge"]);
    let bridges: Vec<_> = shown
        .ok()
        .lines()
        .map(|line| line.split_whitespace())
        // Between the two is its state.
        .filter_map(|mut words| Some((words.next()?.to_owned(), words.nth(1)?.to_owned())))
        .collect();
    assert!(bridges.len() >= 3, "{place} has a bridge for each network: {shown}");
    bridges
}

#[test]
fn a_primary_without_power_that_led_zookeeper_loses_its_role_when_its_session_has_ended() {
    let lab = Lab::whole_and_quiet();
    let old = leader(&lab, &NODES).expect("a lab that is whole has a leader");
    if lab.primary() != old {
        hand_over(&lab, &old);
    }
    lab.start("web1", &old);
    // Its BMC has no power either, for a while: it cannot be proven dead meanwhile.
    lab.does(&["bmc", &old, "dead"]).ok();

    let begun = Instant::now();
    lab.does(&["power", &old, "off"]).ok();
    let [_, ended, taken, _] = times(
        begun,
        [
            ("another server leads ZooKeeper", &|| leads_again(&lab, &old)),
            ("the session of the primary has ended", &|| session_has_ended(&lab, &old)),
            (
                "another node has the floating address",
                &|| matches!(lab.holders_of_floating_addresses().as_slice(), [one] if *one != old),
            ),
            ("the old primary is taken for dead", &|| lab.fence(&old).is_ok()),
        ],
    );
    println!("the address was taken {:.1} s after the end of the session", taken - ended);
    assert!(
        taken - ended <= TAKEOVER,
        "the session ended after {ended:.1} s, and the address was taken after {taken:.1} s"
    );
    lab.until_another_is_primary(&old);
    lab.api_answers_within(10);
    assert!(!is_proven_dead(&lab, &old), "its BMC does not answer");
    assert!(lab.running_on("web1").is_empty(), "nobody knows that it is off where it was");

    let primary = lab.primary();
    lab.does(&["bmc", &old, "ok"]).ok();
    lab.recovered("web1", &old);
    lab.proven_dead(&old, "its BMC said twice that the power is off");
    lab.node_is(&old, "run", "flushed");
    assert_eq!(lab.primary(), primary);
}

fn hand_over(lab: &Lab, to: &str) {
    lab.pvc_on(to, &["node", "primary", to, "--wait"]).ok();
    lab.until_primary(to);
}

/// The node among `nodes` whose server leads ZooKeeper, if any does.
pub(crate) fn leader(lab: &Lab, nodes: &[&str]) -> Option<String> {
    let leads = |node: &&&str| asked(lab, node, "srvr").contains("Mode: leader");
    nodes.iter().find(leads).map(|node| (*node).to_owned())
}

/// Whether the servers have agreed on another leader than the one of `node`.
pub(crate) fn leads_again(lab: &Lab, node: &str) -> bool {
    let others: Vec<&str> = NODES.into_iter().filter(|other| *other != node).collect();
    leader(lab, &others).is_some()
}

/// Whether ZooKeeper says, and not only is silent about it, that the daemon of `node` has no
/// session any more.
fn session_has_ended(lab: &Lab, node: &str) -> bool {
    let said = asked(lab, lab.witness(node), "dump");
    said.contains("Sessions with Ephemerals") && !said.contains(&format!("/pvcrs/daemon/{node}"))
}

/// Asks the server of ZooKeeper on `node` with a word of four letters.
fn asked(lab: &Lab, node: &str, word: &str) -> String {
    lab.on(node, &format!("echo {word} | nc -N -w 2 $(hostname) 2181")).stdout
}

fn is_proven_dead(lab: &Lab, node: &str) -> bool {
    lab.fence(node).is_ok_and(|fence| fence["proven_at"] != "")
}

/// Waits until all of this is so. Prints, and returns, after how many seconds since `begun` each of
/// it was seen first.
fn times<const N: usize>(begun: Instant, facts: [(&str, &dyn Fn() -> bool); N]) -> [f64; N] {
    let mut times = [None; N];
    eventually("all that follows from the death", 180, || {
        for (time, (what, is_so)) in times.iter_mut().zip(&facts) {
            if time.is_none() && is_so() {
                let seconds = begun.elapsed().as_secs_f64();
                println!("{seconds:>7.1} s  {what}");
                *time = Some(seconds);
            }
        }
        let missing = times.iter().zip(&facts).filter(|(time, _)| time.is_none());
        let missing: Vec<&str> = missing.map(|(_, (what, _))| *what).collect();
        if missing.is_empty() {
            Ok(times.map(Option::unwrap_or_default))
        } else {
            Err(missing.join(", "))
        }
    })
}
