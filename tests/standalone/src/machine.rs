//! A PVC of the test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use pvc_contracts::tcp_port::free_port;
use pvc_contracts::zookeeper_server::ZookeeperServer;
use serde_json::Value;

use crate::daemon::{Daemon, Ended};
use crate::hello::{hello_image, hello_xml};
use crate::http::{Answer, Api};
use crate::keeper::Keeper;
use crate::libvirt::Libvirt;
use crate::program::{Output, built, host_name, program, run};
use crate::wait::eventually;

/// Script that gives a node of a cluster its own machine. The node takes this machine's own libvirt
/// and directories, so ours are put in their place, for the daemon's eyes only. The host's name
/// becomes one that resolves to where ZooKeeper listens on every machine.
const IN_PLACE_OF_THE_MACHINES_OWN: &str = r#"
mkdir -p /run/libvirt "$0/lv/run" "$0/var"
mount --bind "$0/lv/run" /run/libvirt
mount --bind "$0/var" /var/lib
hostname localhost
exec "$@"
"#;

/// Settings of a test that are not the usual ones.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Seconds; `None` leaves the default of 5.
    pub keepalive_interval: Option<u32>,
    /// Seconds a guest has to obey its power button.
    pub shutdown_timeout: u32,
    /// Directory of the store, below the machine's directory.
    pub state: &'static str,
    /// A real ZooKeeper, and each role a process of its own.
    pub cluster: bool,
    /// Networks of VMs, for a test with a network namespace of its own.
    pub networks: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            keepalive_interval: Some(1),
            shutdown_timeout: 60,
            state: "state",
            cluster: false,
            networks: false,
        }
    }
}

/// A machine of a test: its directories and names. Fields end in this order.
#[derive(Debug)]
pub struct Machine {
    daemons: BTreeMap<&'static str, Daemon>,
    zookeeper: Option<ZookeeperServer>,
    libvirt: Libvirt,
    api: Api,
    settings: Settings,
    node: String,
    keeper: Keeper,
}

impl Machine {
    /// A standalone PVC that serves.
    pub fn start() -> Machine {
        Machine::with(Settings::default())
    }

    /// Starts as [`start`](Machine::start) does, with `settings`.
    pub fn with(settings: Settings) -> Machine {
        let mut machine = Machine::prepared(settings);
        machine.libvirt.start();
        machine.start_daemons();
        machine
    }

    /// Everything is there, nothing runs (but ZooKeeper).
    pub fn prepared(settings: Settings) -> Machine {
        let keeper = Keeper::start();
        let dir = keeper.dir().to_owned();
        let zookeeper = settings.cluster.then(|| {
            ZookeeperServer::start(&dir.join("zk"))
                .unwrap_or_else(|error| panic!("ZooKeeper does not start: {error}"))
        });
        let api = Api {
            port: free_port(),
            token: format!("a-token-for-the-ring-of-{:020}", std::process::id()),
        };
        let machine = Machine {
            daemons: BTreeMap::new(),
            zookeeper,
            libvirt: Libvirt::new(dir.join("lv")),
            api,
            node: if settings.cluster { "localhost".to_owned() } else { host_name() },
            settings,
            keeper,
        };
        machine.write_configuration(&machine.configuration());
        machine
    }

    // --- Where things are -----------------------------------------------------------------------

    pub fn dir(&self) -> &Path {
        self.keeper.dir()
    }

    pub fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    pub fn config_file(&self) -> PathBuf {
        self.dir().join("pvc.conf")
    }

    pub fn state(&self) -> PathBuf {
        self.dir().join(self.settings.state)
    }

