//! Acts on volumes: one `rbd` command each, with a deadline.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Command, Course, Exec, ExecError, Output, StorageError};

use crate::CephOptions;
use crate::gate::WritePermit;
use crate::piped::{Pipe, Piped};

/// Deadline of what Ceph does at once when it is well.
pub(crate) const QUICK: Duration = Duration::from_secs(30);

/// Deadline of what goes through a whole volume: this, and its size at the slowest pace that is no
/// failure.
const LONG: Duration = Duration::from_secs(300);
const SLOWEST_BYTES_PER_SECOND: u64 = 4 << 20;

/// The deadline for what goes through `bytes` of a volume.
pub(crate) fn long(bytes: u64) -> Duration {
    LONG + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
}

/// Features of every new image: clones of snapshots, and one writer at a time.
pub(crate) const FEATURES: [&str; 2] =
    ["--image-feature=layering", "--image-feature=exclusive-lock"];

const NOT_FOUND: i32 = 2;
const BUSY: i32 = 16;
const EXISTS: i32 = 17;
const NO_SPACE: i32 = 28;
const NOT_EMPTY: i32 = 39;
const UNCLEAN: i32 = 117;
const QUOTA: i32 = 122;

/// `rados` ends with 1 whatever it met, and says what it did and the number of the error. A
/// keyring that is not there has that number, too.
const NO_OBJECT: &str = "(2) No such file or directory";
const OF_OBJECTS: [&str; 3] = ["error getting omap key set ", "error getting ", "error removing "];
const NO_POOL: &str = "error opening pool ";

/// Said by `rbd`, which ends with the number of that error, whatever it was to do.
const NO_CLUSTER: &str = "couldn't connect to the cluster";

/// Commands of `rbd` and `rados` that change nothing.
const READ: [&[&str]; 11] = [
    &["info"],
    &["status"],
    &["ls"],
    &["snap", "ls"],
    &["trash", "ls"],
    &["children"],
    &["lock", "list"],
    &["diff"],
    &["export-diff"],
    &["listomapkeys"],
    &["get"],
];

/// Commands that take something away, which Ceph allows also in a full pool.
const REMOVE: [&[&str]; 7] = [
    &["rm"],
    &["snap", "rm"],
    &["snap", "purge"],
    &["snap", "unprotect"],
    &["trash", "rm"],
    &["lock", "remove"],
    &["rmomapkey"],
];

/// Makes sure that these are words of one of the commands; any other may write.
fn require_one_of(commands: &[&[&str]], words: &[&str]) {
    let is_known = commands.iter().any(|command| words.starts_with(command));
    debug_assert!(is_known, "{words:?} goes through the gate");
}

/// Makes sure that the permit is for the pool that is written to.
fn require_of(permit: &WritePermit, args: &[String]) {
    debug_assert!(args.contains(&pool_arg(permit.pool())), "{args:?} is of another pool");
}

/// `rbd`, and `rados` for what `rbd` does not show.
pub(crate) struct Programs {
    exec: Arc<dyn Exec>,
    options: CephOptions,
    /// Course of what goes through a volume and is not stopped, if somebody waits for it.
    course: Option<Course>,
}

/// Failure of a program.
#[derive(Debug)]
pub(crate) enum Failure {
    NotFound {
        pool: bool,
    },
    Exists,
    Busy,
    /// Something has snapshots.
    NotEmpty,
    /// Something is not completely in the trash.
    NotMoved,
    /// The pool is full, or has as much as it may have.
    Full,
    TimedOut {
        seconds: u64,
    },
    /// Ended because it was to stop.
    Stopped,
    Other(String),
}

