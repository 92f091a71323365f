//! Pings that go on while something happens, and how many of them were lost.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use pvc_standalone_tests::program;

use crate::{Lab, xtask};

/// Seconds between two pings.
const INTERVAL: &str = "0.025";

/// Pings whose answers may be on their way when the last one is sent: an emulated guest takes its
/// time.
const UNDER_WAY: usize = 8;

/// A `ping` that goes on.
pub struct Ping {
    child: Child,
    /// Text that it prints. A pipe that nobody reads is full after half a minute, and `ping` waits.
    printed: JoinHandle<String>,
    address: String,
    /// The lab and the node that it runs on, if it has processes of its own there, which no signal
    /// from outside reaches.
    of: Option<(&'static str, String)>,
}

impl Lab {
    /// Pings the upstream floating address from outside, 40 times a second, until asked what was
    /// lost.
    pub fn watch_floating_address(&self) -> Ping {
        self.watch_address("10.99.0.250")
    }

    /// The same with any address upstream.
    pub fn watch_address(&self, address: &str) -> Ping {
        self.watch("switch", &[], address)
    }

    /// The same from the network namespace `guest` of a node. Several may go on there, if each has
    /// an address of its own.
    pub fn watch_from(&self, node: &str, address: &str) -> Ping {
        let ping = self.watch(node, &["ip", "netns", "exec", "guest"], address);
        Ping { of: Some((self.name, node.to_owned())), ..ping }
    }

    fn watch(&self, place: &str, within: &[&str], address: &str) -> Ping {
        let mut ping = Command::new(program("xtask"));
        ping.args(["lab", "exec", place, "--"])
            .args(within)
            .args(["ping", "-i", INTERVAL, address])
            .env("PVC_LAB", self.name);
        let mut child = ping.stdout(Stdio::piped()).spawn().expect("xtask was built");
        let mut output = child.stdout.take().expect("it was asked for");
        let printed = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error counts.
            let _ = output.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ping { child, printed, address: address.to_owned(), of: None }
    }
}

impl Ping {
    /// Ends it: how many pings found no answer.
    pub fn lost(self) -> usize {
        let text = self.ended();
        lost(&text).unwrap_or_else(|| panic!("ping counted nothing: {text}"))
    }

    /// Ends it: how many pings found an answer.
    pub fn answered(self) -> usize {
        let text = self.ended();
        assert!(lost(&text).is_some(), "ping counted nothing: {text}");
        answered(&text).len()
    }

    /// Ends it. Returns what it has printed.
    fn ended(mut self) -> String {
        // An interrupt makes it count.
        match &self.of {
            Some((lab, node)) => {
                let own = format!("ping -i {INTERVAL} {}", self.address);
                xtask(lab, &["exec", node, "--", "pkill", "-INT", "-x", "-f", &own], "").ok();
            }
            None => {
                let id = self.child.id().to_string();
                let interrupted = Command::new("kill").args(["-s", "INT", &id]).status();
                assert!(interrupted.is_ok_and(|status| status.success()), "ping ended by itself");
            }
        }
        let text = self.printed.join().expect("it reads and nothing else");
        self.child.wait().expect("it is our child");
        text
    }
}

/// Counts the pings without an answer in what `ping` has printed; `None` if it has sent none.
fn lost(text: &str) -> Option<usize> {
    let count = text.lines().find_map(|line| line.split_once(" packets transmitted"))?;
    let sent: usize = count.0.parse().ok().filter(|sent| *sent > 0)?;
    let answered = answered(text);
    let last = answered.last().copied().unwrap_or(0);
    let behind = sent.saturating_sub(last);
    Some(last - answered.len() + behind.saturating_sub(UNDER_WAY))
}

/// Numbers of the pings with an answer in what `ping` has printed.
fn answered(text: &str) -> BTreeSet<usize> {
    let answers = text.lines().filter(|line| line.contains(" bytes from "));
    answers
        .filter_map(|line| line.split_once("icmp_seq=")?.1.split(' ').next()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a `ping` that has sent so many, of which these were answered.
    fn printed(sent: usize, answered: impl IntoIterator<Item = usize>) -> String {
        let answer =
            |seq: usize| format!("64 bytes from 10.20.1.1: icmp_seq={seq} ttl=64 time=0.1 ms\n");
        let answers: String = answered.into_iter().map(answer).collect();
        format!(
            "PING 10.20.1.1 (10.20.1.1) 56(84) bytes of data.\n{answers}\
             From 10.20.1.20 icmp_seq=7 Destination Host Unreachable\n\n\
             --- 10.20.1.1 ping statistics ---\n{sent} packets transmitted, 3 received, +1 errors, \
             90% packet loss, time 2ms\n"
        )
    }

    #[test]
    fn a_ping_whose_answer_may_still_come_is_not_lost() {
        assert_eq!(lost(&printed(20, 1..=20)), Some(0));
        assert_eq!(lost(&printed(20, 1..=12)), Some(0));
        assert_eq!(lost(&printed(20, 1..=11)), Some(1));
        assert_eq!(lost(&printed(20, [1, 2, 2, 5, 20])), Some(16));
        assert_eq!(lost(&printed(20, [])), Some(12));
        assert_eq!(lost(&printed(0, [])), None);
        assert_eq!(lost("ping: unknown host\n"), None);
    }

    #[test]
    fn a_ping_that_is_answered_twice_counts_once_and_one_that_says_unreachable_does_not() {
        assert_eq!(answered(&printed(20, [1, 2, 2, 5, 20])).len(), 4);
        assert!(answered(&printed(20, [])).is_empty());
    }
}
