//! A real Ceph for tests: one monitor, one manager and one OSD from Debian's packages, run as plain
//! processes on the loopback with their own configuration, keys and data.

#![expect(
    clippy::disallowed_methods,
    reason = "a real cluster takes real time, and nobody simulates it"
)]

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tcp_port::free_port;
use crate::zookeeper_server::{KEEPER, has_ended, wait_until_frozen};

const START_LIMIT: Duration = Duration::from_secs(120);

/// Seconds that a command of Ceph's own may take.
const COMMAND_LIMIT: &str = "10";

/// The OSD's disk, in a file without contents.
const DISK_BYTES: u64 = 10 << 30;

/// A part of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    Monitor,
    Manager,
    Osd,
}

/// A running Ceph. Ends with the value.
#[derive(Debug)]
pub struct CephCluster {
    dir: PathBuf,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    daemon: Daemon,
    keeper: Child,
    process: Pid,
}

impl CephCluster {
    /// Starts a cluster that keeps everything in `dir`, and waits until its OSD is up and its
    /// manager knows it. That takes a quarter of a minute.
    ///
    /// # Errors
    /// If the packages are not installed (the message says so), or the cluster is not there within
    /// two minutes; the logs are in `dir`.
    pub fn start(dir: &Path) -> io::Result<CephCluster> {
        if !["ceph-mon", "ceph-mgr", "ceph-osd", "ceph"].iter().all(|name| is_installed(name)) {
            let why = "the packages of Ceph are missing; run `packaging/install/packages.sh test`";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        for folder in ["mon", "mgr", "osd"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        let mut cluster = CephCluster { dir: dir.to_owned(), running: Vec::new() };
        let port = free_port();
        let id = uuid::Uuid::new_v4().to_string();
        fs::write(cluster.config(), cluster.configuration(&id, port))?;
        cluster.make_keys()?;
        cluster.make_monitor(&id, port)?;
        cluster.begin(Daemon::Monitor)?;
        let osd = uuid::Uuid::new_v4().to_string();
        cluster.run("ceph-osd", &["-i", "0", "--mkfs", "--osd-uuid", &osd, "--no-mon-config"])?;
        cluster.begin(Daemon::Osd)?;
        cluster.begin(Daemon::Manager)?;
        cluster.wait_until_it_serves()?;
        // Not in the file, which no `ceph config set` would prevail over.
        cluster.ceph(&["config", "set", "mon", "mon_allow_pool_delete", "true"])?;
        Ok(cluster)
    }

    /// Ceph's configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    /// The keys of `client.admin`, who may do everything, and of `client.libvirt`, who may do what
    /// guests do.
    pub fn keyring(&self) -> PathBuf {
        self.dir.join("keyring")
    }

    /// Freezes a daemon: connections stay open, nothing is answered. Returns once all its threads
    /// stand.
    pub fn stop(&self, daemon: Daemon) -> io::Result<()> {
        wait_until_frozen(self.signal(daemon, Signal::SIGSTOP)?)
    }

    /// Goes on after [`stop`](CephCluster::stop).
    pub fn cont(&self, daemon: Daemon) -> io::Result<()> {
        self.signal(daemon, Signal::SIGCONT).map(drop)
    }

    /// Runs `ceph` with `args` and returns what it prints.
    pub fn ceph(&self, args: &[&str]) -> io::Result<String> {
        let args = [&["--connect-timeout", COMMAND_LIMIT][..], args].concat();
        self.run("ceph", &args)
    }

    fn signal(&self, daemon: Daemon, signal: Signal) -> io::Result<Pid> {
        let running = self.running.iter().find(|running| running.daemon == daemon);
        let running = running.ok_or_else(|| io::Error::other("the daemon does not run"))?;
        kill(running.process, signal)?;
        Ok(running.process)
    }

    /// Small and quick: one copy, one placement group per pool, little memory, and figures every
    /// second. A monitor ends if no more percent of its disk are free than `mon data avail crit`,
    /// in whole numbers: with 0 it did at 2 GB of 250.
    fn configuration(&self, id: &str, port: u16) -> String {
        let dir = self.dir.display();
        format!(
            "[global]\n\
             fsid = {id}\n\
             mon host = v2:127.0.0.1:{port}\n\
             public addr = 127.0.0.1\n\
             cluster addr = 127.0.0.1\n\
             auth cluster required = cephx\n\
             auth service required = cephx\n\
             auth client required = cephx\n\
             auth allow insecure global id reclaim = false\n\
             keyring = {dir}/keyring\n\
             ms bind msgr1 = false\n\
             log to stderr = false\n\
             err to stderr = false\n\
             osd pool default size = 1\n\
             osd pool default min size = 1\n\
             osd pool default pg num = 1\n\
             osd pool default pgp num = 1\n\
             osd pool default pg autoscale mode = off\n\
             osd crush chooseleaf type = 0\n\
             [mon]\n\
             mon data = {dir}/mon\n\
             log file = {dir}/mon.log\n\
             admin socket =\n\
             run dir = {dir}\n\
             paxos propose interval = 0.05\n\
             mon allow pool size one = true\n\
             mon warn on pool no redundancy = false\n\
             mon max pg per osd = 1000\n\
             mon data avail warn = 1\n\
             mon data avail crit = -1\n\
             [mgr]\n\
             mgr data = {dir}/mgr\n\
             log file = {dir}/mgr.log\n\
             admin socket =\n\
             run dir = {dir}\n\
             mgr initial modules =\n\
             mgr stats period = 1\n\
             mgr tick period = 1\n\
             [osd]\n\
             osd data = {dir}/osd\n\
             log file = {dir}/osd.log\n\
             admin socket =\n\
             run dir = {dir}\n\
             osd class update on start = true\n\
             bluestore block create = true\n\
             bluestore block size = {DISK_BYTES}\n\
             bluestore cache autotune = false\n\
             bluestore cache size = 33554432\n\
             osd op num shards = 2\n"
        )
    }

    fn make_keys(&self) -> io::Result<()> {
        let everything = ["mon", "allow *", "osd", "allow *", "mgr", "allow *"];
        // What the project's own installation gives to hypervisors: they cannot break a dead host's
        // locks.
        let guests = ["mon", "allow r", "osd", "allow rwx"];
        let keys: [(&str, &[&str]); 5] = [
            ("mon.", &["mon", "allow *"]),
            ("client.admin", &everything),
            ("client.libvirt", &guests),
            ("mgr.x", &["mon", "allow profile mgr", "osd", "allow *"]),
            ("osd.0", &["mon", "allow profile osd", "osd", "allow *", "mgr", "allow profile osd"]),
        ];
        let keyring = self.keyring().display().to_string();
        for (nth, (name, capabilities)) in keys.iter().enumerate() {
            let mut args = vec![keyring.as_str(), "--gen-key", "--name", name];
            if nth == 0 {
                args.push("--create-keyring");
            }
            for pair in capabilities.chunks(2) {
                args.push("--cap");
                args.extend(pair);
            }
            tool(Command::new("ceph-authtool").args(args))?;
        }
        Ok(())
    }

    fn make_monitor(&self, id: &str, port: u16) -> io::Result<()> {
        let (map, keyring) = (self.dir.join("monmap"), self.keyring());
        let address = format!("[v2:127.0.0.1:{port}]");
        tool(
            Command::new("monmaptool")
                .args(["--create", "--fsid", id, "--addv", "a", &address])
                .arg(&map),
        )?;
        let (map, keyring) = (map.display().to_string(), keyring.display().to_string());
        self.run("ceph-mon", &["-i", "a", "--mkfs", "--monmap", &map, "--keyring", &keyring])
            .map(drop)
    }

    fn run(&self, program: &str, args: &[&str]) -> io::Result<String> {
        tool(Command::new(program).arg("--conf").arg(self.config()).args(args))
    }

    fn begin(&mut self, daemon: Daemon) -> io::Result<()> {
        let (program, name) = match daemon {
            Daemon::Monitor => ("ceph-mon", "a"),
            Daemon::Manager => ("ceph-mgr", "x"),
            Daemon::Osd => ("ceph-osd", "0"),
        };
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(self.dir.join(format!("{program}.out")))
            .args([program, "-f", "-i", name, "--conf"])
            .arg(self.config())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = keeper.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let process = Pid::from_raw(line.trim().parse().map_err(io::Error::other)?);
        self.running.push(Running { daemon, keeper, process });
        Ok(())
    }

    fn wait_until_it_serves(&self) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            // The manager has heard of the OSD once it can say how large it is.
            let served = self.ceph(&["df", "--format", "json"]);
            if served.is_ok_and(|df| df.contains(&format!("\"total_bytes\":{DISK_BYTES}"))) {
                return Ok(());
            }
            if let Some(gone) = self.running.iter().find(|running| has_ended(running.process)) {
                return Err(self.failed(&format!("{:?} ended", gone.daemon)));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Err(self.failed("the cluster does not serve"))
    }

    fn failed(&self, what: &str) -> io::Error {
        let mut said = String::new();
        for name in ["mon", "mgr", "osd"] {
            for log in [format!("ceph-{name}.out"), format!("{name}.log")] {
                let text = fs::read(self.dir.join(&log)).unwrap_or_default();
                let text = String::from_utf8_lossy(&text);
                said.extend(text.lines().rev().take(3).map(|line| format!(" | {log}: {line}")));
            }
        }
        io::Error::other(format!("{what}{said}"))
    }
}

impl Drop for CephCluster {
    fn drop(&mut self) {
        for mut running in self.running.drain(..) {
            // The keeper ends the daemon when its input closes, also if this is not reached.
            drop(running.keeper.stdin.take());
            let _ = running.keeper.wait();
        }
    }
}

fn is_installed(program: &str) -> bool {
    Path::new("/usr/bin").join(program).exists()
}

/// Runs a program to its end and returns what it printed.
fn tool(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {}", said.trim())))
}