impl Failure {
    /// The same, said of `volume`; `doing` follows "failed while it was".
    pub fn of(self, volume: &VolumeId, doing: &str) -> StorageError {
        let id = || volume.clone();
        let doing = &with_volume(doing, volume);
        match self {
            Failure::NotFound { pool: true } => StorageError::NoPool { pool: volume.pool.clone() },
            Failure::NotFound { pool: false } => StorageError::NoVolume { volume: id() },
            Failure::Exists => StorageError::VolumeExists { volume: id() },
            Failure::Busy => {
                StorageError::InUse { volume: id(), holder: "another client of Ceph".to_owned() }
            }
            Failure::Full => StorageError::Full { pool: volume.pool.clone() },
            Failure::NotEmpty => io_error(doing, NOT_EMPTY_SAID.to_owned()),
            Failure::NotMoved => io_error(doing, NOT_MOVED_SAID.to_owned()),
            Failure::TimedOut { seconds } => {
                StorageError::TimedOut { doing: doing.to_owned(), seconds }
            }
            Failure::Stopped => StorageError::Stopped,
            Failure::Other(said) => io_error(doing, said),
        }
    }

    /// Same as [`of`](Failure::of), for an act that may be half done: that it met the end of the
    /// pool is no refusal, which would have had no effect.
    pub fn of_begun(self, volume: &VolumeId, doing: &str) -> StorageError {
        match self {
            Failure::Full => {
                Failure::Other("the pool filled up meanwhile".to_owned()).of(volume, doing)
            }
            other => other.of(volume, doing),
        }
    }

    /// The same, of a question about a whole pool.
    pub fn of_pool(self, pool: &PoolName, doing: &str) -> StorageError {
        let doing = &with_pool(doing, pool);
        match self {
            Failure::NotFound { pool: true } => StorageError::NoPool { pool: pool.clone() },
            Failure::NotFound { pool: false } => {
                io_error(doing, "something in the pool was gone when it was looked at".to_owned())
            }
            Failure::TimedOut { seconds } => {
                StorageError::TimedOut { doing: doing.to_owned(), seconds }
            }
            Failure::Stopped => StorageError::Stopped,
            Failure::Other(said) => io_error(doing, said),
            Failure::NotEmpty => io_error(doing, NOT_EMPTY_SAID.to_owned()),
            Failure::NotMoved => io_error(doing, NOT_MOVED_SAID.to_owned()),
            Failure::Full => StorageError::Full { pool: pool.clone() },
            Failure::Exists | Failure::Busy => {
                io_error(doing, "an answer that makes no sense".to_owned())
            }
        }
    }

    /// Same as [`of`](Failure::of), for an act on a snapshot of the volume.
    pub fn of_snapshot(
        self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        doing: &str,
    ) -> StorageError {
        let (id, name) = (volume.clone(), snapshot.clone());
        match self {
            Failure::Exists => StorageError::SnapshotExists { volume: id, snapshot: name },
            other => other.of(volume, doing),
        }
    }
}

const NOT_EMPTY_SAID: &str = "it has snapshots";
const NOT_MOVED_SAID: &str = "it is not completely in the trash";

/// Words for what is done, with the name of the volume.
pub(crate) fn with_volume(doing: &str, volume: &VolumeId) -> String {
    format!("{doing} (`{volume}`)")
}

/// Words for what is done, with the name of the pool.
pub(crate) fn with_pool(doing: &str, pool: &PoolName) -> String {
    format!("{doing} (pool `{pool}`)")
}

/// Failure of what is done to no single volume or pool; that of one has its name
/// ([`Failure::of`]).
pub(crate) fn io_error(doing: &str, said: String) -> StorageError {
    StorageError::Io { doing: doing.to_owned(), source: std::io::Error::other(said) }
}

/// Whether `rbd` takes the name for itself in `--pool` and `--image`: with one of these characters
/// in it, it would mean something else. Nothing in a cluster of PVC is called so.
pub(crate) fn is_addressable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '@', '\0'])
}

pub(crate) fn pool_arg(pool: &PoolName) -> String {
    format!("--pool={pool}")
}

pub(crate) fn image_args(volume: &VolumeId) -> Vec<String> {
    vec![pool_arg(&volume.pool), format!("--image={}", volume.volume)]
}

pub(crate) fn target_args(pool: &PoolName, name: &VolumeName) -> Vec<String> {
    vec![format!("--dest-pool={pool}"), format!("--dest={name}")]
}

