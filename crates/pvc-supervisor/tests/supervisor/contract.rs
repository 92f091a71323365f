//! Real programs that are kept running.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pvc_linux::{LinuxExec, LinuxFiles, LinuxPrograms, SystemClock};
use pvc_ports::{Command, FileAccess, ProgramSignal};
use pvc_supervisor::{
    ConfigFile, ProgramSpec, ProgramState, Ready, Reload, Stop, Supervisor, SupervisorPorts, Wanted,
};
use tokio_util::sync::CancellationToken;

/// Copies its configuration to `shown` when it starts, and again when it is hung up.
const SCRIPT: &str = "
show() { cat \"$0/conf\" > \"$0/shown.new\" && mv \"$0/shown.new\" \"$0/shown\"; }
trap show HUP
show
while :; do sleep 600 & wait $!; done";

fn spec(directory: &Path, contents: &str) -> ProgramSpec {
    let shown = directory.join("shown");
    let command = |program: &str, arg: &Path| Command {
        program: program.to_owned(),
        args: vec![arg.display().to_string()],
        env: Vec::new(),
        stdin: None,
        deadline: Duration::from_secs(10),
    };
    let file = ConfigFile { contents: contents.as_bytes().to_vec(), access: FileAccess::PRIVATE };
    ProgramSpec {
        program: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), SCRIPT.to_owned(), directory.display().to_string()],
        env: vec![("TOKEN".to_owned(), directory.display().to_string())],
        files: [(directory.join("conf"), file)].into(),
        reload: Reload::Signal(ProgramSignal::Hangup),
        ready: Ready::When { command: command("cat", &shown), within: Duration::from_secs(30) },
        stop: Stop::default(),
    }
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it did not come true in 30 s: {what}");
}

fn processes_of(token: &Path) -> BTreeSet<u32> {
    let entry = format!("TOKEN={}", token.display()).into_bytes();
    let says_so = |process: &std::fs::DirEntry| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|said| said == entry)
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(says_so);
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_program_is_started_reloaded_started_again_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let shows = |wanted: &str| {
        std::fs::read_to_string(directory.join("shown")).is_ok_and(|shown| shown == wanted)
    };
    let supervisor = Arc::new(Supervisor::new(SupervisorPorts {
        programs: Arc::new(
            LinuxPrograms::new(&directory.display().to_string(), directory).unwrap(),
        ),
        files: Arc::new(LinuxFiles),
        exec: Arc::new(LinuxExec),
        clock: Arc::new(SystemClock),
    }));
    let shutdown = CancellationToken::new();
    let task = {
        let (supervisor, shutdown) = (supervisor.clone(), shutdown.clone());
        tokio::spawn(async move { supervisor.run(shutdown).await })
    };
    let states = supervisor.states();
    let pid = || match states.borrow().get("shown") {
        Some(ProgramState::Ready { pid }) => Some(*pid),
        _ => None,
    };
    let want = |contents| supervisor.want([("shown".to_owned(), spec(directory, contents))].into());

    want("one");
    eventually("it is ready", || pid().is_some() && shows("one")).await;
    let first = pid().unwrap();
    want("two");
    eventually("it has read its files again", || shows("two")).await;
    assert_eq!(pid(), Some(first), "it was not started anew");
    let of_the_first = processes_of(directory);

    let process = nix::unistd::Pid::from_raw(first.cast_signed());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).unwrap();
    eventually("it runs again", || pid().is_some_and(|pid| pid != first)).await;
    let left: BTreeSet<u32> = &processes_of(directory) & &of_the_first;
    assert_eq!(left, BTreeSet::new(), "of the first's");
    eventually("a shell and its `sleep` are all", || processes_of(directory).len() == 2).await;

    supervisor.want(Wanted::new());
    eventually("it is gone", || states.borrow().is_empty()).await;
    assert_eq!(processes_of(directory), BTreeSet::new());
    assert!(!directory.join("conf").exists());

    want("three");
    eventually("it is ready", || pid().is_some() && shows("three")).await;
    shutdown.cancel();
    task.await.unwrap();
    assert_eq!(processes_of(directory), BTreeSet::new());
}
