//! A whole cluster, for tests: the lab of docs/dev/lab.md with PVC on its three nodes.
//!
//! Tests share one lab, each in its turn, and each finds it whole. What is true is asked of the QEMU
//! processes and of Ceph; what PVC says about it is compared with that.
#![allow(
    clippy::disallowed_methods,
    reason = "nothing is simulated here: real time passes, real threads wait"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command, Stdio};

use pvc_standalone_tests::{Output, eventually, program, repository, run};
use serde_json::Value;

pub const NODES: [&str; 3] = ["pvchv1", "pvchv2", "pvchv3"];

/// The lab, for one test.
pub struct Lab {
    _turn: File,
}

impl Lab {
    /// Waits for its turn and for a lab that is whole: every node on and ready, every cable in, every
    /// BMC well, and no VM from an earlier test.
    pub fn whole() -> Lab {
        let directory = repository().join("target/lab");
        std::fs::create_dir_all(&directory).expect("`target` can be written");
        let turn = File::create(directory.join("tests.turn")).expect("`target` can be written");
        turn.lock().expect("locks work in `target`");
        let lab = Lab { _turn: turn };
        lab.mend();
        lab.does(&["up"]).ok();
        lab.remove_guests();
        lab
    }

    /// `cargo xtask lab …`, in the lab of the tests.
    pub fn does(&self, arguments: &[&str]) -> Output {
        run(Command::new(program("xtask")).arg("lab").args(arguments).env("PVC_LAB", "tests"), "")
    }

    /// A script on a node, as root.
    pub fn on(&self, node: &str, script: &str) -> Output {
        self.does(&["exec", node, "--", "bash", "-c", script])
    }

    /// `pvc` on a node, which asks the API of that node.
    pub fn pvc_on(&self, node: &str, arguments: &[&str]) -> Output {
        // The API of a frozen node takes calls and never answers.
        let limit = ["exec", node, "--", "timeout", "120"];
        let words = [&limit[..], &["pvc", "--quiet", "--unsafe", "--connection", "local"]].concat();
        self.does(&[&words[..], arguments].concat())
    }

    /// `pvc` on the first node.
    pub fn pvc(&self, arguments: &[&str]) -> Output {
        self.pvc_on(NODES[0], arguments)
    }

