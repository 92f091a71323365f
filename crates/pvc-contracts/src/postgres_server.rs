//! A real PostgreSQL server for tests: Debian's package `postgresql`, on a socket in a directory of
//! its own, as the user `postgres`, since it does not run as root.

#![expect(
    clippy::disallowed_methods,
    reason = "a real server takes real time, and nobody simulates it"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The user of the server who may do everything.
pub const USER: &str = "pvc";

/// The database that is there from the beginning.
pub const DATABASE: &str = "postgres";

/// A running PostgreSQL server. Ends with the value.
#[derive(Debug)]
pub struct PostgresServer {
    directory: PathBuf,
    programs: PathBuf,
}

impl PostgresServer {
    /// Starts a server that keeps everything in `directory`, and waits until it serves. Its user
    /// has this password, or needs none.
    ///
    /// # Panics
    /// If the package is not installed, or the server does not serve.
    pub fn start(directory: &Path, password: Option<&str>) -> PostgresServer {
        let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
        let mut versions: Vec<PathBuf> =
            versions.map(|entry| entry.expect("it can be listed").path()).collect();
        versions.sort();
        let programs = versions.pop().expect("a version of it is installed").join("bin");
        // Clients of any user come to its socket.
        fs::set_permissions(directory, Permissions::from_mode(0o755)).expect("it is ours");
        let owned = Command::new("chown").arg("postgres").arg(directory).status();
        assert!(owned.is_ok_and(|status| status.success()), "the user `postgres` exists");
        let server = PostgresServer { directory: directory.to_owned(), programs };
        let (data, file) = (server.data(), directory.join("password"));
        fs::write(&file, password.unwrap_or_default()).expect("it can be written");
        let file = file.display().to_string();
        let mut args = vec!["-D", &data, "-U", USER, "--no-sync"];
        match password {
            Some(_) => args.extend(["-A", "scram-sha-256", "--pwfile", &file]),
            None => args.extend(["-A", "trust"]),
        }
        server.run("initdb", &args);
        server.control("start");
        server
    }

    fn data(&self) -> String {
        self.directory.join("data").display().to_string()
    }

    /// Ends it in the middle of its work, and starts it again.
    ///
    /// # Panics
    /// If it does not serve then.
    pub fn restart(&self) {
        self.control("restart");
    }

    fn control(&self, what: &str) {
        let (data, socket) = (self.data(), self.directory.display());
        let (log, options) = (format!("{data}.log"), format!("-k {socket} -h ''"));
        let args =
            ["-D", &data, "-l", &log, "-o", &options, "-w", "-t", "60", "-m", "immediate", what];
        self.run("pg_ctl", &args);
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = Command::new("runuser")
            .args(["-u", "postgres", "--"])
            .arg(self.programs.join(program))
            .args(args)
            .current_dir("/")
            .stdout(Stdio::null())
            .status();
        let is_done = status.is_ok_and(|status| status.success());
        assert!(is_done, "`{program} {}` succeeds", args.join(" "));
    }

    /// Makes another database, with nothing in it.
    ///
    /// # Panics
    /// If there is one of that name.
    pub fn create_database(&self, name: &str) {
        self.run("createdb", &["-h", &self.host(), "-U", USER, name]);
    }

    /// The directory of its socket.
    pub fn host(&self) -> String {
        self.directory.display().to_string()
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.control("stop");
    }
}