    pub fn libvirt(&self) -> &Libvirt {
        &self.libvirt
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn zookeeper(&mut self) -> &mut ZookeeperServer {
        self.zookeeper.as_mut().expect("the test asked for a cluster")
    }

    // --- Configuration --------------------------------------------------------------------------

    pub fn write_configuration(&self, text: &str) {
        let file = self.config_file();
        fs::write(&file, text).expect("the test's directory can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }

    /// Returns what `./run` writes, or what a node of a cluster without networks and Ceph has.
    pub fn configuration(&self) -> String {
        let mut text = match &self.zookeeper {
            None => format!(
                "subsystem:\n  enable_networking: {}\nstandalone:\n  state_directory: {}\n  \
                 volume_directory: {}\n  libvirt_uri: \"{}\"\n",
                if self.settings.networks { "yes" } else { "no" },
                self.state().display(),
                self.dir().join("volumes").display(),
                self.libvirt.uri(),
            ),
            Some(zookeeper) => cluster_sections(&zookeeper.address()),
        };
        let dynamic = match self.settings.networks {
            true => self.dir().join("run"),
            // The same for all: whether KVM works here is asked once.
            false => built().join("dynamic"),
        };
        let dir = self.dir().display();
        let _ = write!(
            text,
            "path:\n  dynamic_directory: {}\n  system_log_directory: {dir}/log\n  \
             console_log_directory: {dir}/console\n  ceph_directory: {dir}/ceph\n\
             api:\n  images:\n    directory: {dir}/images\n    least_free_mib: 0\n  \
             listen:\n    address: \"127.0.0.1\"\n    port: {}\n  \
             authentication:\n    enabled: yes\n    \
             source: token\n    secret_key: \"0123456789abcdef0123456789abcdef\"\n  token:\n    - \
             description: \"the test\"\n      token: \"{}\"\n\
             timer:\n  vm_shutdown_timeout: {}\n",
            dynamic.display(),
            self.api.port,
            self.api.token,
            self.settings.shutdown_timeout,
        );
        if let Some(seconds) = self.settings.keepalive_interval {
            let _ = writeln!(text, "  keepalive_interval: {seconds}");
        }
        text.push_str(
            "logging:\n  file_logging: yes\n  stdout_logging: yes\n  zookeeper_logging: \
             yes\n  log_dates: yes\n  \
             log_keepalives: no\n  console_log_lines: 1000\n  node_log_lines: 2000\n",
        );
        text
    }

    // --- Daemons --------------------------------------------------------------------------------

    /// The roles of this machine, each a process.
    fn roles(&self) -> &'static [&'static str] {
        if self.settings.cluster { &["node", "api", "worker"] } else { &["standalone"] }
    }

    /// The name of this machine's node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Starts every daemon, makes a cluster if there is none, and waits until it is ready for VMs.
    pub fn start_daemons(&mut self) {
        for role in self.roles() {
            self.spawn(role);
        }
        if self.settings.cluster {
            eventually("ready is the API", 60, || self.answer_to("/"));
            if self.api.get("/node").status != 200
                || self.api.get("/node").json().as_array().is_none_or(Vec::is_empty)
            {
                self.pvc(&["cluster", "init", "-y"]).ok();
            }
        }
        self.wait_until_running();
    }

    /// Waits until the API answers and the node says that it runs, having stamped so just now.
    pub fn wait_until_running(&mut self) {
        let path = format!("/node/{}", self.node);
        let mut stamps = BTreeSet::new();
        eventually("running is the node", 60, || {
            if self.answer_to(&path)?.json()[0]["daemon_state"] != "run" {
                return Err(self.said());
            }
            let backup = self.answer_to("/backup")?;
            stamps.extend(self.stamp_in(&backup));
            if stamps.len() > 1 {
                Ok(())
            } else {
                Err(format!("it runs and does not stamp\n{}", self.said()))
            }
        });
    }

    /// Fails the test if a daemon has ended.
    pub fn all_daemons_run(&mut self) {
        for daemon in self.daemons.values_mut() {
            if let Some(ended) = daemon.ended() {
                panic!("a daemon ended: {ended}");
            }
        }
    }

    /// Asks the API, which need not answer yet, or for a moment: a daemon that executes itself anew
    /// refuses what comes meanwhile.
    fn answer_to(&mut self, path: &str) -> Result<Answer, String> {
        self.all_daemons_run();
        match self.api.try_call("GET", path, &[], &[]) {
            Ok(answer) if answer.status == 200 => Ok(answer),
            Ok(_) | Err(_) => Err(self.said()),
        }
    }

    /// Starts the daemon of one role, and waits for nothing.
    pub fn spawn(&mut self, role: &'static str) {
        self.spawn_with(role, &[]);
    }

    /// The same, with more arguments.
    pub fn spawn_with(&mut self, role: &'static str, args: &[&str]) {
        let daemon = Daemon::start(&self.keeper, role, self.daemon_command(role).args(args));
        self.daemons.insert(role, daemon);
    }

    /// Runs the daemon of a role that is expected to end by itself.
    pub fn daemon_that_ends(&self, role: &'static str) -> Ended {
        Daemon::start(&self.keeper, "other", &mut self.daemon_command(role)).wait(60)
    }

    fn daemon_command(&self, role: &str) -> Command {
        let pvcd = program("pvcd");
        let mut command = if self.settings.cluster {
            let mut unshared = Command::new("unshare");
            unshared
                .args(["--mount", "--uts", "--propagation", "slave", "bash", "-euc"])
                .arg(IN_PLACE_OF_THE_MACHINES_OWN)
                .arg(self.dir())
                .arg(pvcd);
            unshared
        } else {
            Command::new(pvcd)
        };
        command.arg(role).arg("--config").arg(self.config_file());
        self.surround(&mut command);
        command
    }

    pub fn daemon(&self, role: &str) -> &Daemon {
        self.daemons.get(role).unwrap_or_else(|| panic!("no daemon of the role {role} runs"))
    }

    /// Asks one daemon to stop.
    pub fn stop(&mut self, role: &str) -> Ended {
        self.take(role).stop()
    }

    /// Asks one daemon to stop by this signal.
    pub fn stop_by(&mut self, role: &str, signal: Signal) -> Ended {
        self.daemon(role).signal(signal);
        self.wait_for_end(role)
    }

    /// Waits until one daemon has ended by itself.
    pub fn wait_for_end(&mut self, role: &str) -> Ended {
        self.take(role).wait(60)
    }

    /// Kills one daemon.
    pub fn kill(&mut self, role: &str) {
        self.take(role).kill();
    }

    fn take(&mut self, role: &str) -> Daemon {
        self.daemons.remove(role).unwrap_or_else(|| panic!("no daemon of the role {role} runs"))
    }

    /// Returns the end of what the daemons said.
    pub fn said(&self) -> String {
        let mut all = String::new();
        for (role, daemon) in &self.daemons {
            let said = daemon.said();
            // Requests that read are many and change nothing.
            let lines: Vec<_> =
                said.lines().filter(|line| !line.contains(" method=GET ")).collect();
            let _ = writeln!(
                all,
                "--- {role}:\n{}",
                lines[lines.len().saturating_sub(40)..].join("\n")
            );
        }
        all
    }

    /// Everything in the log file.
    pub fn log(&self) -> String {
        let files = fs::read_dir(self.dir().join("log")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect()
    }

    // --- The command line -----------------------------------------------------------------------

    /// Runs `pvc`, as a new user would who has read nothing.
    pub fn pvc(&self, args: &[&str]) -> Output {
        self.pvc_with(args, "", |_| {})
    }

    /// Runs `pvc` with a line of words that have no blanks in them, and shows no progress.
    pub fn quietly(&self, line: &str) -> Output {
        let words: Vec<&str> = std::iter::once("-q").chain(line.split(' ')).collect();
        self.pvc(&words)
    }

    /// Runs the client as [`pvc`](Machine::pvc) does, with an input and whatever else is done to
    /// the command.
    pub fn pvc_with(
        &self,
        args: &[&str],
        input: &str,
        change: impl FnOnce(&mut Command),
    ) -> Output {
        let mut command = Command::new(program("pvc"));
        command.args(args);
        self.surround(&mut command);
        change(&mut command);
        run(&mut command, input)
    }

    /// Starts `pvc` and leaves it running, its standard output in `<name>.out`.
    pub fn pvc_running(&self, name: &str, args: &[&str]) -> Daemon {
        let mut command = Command::new(program("pvc"));
        command.args(args);
        self.surround(&mut command);
        Daemon::start(&self.keeper, name, &mut command)
    }

    /// `pvc storage volume add` in the pool `vms`.
    #[track_caller]
    pub fn add_volume(&self, volume: &str, size: &str) {
        self.pvc(&["storage", "volume", "add", "vms", volume, size]).ok();
    }

    /// Waits until these are the volumes that the API knows, sorted.
    #[track_caller]
    pub fn volumes_are(&self, expected: &[&str]) {
        eventually("the volumes are as they should be", 20, || {
            let output = self.pvc(&["storage", "volume", "list", "-f", "raw"]);
            let mut found: Vec<&str> = output.stdout.lines().collect();
            found.sort_unstable();
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        });
    }

    /// The environment of every program here: nothing of this machine's own PVC, no terminal.
    pub fn surround(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PVC") {
                command.env_remove(name);
            }
        }
        command
            .env("PVC_CONFIG_FILE", self.config_file())
            .env("PVC_CLIENT_DIR", self.dir().join("client"))
            .env("PVC", program("pvc"))
            .env("XDG_CACHE_HOME", self.dir().join("cache"))
            .env("HOME", self.dir())
            .env("NO_COLOR", "1")
            .env_remove("PAGER");
    }

    // --- Guests ---------------------------------------------------------------------------------

    /// Writes the XML of a `hello` of this name into a file.
    pub fn hello_file(&self, name: &str) -> PathBuf {
        let file = self.dir().join(format!("{name}.xml"));
        fs::write(&file, self.hello_xml(name)).expect("the test's directory can be written");
        file
    }

    /// Returns the XML of a guest of `examples/hello`. In a cluster there is no Ceph here, and the
    /// disk is a file.
    pub fn hello_xml(&self, name: &str) -> String {
        let text = hello_xml(name);
        if !self.settings.cluster {
            return text;
        }
        let file = format!("<source file='{}'/>", self.dir().join(format!("{name}.img")).display());
        text.replace("<disk type='network'", "<disk type='file'")
            .replace(&format!("<source protocol='rbd' name='vms/{name}_sda'/>"), &file)
    }

    /// Makes the disk of `name` and defines the VM.
    #[track_caller]
    pub fn define_hello(&self, name: &str) {
        self.make_disk(name);
        let file = self.hello_file(name);
        self.pvc(&["vm", "define", &file.to_string_lossy()]).ok();
    }

    pub fn make_disk(&self, name: &str) {
        let image = hello_image();
        if self.settings.cluster {
            fs::copy(image, self.dir().join(format!("{name}.img"))).expect("there is room in /tmp");
        } else {
            let (volume, image) = (format!("{name}_sda"), image.to_string_lossy());
            self.add_volume(&volume, "32M");
            self.pvc(&["storage", "volume", "upload", "-y", "vms", &volume, &image]).ok();
        }
    }

    /// Starts a VM and waits until its guest has counted its boot. Returns QEMU's process number.
    #[track_caller]
    pub fn boot(&self, name: &str) -> u32 {
        let before = self.boots(name);
        self.pvc(&["vm", "start", name]).ok();
        self.booted(name, before + 1);
        self.qemu(name)
    }

    /// Waits until the guest counts its boot number `boot`.
    #[track_caller]
    pub fn booted(&self, name: &str, boot: u32) {
        eventually(&format!("booted for the {boot}. time is {name}"), 90, || {
            let seen = self.boots(name);
            if seen >= boot {
                Ok(())
            } else {
                let console = self.console_text(name);
                let last: Vec<_> = console.lines().rev().take(5).collect();
                Err(format!("{seen} boots; its console, backwards: {last:#?}\n{}", self.said()))
            }
        });
    }

    /// Number of times that the guest has booted, as it counts on its disk. A boot counts when the
    /// guest is ready: before, it hears neither its power button nor its serial line.
    pub fn boots(&self, name: &str) -> u32 {
        let text = self.console_text(name);
        let ready = text.rsplit_once("hello: ready").map_or("", |(before, _)| before);
        let count =
            |line: &str| line.trim().strip_prefix("hello: boot ")?.split(',').next()?.parse().ok();
        ready.lines().filter_map(count).max().unwrap_or(0)
    }

    /// All that the guest wrote on its serial line, from the file itself.
    pub fn console_text(&self, name: &str) -> String {
        let bytes = fs::read(self.dir().join(format!("console/{name}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The process number of the guest's QEMU, which must run.
    #[track_caller]
    pub fn qemu(&self, name: &str) -> u32 {
        self.libvirt
            .qemu_pid(name)
            .unwrap_or_else(|| panic!("no QEMU of {name} runs\n{}", self.said()))
    }

    /// The VM as the API shows it.
    #[track_caller]
    pub fn vm(&self, name: &str) -> Value {
        let answer = self.api.get(&format!("/vm/{name}")).ok();
        answer.json()[0].clone()
    }

    #[track_caller]
    pub fn vm_state(&self, name: &str) -> String {
        self.vm(name)["state"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub fn wait_for_state(&self, name: &str, state: &str, seconds: u64) {
        eventually(&format!("`{state}` is {name}"), seconds, || {
            let vm = self.vm(name);
            if vm["state"] == state {
                Ok(())
            } else {
                Err(format!("{}: {}\n{}", vm["state"], vm["failed_reason"], self.said()))
            }
        });
    }

    /// Waits until no QEMU of the guest is there.
    #[track_caller]
    pub fn wait_until_off(&self, name: &str, seconds: u64) {
        eventually(&format!("off is {name}"), seconds, || match self.libvirt.qemu_pid(name) {
            None => Ok(()),
            Some(pid) => Err(format!("QEMU {pid}\n{}", self.said())),
        });
    }

    // --- Records --------------------------------------------------------------------------------

    /// Keys that operators have entrusted to the store: every key of the tree but the figures,
    /// stamps, logs and faults that the daemons keep writing.
    pub fn entrusted(&self) -> BTreeMap<String, String> {
        let is_theirs = |path: &str| {
            let last = path.rsplit('/').next().unwrap_or_default();
            let observed = ["/pvcrs/storage_answered", "/pvcrs/snapshot-usage"];
            ["/nodes", "/logs", "/faults", "/tasks"]
                .iter()
                .any(|top| path == *top || path.starts_with(&format!("{top}/")))
                || (path.starts_with("/domains/") && ["consolelog", "stats", "vnc"].contains(&last))
                || path.starts_with("/ceph")
                || observed.iter().any(|top| path.starts_with(top))
        };
        records(&self.api.get("/backup").ok())
            .into_iter()
            .filter(|(path, _)| !is_theirs(path))
            .collect()
    }

    /// The ids and messages of all faults.
    pub fn faults(&self) -> Vec<String> {
        let answer = self.api.get("/faults?sort_key=last_reported").ok().json();
        let faults = answer.as_array().cloned().unwrap_or_default();
        faults.iter().map(|fault| format!("{}: {}", fault["id"], fault["message"])).collect()
    }

    /// The node's latest keepalive, as far as the API tells.
    pub fn stamp(&self) -> String {
        let backup = self.api.get("/backup");
        let stamp = if backup.status == 200 { self.stamp_in(&backup) } else { None };
        stamp.unwrap_or_default()
    }

    fn stamp_in(&self, backup: &Answer) -> Option<String> {
        records(backup).remove(&format!("/nodes/{}/keepalive", self.node))
    }

    /// Calls `look` until it succeeds, and returns how many keepalives the node wrote meanwhile.
    #[track_caller]
    pub fn keepalives_until(
        &self,
        what: &str,
        seconds: u64,
        mut look: impl FnMut() -> bool,
    ) -> usize {
        let mut stamps = BTreeSet::from([self.stamp()]);
        eventually(what, seconds, || {
            let done = look();
            stamps.insert(self.stamp());
            if done { Ok(()) } else { Err(self.said()) }
        });
        stamps.len() - 1
    }

    /// Defines a VM over HTTP.
    pub fn http_define(&self, xml: &str) -> Answer {
        let query =
            [("migration_method", "none"), ("migration_max_downtime", "300"), ("selector", "none")];
        self.api.call("POST", "/vm", &query, &[("xml", xml)])
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- what the daemons said last:\n{}", self.said());
            if std::env::var_os("PVC_TEST_KEEP").is_some() {
                let kept = self.dir().with_extension("kept");
                let _ = Command::new("cp").arg("-a").arg(self.dir()).arg(&kept).status();
                println!("--- a copy of its files: {}", kept.display());
            }
        }
    }
}

/// A cluster of this machine alone, without networks of its own and without Ceph.
fn cluster_sections(zookeeper: &str) -> String {
    let (_, port) = zookeeper.rsplit_once(':').expect("an address has a port");
    let nodes = nodes_of_the_ring();
    format!(
        "subsystem:\n  enable_hypervisor: yes\n  enable_networking: no\n  enable_storage: \
         no\n  enable_worker: yes\n  \
         enable_api: yes\n  enable_prometheus: yes\n\
         cluster:\n  name: ring\n  all_nodes: [{nodes}]\n  coordinator_nodes: [localhost]\n\
         database:\n  zookeeper:\n    port: {port}\n  keydb:\n    hostname: localhost\n    port: \
         6379\n    path: /0\n  \
         postgres:\n    hostname: localhost\n    port: \
         5432\n    credentials:\n      api:\n        database: pvcapi\n        \
         username: pvcapi\n        password: not-used-by-this-test\n\
         fencing:\n  disable_on_ipmi_failure: no\n  intervals:\n    fence_intervals: \
         6\n  ipmi:\n    \
         hostname: localhost\n    username: none\n    password: none\n"
    )
}

/// Returns this machine, and where its ZooKeeper listens: a coordinator by that name alone.
fn nodes_of_the_ring() -> String {
    let hostname =
        std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the kernel knows its name");
    match hostname.trim().split('.').next().unwrap_or_default() {
        "localhost" => "localhost".to_owned(),
        own => format!("localhost, {own}"),
    }
}

/// The keys and values of a backup, which is JSON within a JSON string.
fn records(backup: &Answer) -> BTreeMap<String, String> {
    let text: String = serde_json::from_str(&backup.text).expect("a string holds the backup");
    serde_json::from_str(&text).expect("the string is JSON")
}