impl Programs {
    pub fn new(exec: Arc<dyn Exec>, options: CephOptions) -> Self {
        Programs { exec, options, course: None }
    }

    /// The same, which say on this course how far they are on their way through a volume.
    pub fn on_course(&self, course: &Course) -> Self {
        let (exec, options) = (self.exec.clone(), self.options.clone());
        Programs { exec, options, course: Some(course.clone()) }
    }

    /// Whether somebody waits to be told how far they are.
    pub fn are_on_course(&self) -> bool {
        self.course.is_some()
    }

    pub fn options(&self) -> &CephOptions {
        &self.options
    }

    /// Has `rbd` look at something, and returns what it printed.
    pub async fn look(
        &self,
        words: &[&str],
        args: Vec<String>,
        deadline: Duration,
    ) -> Result<Vec<u8>, Failure> {
        require_one_of(&READ, words);
        self.run("rbd", self.args(words, args), Vec::new(), None, deadline).await
    }

    /// Has `rbd` write what goes through `bytes` of a volume on this course, and end at once when
    /// that is to stop.
    pub async fn write_on_course(
        &self,
        permit: &WritePermit,
        words: &[&str],
        args: Vec<String>,
        bytes: u64,
        course: &Course,
    ) -> Result<(), Failure> {
        let programs = self.on_course(course);
        tokio::select! {
            biased;
            () = course.stopped() => Err(Failure::Stopped),
            done = programs.write_through(permit, words, args, bytes, long(bytes)) => done,
        }
    }

    /// Has `rbd` write what goes through `bytes` of a volume and is not stopped.
    pub async fn write_through(
        &self,
        permit: &WritePermit,
        words: &[&str],
        args: Vec<String>,
        bytes: u64,
        deadline: Duration,
    ) -> Result<(), Failure> {
        require_of(permit, &args);
        self.go_through(words, args, bytes, deadline).await
    }

    /// Has `rbd` take away what goes through `bytes` of a volume.
    pub async fn remove_through(
        &self,
        words: &[&str],
        args: Vec<String>,
        bytes: u64,
        deadline: Duration,
    ) -> Result<(), Failure> {
        require_one_of(&REMOVE, words);
        self.go_through(words, args, bytes, deadline).await
    }

    /// Runs `rbd`; the course, if there is one, is as far as that says it is on its way through
    /// `bytes`.
    async fn go_through(
        &self,
        words: &[&str],
        args: Vec<String>,
        bytes: u64,
        deadline: Duration,
    ) -> Result<(), Failure> {
        let args = self.args(words, args);
        let Some(course) = &self.course else {
            return self.run("rbd", args, Vec::new(), None, deadline).await.map(drop);
        };
        course.announce(bytes);
        let on_stderr = |piece: &[u8]| {
            if let Some(percent) = percent(piece) {
                course.reach(part(bytes, percent));
            }
        };
        let program = "rbd".to_owned();
        let command = Command { program, args, env: Vec::new(), stdin: None, deadline };
        output("rbd", self.exec.run_with_stderr(command, &on_stderr).await).map(drop)
    }

    /// The same with times in UTC, which `rbd` prints without saying of which zone they are.
    pub async fn look_in_utc(
        &self,
        words: &[&str],
        args: Vec<String>,
        deadline: Duration,
    ) -> Result<Vec<u8>, Failure> {
        require_one_of(&READ, words);
        let env = vec![("TZ".to_owned(), "UTC".to_owned())];
        self.run("rbd", self.args(words, args), env, None, deadline).await
    }

    /// Has `rbd` take something away.
    pub async fn remove(
        &self,
        words: &[&str],
        args: Vec<String>,
        deadline: Duration,
    ) -> Result<(), Failure> {
        require_one_of(&REMOVE, words);
        let done = self.run("rbd", self.args(words, args), Vec::new(), None, deadline).await;
        done.map(drop)
    }

    /// Has `rbd` write something.
    pub async fn write(
        &self,
        permit: &WritePermit,
        words: &[&str],
        args: Vec<String>,
        deadline: Duration,
    ) -> Result<(), Failure> {
        require_of(permit, &args);
        let done = self.run("rbd", self.args(words, args), Vec::new(), None, deadline).await;
        done.map(drop)
    }

