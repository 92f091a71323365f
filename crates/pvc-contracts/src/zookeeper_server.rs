//! A real ZooKeeper server for tests and measurements: Debian's package `zookeeper`, run as a plain
//! process on the loopback with its own configuration and data.

#![expect(
    clippy::disallowed_methods,
    reason = "a real server takes real time, and nobody simulates it"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tcp_port::free_port;

const CLASS_PATH: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar:\
                          /usr/share/java/netty-codec.jar";
/// Five copies of the largest request fit. With less a server that takes one dies of it.
const HEAP: &str = "-Xmx1536m";
const START_LIMIT: Duration = Duration::from_secs(60);

/// Runs the server and ends it when the standard input closes, so that it does not outlive a test
/// that was killed. Says the server's process number first.
pub(crate) const KEEPER: &str =
    r#"log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!; read -r _; kill -9 $!; wait"#;

/// Whether a process is no more, or only waits for its keeper to ask what it ended with.
pub(crate) fn has_ended(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state comes after the name, which is in brackets.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

/// A running ZooKeeper server. Ends with the value.
#[derive(Debug)]
pub struct ZookeeperServer {
    dir: PathBuf,
    port: u16,
    secure: Option<Secure>,
    running: Option<Running>,
}

/// Port and files of the server's TLS.
#[derive(Debug)]
struct Secure {
    port: u16,
    certificates: PathBuf,
}

#[derive(Debug)]
struct Running {
    keeper: Child,
    server: Pid,
}

impl ZookeeperServer {
    /// Starts a server that keeps everything in `dir`, on a free port, and waits until it serves.
    ///
    /// # Errors
    /// If the package is not installed (the message says so), or the server does not serve within a
    /// minute; its log is `zookeeper.log` in `dir`.
    pub fn start(dir: &Path) -> io::Result<ZookeeperServer> {
        ZookeeperServer::start_with(dir, None)
    }

    /// Starts as [`start`](ZookeeperServer::start) does; the server also speaks TLS on a port of
    /// its own, shows `server.pem` of `certificates`, a certificate with its key, and asks clients
    /// for one that `ca.pem` has signed.
    ///
    /// # Errors
    /// As [`start`](ZookeeperServer::start).
    pub fn start_with_tls(dir: &Path, certificates: &Path) -> io::Result<ZookeeperServer> {
        ZookeeperServer::start_with(
            dir,
            Some(Secure { port: free_port(), certificates: certificates.to_owned() }),
        )
    }

    fn start_with(dir: &Path, secure: Option<Secure>) -> io::Result<ZookeeperServer> {
        if !Path::new("/usr/share/java/zookeeper.jar").exists() {
            let why =
                "the package `zookeeper` is missing; run `packaging/install/packages.sh test`";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        fs::create_dir_all(dir.join("data"))?;
        let mut server =
            ZookeeperServer { dir: dir.to_owned(), port: free_port(), secure, running: None };
        server.resume()?;
        Ok(server)
    }

    /// The `host:port` for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The `host:port` for clients that speak TLS; the certificate is for this name.
    pub fn secure_address(&self) -> Option<String> {
        self.secure.as_ref().map(|secure| format!("localhost:{}", secure.port))
    }

    /// The process number, while it runs.
    pub fn pid(&self) -> Option<u32> {
        let running = self.running.as_ref()?;
        u32::try_from(running.server.as_raw()).ok()
    }

    /// Ends the server at once, as a power failure would. Its data stays.
    pub fn kill(&mut self) -> io::Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        drop(running.keeper.stdin.take());
        running.keeper.wait().map(|_| ())
    }

    /// Starts a killed server again, on the same port with the same data.
    pub fn resume(&mut self) -> io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        self.write_configuration()?;
        self.running = Some(self.spawn()?);
        self.wait_until_it_serves()
    }

    pub fn restart(&mut self) -> io::Result<()> {
        self.kill()?;
        self.resume()
    }

    /// Loses all data and starts again, as a machine does whose disk was replaced.
    pub fn restart_empty(&mut self) -> io::Result<()> {
        self.kill()?;
        fs::remove_dir_all(self.dir.join("data"))?;
        self.resume()
    }

    /// Exchanges the data for those that were set aside as `name`; those of now are set aside under
    /// `now`. Nothing is done while it runs: the server is killed before, and resumed afterwards.
    ///
    /// # Errors
    /// If nothing was set aside as `name`, or the server does not serve with it.
    pub fn exchange_data(&mut self, name: &str, now: &str) -> io::Result<()> {
        self.kill()?;
        fs::rename(self.dir.join("data"), self.dir.join(now))?;
        fs::rename(self.dir.join(name), self.dir.join("data"))?;
        self.resume()
    }

    /// Sets a copy of the data aside as `name`. The server is restarted for it.
    pub fn copy_data(&mut self, name: &str) -> io::Result<()> {
        self.kill()?;
        let mut copy = Command::new("cp");
        let copied = copy.arg("-a").arg(self.dir.join("data")).arg(self.dir.join(name)).status()?;
        if !copied.success() {
            return Err(io::Error::other("the data could not be copied"));
        }
        self.resume()
    }

    /// Freezes the server: connections stay open, nothing is answered. Returns once all its threads
    /// stand: the signal reaches them one after the other.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let server = self.pid().ok_or_else(|| io::Error::other("the server does not run"))?;
        wait_until_frozen(server)
    }

    /// Goes on after [`stop`](ZookeeperServer::stop).
    pub fn cont(&self) -> io::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// The answer to one of the server's four-letter commands.
    pub fn ask(&self, command: &str) -> io::Result<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(command.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.running {
            Some(running) => kill(running.server, signal).map_err(io::Error::from),
            None => Err(io::Error::other("the server does not run")),
        }
    }

    fn write_configuration(&self) -> io::Result<()> {
        let data = self.dir.join("data");
        fs::create_dir_all(&data)?;
        let text = format!(
            "tickTime=1000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr,ruok,mntr,wchs,cons,dump\n",
            data.display(),
            self.port
        );
        let secure = self.secure.as_ref().map(|Secure { port, certificates }| {
            let certificates = certificates.display();
            format!(
                "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n\
                 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.keyStore.location={certificates}/server.pem\n\
                 ssl.trustStore.location={certificates}/ca.pem\nssl.clientAuth=need\n"
            )
        });
        fs::write(self.dir.join("zoo.cfg"), text + secure.as_deref().unwrap_or_default())
    }

    fn spawn(&self) -> io::Result<Running> {
        let log = self.dir.join("zookeeper.log");
        OpenOptions::new().create(true).append(true).open(&log)?;
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper"])
            .arg(&log)
            .args(["java", HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"])
            .args(["-Djute.maxbuffer=67108864", "-cp", CLASS_PATH])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.dir.join("zoo.cfg"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = keeper.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let server = line.trim().parse().map_err(io::Error::other)?;
        Ok(Running { keeper, server: Pid::from_raw(server) })
    }

    fn wait_until_it_serves(&self) -> io::Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            if self.ask("srvr").is_ok_and(|answer| answer.contains("Mode: standalone")) {
                return Ok(());
            }
            let gone = matches!(&self.running, Some(running) if has_ended(running.server));
            if gone {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(io::Error::other(format!(
            "the server does not serve; its log ends with: {}",
            self.log_end()
        )))
    }

    fn log_end(&self) -> String {
        let mut log = String::new();
        let read = File::open(self.dir.join("zookeeper.log"))
            .and_then(|mut file| file.read_to_string(&mut log));
        match read {
            Ok(_) => log.lines().rev().take(5).collect::<Vec<_>>().join(" | "),
            Err(error) => error.to_string(),
        }
    }
}

/// Waits until all threads of a process that was told to stop stand: the signal reaches them one
/// after the other.
pub(crate) fn wait_until_frozen(process: impl std::fmt::Display) -> io::Result<()> {
    let tasks = format!("/proc/{process}/task");
    let limit = Instant::now() + Duration::from_secs(10);
    while !all_stopped(&tasks)? {
        if Instant::now() > limit {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the process does not freeze"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Whether every thread below `tasks` is stopped. One that ended meanwhile counts as stopped.
fn all_stopped(tasks: &str) -> io::Result<bool> {
    for task in fs::read_dir(tasks)? {
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        // The state is the word behind the name, which stands in brackets and may hold anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        if !matches!(state, Some("T" | "t" | "Z" | "X")) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Drop for ZookeeperServer {
    fn drop(&mut self) {
        let _ = self.kill(); // the keeper ends it in any case
    }
}
