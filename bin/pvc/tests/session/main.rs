//! The program as its users meet it: arguments in, text and an exit code out, against a small
//! server that answers with what the API answers.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]

mod benchmark;
mod confirmation;
mod connections;
mod definitions;
mod following;
mod hardware;
mod help;
mod missing;
mod networks;
mod new_vms;
mod osd;
mod outcomes;
mod output;
mod provisioner;
mod storage;
#[path = "../../../../crates/pvc-client/tests/stub/mod.rs"]
mod stub;
mod transfer;
mod waiting;
mod what_if;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use stub::{Received, Reply, Stub, ok, status};

const DOCUMENT: &str = include_str!("../../../../docs/api/openapi.json");
const VMS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/vms.json");
const NODES: &str = include_str!("../../../../crates/pvc-cli/tests/wire/nodes.json");
const BENCHMARKS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/benchmarks.json");
const FAULTS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/faults.json");
const NETWORKS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/networks.json");
const OSDS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/osds.json");
const POOLS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/pools.json");
const TASKS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/tasks.json");
const VFS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/vfs.json");
const TREE: &str = include_str!("../../../../crates/pvc-cli/tests/golden/tree.txt");
const STATUS: &str = include_str!("../../../../crates/pvc-cli/tests/wire/status.json");

const LEASES: &str = r#"[
    {"hostname": "web1", "ip4_address": "10.20.1.10", "mac_address": "52:54:00:00:00:01",
     "timestamp": "static"},
    {"hostname": "db1", "ip4_address": "10.20.1.101", "mac_address": "52:54:00:00:00:02",
     "timestamp": "1731672000"}]"#;
const RULES: &str = r#"[
    {"direction": "in", "order": 10, "description": "rest", "rule": "drop"},
    {"direction": "in", "order": 2, "description": "ssh", "rule": "tcp dport 22 accept"},
    {"direction": "out", "order": 0, "description": "all", "rule": "accept"}]"#;

/// A user with a home of their own and, mostly, one stored connection.
struct User {
    home: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl User {
    fn of(stub: &Stub) -> Self {
        Self::at(stub.address)
    }

    fn at(address: std::net::SocketAddr) -> Self {
        let user = Self::without_connection();
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let added =
            user.run(&["connection", "add", "lab", "-a", &host, "-p", &port, "-k", "secret"]);
        assert_eq!(code(&added), 0, "{added:?}");
        user.with("PVC_CONNECTION", "lab")
    }

    fn without_connection() -> Self {
        Self { home: tempfile::tempdir().unwrap(), environment: Vec::new() }
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvc"));
        command
            .args(args)
            .env_clear()
            .env("HOME", self.home.path())
            // Whatever this machine runs is not the test's.
            .env("PVC_CONFIG_FILE", "/nonexistent/pvc.conf")
            .env("PATH", std::env::var_os("PATH").unwrap());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs with something on standard input.
    fn answering(&self, input: &str, args: &[&str]) -> Output {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Runs on a terminal, whose output is both streams in one.
    fn on_a_terminal(&self, line: &str) -> String {
        let output = self.terminal(line).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// A terminal in which the program runs; what is written to its input is typed there.
    fn terminal(&self, line: &str) -> Command {
        self.typed(&format!("exec {} {line}", env!("CARGO_BIN_EXE_pvc")))
    }

    /// A terminal in which a shell runs a line.
    fn typed(&self, line: &str) -> Command {
        let own = self.command(&[]);
        let environment = own.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut command = Command::new("script");
        command.args(["-qefc", line, "/dev/null"]).env_clear().envs(environment);
        command
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn message(text: &str) -> Reply {
    ok(format!(r#"{{"message": "{text}"}}"#))
}

/// A cluster with the two VMs and three nodes of the recorded answers.
fn cluster(request: &Received, _: usize) -> Reply {
    match (request.method.as_str(), request.path()) {
        ("GET", "/api/v1/vm") => ok(VMS),
        ("GET", "/api/v1/vm/web1" | "/api/v1/vm/2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1") => {
            ok(one_vm(0))
        }
        ("GET", "/api/v1/vm/db1") => ok(one_vm(1)),
        ("GET", "/api/v1/node") => ok(NODES),
        ("GET", "/api/v1/status") => ok(STATUS),
        ("GET", "/api/v1/network") => ok(r#"[{"vni": 1001}]"#),
        ("GET", "/api/v1/faults") => ok(r#"[{"id": "NODE_FLUSH", "message": "hv1"}]"#),
        ("GET", "/api/v1/tasks") => ok(r#"{"reserved": {"hv1": [{"id": "0a1b2c3d"}]}}"#),
        ("GET", _) => status(404, r#"{"message": "nothing of that name"}"#),
        _ => message("done"),
    }
}

fn one_vm(index: usize) -> String {
    let vms: Vec<serde_json::Value> = serde_json::from_str(VMS).unwrap();
    format!("[{}]", vms[index])
}

/// The requests that may have changed something.
fn changes(stub: &Stub) -> Vec<String> {
    let changes = |line: &String| !line.starts_with("GET") && !line.ends_with("/check");
    stub.lines().into_iter().filter(changes).collect()
}

/// A form without its percent encoding.
fn decoded(form: &str) -> String {
    let mut parts = form.split('%');
    let mut bytes: Vec<u8> = parts.next().unwrap_or_default().into();
    for part in parts {
        let (code, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(code, 16).unwrap());
        bytes.extend(rest.bytes());
    }
    String::from_utf8(bytes).unwrap()
}

/// A task that has two steps before it ends.
fn task(end: &'static str) -> impl Fn(&Received, usize) -> Reply + Send + Sync {
    let looks = std::sync::atomic::AtomicUsize::new(0);
    move |request, _| {
        if request.method == "POST" {
            return status(
                202,
                r#"{"task_id": "0a1b2c3d", "task_name": "vm.flush_locks", "run_on": "hv1"}"#,
            );
        }
        match looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => ok(r#"{"state": "PENDING", "current": 0, "total": 1, "status": "waiting"}"#),
            1 => ok(r#"{"state": "RUNNING", "current": 1, "total": 2, "status": "looking"}"#),
            2 => status(503, "{}"),
            _ => ok(format!(
                r#"{{"state": "{end}", "current": 2, "total": 2, "status": "locks flushed"}}"#
            )),
        }
    }
}