    /// Has `rados` look at an object of a pool, and returns what it printed.
    pub async fn look_at_object(
        &self,
        pool: &PoolName,
        words: &[&str],
    ) -> Result<Vec<u8>, Failure> {
        require_one_of(&READ, words);
        self.rados(pool, words, None).await
    }

    /// Has `rados` take away an object, or something of it.
    pub async fn remove_object(&self, pool: &PoolName, words: &[&str]) -> Result<(), Failure> {
        require_one_of(&REMOVE, words);
        self.rados(pool, words, None).await.map(drop)
    }

    /// Has `rados` write an object.
    pub async fn write_object(
        &self,
        permit: &WritePermit,
        words: &[&str],
        input: Vec<u8>,
    ) -> Result<(), Failure> {
        self.rados(permit.pool(), words, Some(input)).await.map(drop)
    }

    async fn rados(
        &self,
        pool: &PoolName,
        words: &[&str],
        input: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, Failure> {
        let args = self.args(words, vec![pool_arg(pool)]);
        self.run("rados", args, Vec::new(), input, long(0)).await
    }

    /// Starts `rbd`, whose output is to be taken by and by.
    pub fn look_piped(&self, words: &[&str], args: Vec<String>) -> Result<Piped, Failure> {
        require_one_of(&READ, words);
        Piped::start("rbd", self.args(words, args), Pipe::Output)
    }

    /// Starts `rbd`, which is to be given by and by what it writes.
    pub fn write_piped(
        &self,
        permit: &WritePermit,
        words: &[&str],
        args: Vec<String>,
    ) -> Result<Piped, Failure> {
        require_of(permit, &args);
        Piped::start("rbd", self.args(words, args), Pipe::Input)
    }

    /// The arguments with those that say who we are.
    fn args(&self, words: &[&str], args: Vec<String>) -> Vec<String> {
        let who = [
            format!("--conf={}", self.options.config.display()),
            format!("--keyring={}", self.options.keyring.display()),
            format!("--id={}", self.options.user),
        ];
        words.iter().map(|word| (*word).to_owned()).chain(args).chain(who).collect()
    }

    async fn run(
        &self,
        program: &str,
        args: Vec<String>,
        env: Vec<(String, String)>,
        stdin: Option<Vec<u8>>,
        deadline: Duration,
    ) -> Result<Vec<u8>, Failure> {
        let command = Command { program: program.to_owned(), args, env, stdin, deadline };
        output(program, self.exec.run(command).await)
    }
}

/// Output of the program, if it has ended well.
fn output(program: &str, ended: Result<Output, ExecError>) -> Result<Vec<u8>, Failure> {
    match ended {
        Ok(output) if output.code == Some(0) => Ok(output.stdout),
        Ok(output) => Err(failure(program, output.code, &String::from_utf8_lossy(&output.stderr))),
        Err(ExecError::TimedOut { deadline, .. }) => {
            Err(Failure::TimedOut { seconds: deadline.as_secs() })
        }
        Err(error) => Err(Failure::Other(with_cause(&error))),
    }
}

/// The last percentage in a piece of `rbd`'s progress: `Image copy: 41% complete...`.
fn percent(piece: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(piece);
    let before = text.rsplit_once("% complete")?.0;
    let start = before.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    before.get(start..)?.parse().ok().filter(|percent| *percent <= 100)
}

/// Part of `bytes` that is so many percent.
fn part(bytes: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap_or(bytes)
}

fn with_cause(error: &ExecError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// `rbd` ends with the number of the error it met.
pub(crate) fn failure(program: &str, code: Option<i32>, stderr: &str) -> Failure {
    if program == "rados" {
        let missing = |line: &str| line.ends_with(NO_OBJECT);
        let of_object = |line: &str| OF_OBJECTS.iter().any(|begin| line.starts_with(begin));
        let mut lines = stderr.lines().map(str::trim).filter(|line| missing(line));
        return match lines.find(|line| line.starts_with(NO_POOL) || of_object(line)) {
            Some(line) => Failure::NotFound { pool: line.starts_with(NO_POOL) },
            None => Failure::Other(said(program, code, stderr)),
        };
    }
    match code {
        Some(NOT_FOUND) if program == "rbd" && stderr.contains(NO_CLUSTER) => {
            Failure::Other(said(program, code, stderr))
        }
        Some(NOT_FOUND) if program == "rbd" => {
            Failure::NotFound { pool: stderr.contains("opening pool") }
        }
        Some(BUSY) if program == "rbd" => Failure::Busy,
        Some(NOT_EMPTY) if program == "rbd" => Failure::NotEmpty,
        Some(UNCLEAN) if program == "rbd" => Failure::NotMoved,
        Some(EXISTS) if program == "rbd" => Failure::Exists,
        Some(NO_SPACE | QUOTA) if program == "rbd" => Failure::Full,
        _ => Failure::Other(said(program, code, stderr)),
    }
}

/// Last words of a program about itself. Between its own lines stand progress bars and the
/// library's log.
fn said(program: &str, code: Option<i32>, stderr: &str) -> String {
    let own = format!("{program}: ");
    let mut lines = stderr.split(['\n', '\r']).map(str::trim).filter(|line| !line.is_empty());
    let last_own = lines.clone().rfind(|line| line.starts_with(&own));
    match (last_own.or_else(|| lines.next_back()), code) {
        (Some(line), _) => line.trim_start_matches(&own).to_owned(),
        (None, Some(code)) => format!("`{program}` ended with status {code}"),
        (None, None) => format!("`{program}` was ended by a signal"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rbd_says_is_found_between_its_progress() {
        let stderr = "Image copy: 0% complete...\rImage copy: 41% complete...failed.\nrbd: copy \
                      failed: (5) Input/output error\n2026-11-20T13:54:09 7ff5 -1 noise\n";
        assert_eq!(said("rbd", Some(5), stderr), "copy failed: (5) Input/output error");
        assert_eq!(said("rbd", Some(1), "2026 noise\n"), "2026 noise");
        assert_eq!(said("rbd", Some(1), ""), "`rbd` ended with status 1");
        assert_eq!(said("rbd", None, " \r\n"), "`rbd` was ended by a signal");
    }

    #[test]
    fn the_progress_of_rbd_is_the_last_percentage_that_it_prints() {
        for (piece, expected) in [
            ("\rImage copy: 0% complete...\rImage copy: 41% complete...", Some(41)),
            ("\rImage flatten: 100% complete...done.\n", Some(100)),
            ("7% complete", Some(7)),
            ("Image copy: 4", None),
            ("% complete...", None),
            ("ü% complete", None),
            ("999% complete", None),
            ("rbd: copy failed: (5) Input/output error", None),
            ("", None),
        ] {
            assert_eq!(percent(piece.as_bytes()), expected, "{piece}");
        }
        assert_eq!((part(200, 41), part(u64::MAX, 100), part(0, 7)), (82, u64::MAX, 0));
    }

    #[test]
    fn the_exit_status_of_rbd_is_an_error_number() {
        let of = |code, stderr| failure("rbd", Some(code), stderr);
        assert!(matches!(
            of(2, "rbd: error opening image x: (2) No such"),
            Failure::NotFound { pool: false }
        ));
        assert!(matches!(
            of(2, "rbd: error opening pool 'x': (2) No"),
            Failure::NotFound { pool: true }
        ));
        assert!(matches!(of(16, ""), Failure::Busy));
        assert!(matches!(of(17, ""), Failure::Exists));
        assert!(matches!((of(28, ""), of(122, "")), (Failure::Full, Failure::Full)));
        assert!(matches!(failure("qemu-img", Some(2), "no"), Failure::Other(_)));
    }

    #[test]
    fn a_deadline_grows_with_the_volume() {
        assert_eq!(long(0), Duration::from_secs(300));
        assert_eq!(long(4 << 30), Duration::from_secs(300 + 1024));
    }
}