    /// What `pvc … --format json` shows on the first node that has an answer.
    ///
    /// # Errors
    /// If none has, what the last one said.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut said = Err("there is no node".into());
        for node in NODES {
            said = self.json_on(node, arguments);
            if said.is_ok() {
                break;
            }
        }
        said
    }

    /// What `pvc … --format json` on `node` shows.
    ///
    /// # Errors
    /// If it fails, what it said.
    fn json_on(&self, node: &str, arguments: &[&str]) -> Result<Value, String> {
        let output = self.pvc_on(node, &[arguments, &["--format", "json"]].concat());
        if output.code != 0 {
            return Err(output.to_string());
        }
        serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output}"))
    }

    /// The nodes whose QEMU processes run `guest`: what is true, whatever anybody recorded.
    pub fn running_on(&self, guest: &str) -> Vec<&'static str> {
        let all = self.guests();
        NODES
            .into_iter()
            .filter(|node| all.get(node).is_some_and(|names| names.iter().any(|name| name == guest)))
            .collect()
    }

    /// The guests of each node that can be asked.
    pub fn guests(&self) -> BTreeMap<&'static str, Vec<String>> {
        let listed = NODES.into_iter().map(|node| {
            let output =
                self.on(node, "ps -C qemu-system-x86_64 -o args= | grep -o 'guest=[^,]*' | cut -d= -f2");
            (node, output.stdout.lines().map(str::to_owned).collect())
        });
        listed.collect()
    }

    /// Defines a small guest of this name with a disk in Ceph.
    pub fn define(&self, guest: &str) {
        self.does(&["guest", guest]).ok();
    }

    /// Defines a guest, has it started on `node`, and waits until its userland says so.
    pub fn start(&self, guest: &str, node: &str) {
        self.define(guest);
        self.pvc(&["vm", "move", guest, "--target", node]);
        self.pvc(&["vm", "start", guest]).ok();
        eventually(&format!("{guest} on {node}"), 120, || match self.running_on(guest).as_slice() {
            [only] if *only == node => Ok(()),
            other => Err(format!("it runs on {other:?}")),
        });
        self.hears(node, guest, "ready; type help");
    }

    /// Waits until `guest`'s console on `node` has shown `words`.
    pub fn hears(&self, node: &str, guest: &str, words: &str) {
        eventually(&format!("`{words}` on the console of {guest}"), 180, || {
            let log = self.on(node, &format!("tail -n 200 /var/log/libvirt/{guest}.log"));
            if log.stdout.contains(words) { Ok(()) } else { Err(log.to_string()) }
        });
    }

    /// Waits until the cluster shows `node` in this state of the daemon and of its VMs.
    pub fn node_is(&self, node: &str, daemon: &str, domains: &str) {
        eventually(&format!("{node} {daemon} and {domains}"), 240, || {
            let info = self.json(&["node", "info", node])?;
            let is = |field: &str, wanted: &str| info[field].as_str() == Some(wanted);
            if is("daemon_state", daemon) && is("domain_state", domains) {
                Ok(())
            } else {
                Err(info.to_string())
            }
        });
    }

    /// The nodes other than `node` that run `guest`: for when `node` cannot be asked.
    pub fn running_elsewhere(&self, guest: &str, node: &str) -> Vec<&'static str> {
        self.running_on(guest).into_iter().filter(|other| *other != node).collect()
    }

    /// The node whose record says that it is primary.
    pub fn primary(&self) -> String {
        eventually("one primary", 120, || match self.primaries()?.as_slice() {
            [one] => Ok(one.clone()),
            other => Err(format!("the primaries are {other:?}")),
        })
    }

    fn primaries(&self) -> Result<Vec<String>, String> {
        let list = self.json(&["node", "list"])?;
        let primaries = list.as_array().into_iter().flatten();
        let primaries = primaries.filter(|node| node["coordinator_state"] == "primary");
        Ok(primaries.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect())
    }

    pub fn until_primary(&self, node: &str) {
        eventually(&format!("{node} is primary"), 60, || match self.primaries()?.as_slice() {
            [one] if one == node => Ok(()),
            other => Err(format!("the primaries are {other:?}")),
        });
    }

    pub fn until_another_is_primary(&self, node: &str) {
        eventually(&format!("{node} is no longer primary"), 120, || {
            match self.holders_of_floating_addresses().as_slice() {
                [one] if one != node => Ok(()),
                other => Err(format!("the floating address is on {other:?}")),
            }
        });
    }

    /// The nodes that have the upstream floating address on a device: what is true of I12.
    pub fn holders_of_floating_addresses(&self) -> Vec<String> {
        let has = |node: &&str| self.on(node, "ip -o address | grep -qF ' 10.99.0.250/'").code == 0;
        NODES.into_iter().filter(has).map(str::to_owned).collect()
    }

    pub fn until_database_leads_on(&self, node: &str) {
        eventually(&format!("the database leads on {node}"), 90, || {
            let answer = self.on(
                node,
                "curl --silent --max-time 2 http://$(hostname):8008/leader -o /dev/null -w '%{http_code}'",
            );
            if answer.stdout.trim() == "200" { Ok(()) } else { Err(answer.to_string()) }
        });
    }

    /// Pings the upstream floating address from outside, 40 times a second, until asked what was lost.
    pub fn watch_floating_address(&self) -> Ping {
        let mut ping = Command::new(program("xtask"));
        ping.args(["lab", "exec", "switch", "--", "ping", "-i", "0.025", "10.99.0.250"])
            .env("PVC_LAB", "tests");
        let child = ping.stdout(Stdio::piped()).spawn().expect("xtask was built");
        Ping { child }
    }

    /// A node other than `node` to ask about it.
    pub fn witness(&self, node: &str) -> &'static str {
        NODES.into_iter().find(|other| *other != node).expect("there are three nodes")
    }

    fn mend(&self) {
        for node in NODES {
            self.does(&["bmc", node, "ok"]);
            self.does(&["heal", node]);
            self.does(&["thaw", node]);
        }
    }

    fn remove_guests(&self) {
        let vms = self.json(&["vm", "list"]).unwrap_or_default();
        for vm in vms.as_array().into_iter().flatten() {
            if let Some(name) = vm["name"].as_str() {
                self.pvc(&["vm", "remove", name]);
            }
        }
    }
}

/// A `ping` that goes on.
pub struct Ping {
    child: Child,
}

impl Ping {
    /// Ends it: how many pings found no answer.
    pub fn lost(self) -> u32 {
        // An interrupt makes it count.
        let interrupted = Command::new("kill").args(["-s", "INT", &self.child.id().to_string()]).status();
        assert!(interrupted.is_ok_and(|status| status.success()), "ping ended by itself");
        let output = self.child.wait_with_output().expect("it is our child");
        let text = String::from_utf8_lossy(&output.stdout);
        let count = |word: &str| {
            let line = text.lines().find(|line| line.contains("packets transmitted"))?;
            let part = line.split(", ").find(|part| part.contains(word))?;
            part.split(' ').next()?.parse::<u32>().ok()
        };
        match (count("transmitted"), count("received")) {
            (Some(sent), Some(received)) if sent > 0 => sent - received,
            _ => panic!("ping counted nothing: {text}"),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.mend();
    }
}
