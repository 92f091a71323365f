//! Programs that are kept running, on doubles and in paused time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pvc_ports::{Clock as _, Command, ExecError, FileAccess, Output, ProgramEnd, ProgramSignal};
use pvc_supervisor::{
    ConfigFile, ProgramSpec, ProgramState, Ready, Reload, Stop, Supervisor, SupervisorPorts, Wanted,
};
use pvc_testkit::{
    MemoryFiles, ProgramCall, ProgramManner, ScriptedExec, ScriptedPrograms, TokioClock,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const DNSMASQ: &str = "/usr/sbin/dnsmasq";
const CONF: &str = "/run/pvc/dnsmasq/1001.conf";

struct World {
    programs: ScriptedPrograms,
    files: Arc<MemoryFiles>,
    /// Whether the command that asks or tells a program something succeeds.
    answers: Arc<AtomicBool>,
    exec: Arc<ScriptedExec>,
    clock: Arc<TokioClock>,
    supervisor: Arc<Supervisor>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

fn world() -> World {
    world_with(ScriptedPrograms::new())
}

fn world_with(programs: ScriptedPrograms) -> World {
    let (files, clock) = (Arc::new(MemoryFiles::new()), Arc::new(TokioClock::new()));
    let answers = Arc::new(AtomicBool::new(true));
    let answering = answers.clone();
    let exec = Arc::new(ScriptedExec::new(move |command| {
        match (command.program.as_str(), answering.load(Ordering::Relaxed)) {
            ("panic", _) => panic!("a bug"),
            ("ask", true) => Ok(ScriptedExec::success("")),
            ("ask", false) => {
                let stderr = b"\nnobody listens\nat all\n".to_vec();
                Ok(Output { code: Some(1), stdout: Vec::new(), stderr })
            }
            (program, _) => Err(ExecError::Missing { program: program.to_owned() }),
        }
    }));
    let supervisor = Arc::new(Supervisor::new(SupervisorPorts {
        programs: Arc::new(programs.clone()),
        files: files.clone(),
        exec: exec.clone(),
        clock: clock.clone(),
    }));
    let shutdown = CancellationToken::new();
    let (works, until) = (supervisor.clone(), shutdown.clone());
    let task = tokio::spawn(async move { works.run(until).await });
    World { programs, files, answers, exec, clock, supervisor, shutdown, task }
}

fn ask() -> Command {
    let (args, env) = (Vec::new(), Vec::new());
    let deadline = Duration::from_secs(1);
    Command { program: "ask".to_owned(), args, env, stdin: None, deadline }
}

fn dnsmasq(contents: &str) -> ProgramSpec {
    let file = ConfigFile { contents: contents.as_bytes().to_vec(), access: FileAccess::PRIVATE };
    ProgramSpec {
        program: DNSMASQ.to_owned(),
        args: vec!["--keep-in-foreground".to_owned()],
        env: Vec::new(),
        files: [(CONF.into(), file)].into(),
        reload: Reload::Signal(ProgramSignal::Hangup),
        ready: Ready::AtOnce,
        stop: Stop::default(),
    }
}

impl World {
    fn want(&self, spec: ProgramSpec) {
        self.supervisor.want([("dns".to_owned(), spec)].into());
    }

    /// Waits until the program is in such a state, or has none (`None`) because it is gone.
    async fn until(&self, what: &str, is_so: impl Fn(Option<&ProgramState>) -> bool) {
        let mut states = self.supervisor.states();
        let so = states.wait_for(|states| is_so(states.get("dns")));
        let long = Duration::from_secs(3600);
        let waited = tokio::time::timeout(long, so).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.supervisor.states().borrow().clone());
    }

    async fn until_ready(&self) {
        self.until("it is ready", |state| matches!(state, Some(ProgramState::Ready { .. }))).await;
    }

    async fn until_failed(&self, wanted: &str) -> u32 {
        let failed = |state: Option<&ProgramState>| match state {
            Some(ProgramState::Failed { why, times }) if why.contains(wanted) => Some(*times),
            _ => None,
        };
        self.until("it has failed", |state| failed(state).is_some()).await;
        failed(self.supervisor.states().borrow().get("dns")).unwrap_or(0)
    }

    async fn until_started(&self, count: usize) {
        for _ in 0..10_000 {
            if self.started() >= count {
                return;
            }
            self.clock.sleep(Duration::from_millis(10)).await;
        }
        panic!("it was started {} times", self.started());
    }

    async fn until_gone(&self) {
        self.until("it is gone", |state| state.is_none()).await;
        assert_eq!(self.programs.processes(), 0);
    }

    async fn pass(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    fn started(&self) -> usize {
        let is_start = |call: &&ProgramCall| matches!(call, ProgramCall::Started(_));
        self.programs.calls().iter().filter(is_start).count()
    }

    fn conf(&self) -> Option<String> {
        self.files.contents(Path::new(CONF)).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
        assert_eq!(self.programs.processes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wanted_program_runs_on_its_files_and_goes_with_them() {
    let world = world();
    world.want(dnsmasq("one"));
    world.until_ready().await;
    assert_eq!(world.conf().as_deref(), Some("one"));
    let running = world.programs.running();
    assert_eq!((running.len(), running[0].args.len()), (1, 1), "{running:?}");
    world.want(dnsmasq("one"));
    world.pass(60).await;
    assert_eq!(world.started(), 1, "what is wanted already is not done again");
    world.supervisor.want(Wanted::new());
    world.until_gone().await;
    assert_eq!(world.conf(), None);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_other_files_reload_and_anything_else_restarts() {
    let world = world();
    world.want(dnsmasq("one"));
    world.until_ready().await;
    world.want(dnsmasq("two"));
    world.pass(1).await;
    let hangup = ProgramCall::Signalled("dns".to_owned(), ProgramSignal::Hangup);
    assert!(world.programs.calls().contains(&hangup));
    assert_eq!((world.conf().as_deref(), world.started()), (Some("two"), 1));
    let mut other = dnsmasq("two");
    other.files = [("/run/pvc/other.conf".into(), other.files[Path::new(CONF)].clone())].into();
    world.want(other.clone());
    world.pass(1).await;
    assert_eq!((world.conf(), world.started()), (None, 1), "the file is not wanted any more");
    other.args.push("--log-dhcp".to_owned());
    world.want(other);
    world.pass(1).await;
    world.until_ready().await;
    assert_eq!((world.started(), world.programs.running().len()), (2, 1));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_reloaded_by_its_command_is_started_anew() {
    let world = world();
    let by_command = |contents| ProgramSpec { reload: Reload::Command(ask()), ..dnsmasq(contents) };
    world.want(by_command("one"));
    world.until_ready().await;
    world.want(by_command("two"));
    world.pass(1).await;
    assert_eq!((world.exec.ran().len(), world.started()), (1, 1));
    world.answers.store(false, Ordering::Relaxed);
    world.want(by_command("three"));
    world.until_started(2).await;
    world.until_ready().await;
    assert_eq!(world.conf().as_deref(), Some("three"));
    assert_eq!(world.programs.running().len(), 1, "the one that could not be hangups has ended");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_goes_on_with_its_old_files_while_new_ones_cannot_be_written() {
    let world = world();
    world.want(dnsmasq("one"));
    world.until_ready().await;
    world.files.set_full(true);
    world.want(dnsmasq("two"));
    world.until_failed("there is no space left").await;
    let asked = world.clock.monotonic();
    while world.until_failed("there is no space left").await < 4 {
        world.clock.sleep(Duration::from_millis(100)).await;
    }
    let took = (world.clock.monotonic() - asked).as_secs();
    assert!((14..17).contains(&took), "at once, and then after 5 s and 10 s: {took} s");
    assert_eq!((world.started(), world.programs.running().len()), (1, 1));
    assert_eq!(world.conf().as_deref(), Some("one"));
    let hangup = ProgramCall::Signalled("dns".to_owned(), ProgramSignal::Hangup);
    let hangups = || world.programs.calls().iter().filter(|call| **call == hangup).count();
    assert_eq!(hangups(), 0);
    world.files.set_full(false);
    world.until_ready().await;
    assert_eq!((world.conf().as_deref(), hangups(), world.started()), (Some("two"), 1, 1));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_is_not_stopped_for_files_that_cannot_be_written() {
    let world = world();
    world.want(dnsmasq("one"));
    world.until_ready().await;
    world.files.set_full(true);
    let mut other = dnsmasq("two");
    other.args.push("--log-dhcp".to_owned());
    world.want(other);
    while world.until_failed("there is no space left").await < 3 {
        world.clock.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((world.started(), world.programs.running().len()), (1, 1));
    assert_eq!(world.conf().as_deref(), Some("one"));
    world.files.set_full(false);
    world.until_started(2).await;
    world.until_ready().await;
    assert_eq!((world.conf().as_deref(), world.programs.running().len()), (Some("two"), 1));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_written_of_files_that_were_taken_back_goes() {
    let other = Path::new("/run/pvc/another.conf");
    let world = world();
    world.want(dnsmasq("one"));
    world.until_ready().await;
    world.files.set_refusing(|path| path == Path::new("/run/pvc/zone.conf"));
    let mut more = dnsmasq("two");
    for path in [other, Path::new("/run/pvc/zone.conf")] {
        more.files.insert(path.to_owned(), more.files[Path::new(CONF)].clone());
    }
    world.want(more.clone());
    world.until_failed("`/run/pvc/zone.conf` could not be used").await;
    assert!(world.files.contents(other).is_some());
    assert_eq!(world.conf().as_deref(), Some("two"));
    world.want(dnsmasq("one"));
    world.until_ready().await;
    assert_eq!((world.files.contents(other), world.conf().as_deref()), (None, Some("one")));
    world.want(more);
    world.until_failed("`/run/pvc/zone.conf` could not be used").await;
    world.supervisor.want(Wanted::new());
    world.until_gone().await;
    assert_eq!((world.files.contents(other), world.conf()), (None, None));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_dies_is_started_at_once_and_then_after_longer_and_longer() {
    let world = world();
    world.want(dnsmasq("one"));
    world.until_ready().await;
    let crashed = world.clock.monotonic();
    world.programs.crash("dns");
    world.until_started(2).await;
    assert!(world.clock.monotonic() - crashed < Duration::from_secs(2), "at once");
    for (times, pause) in [(2, 5), (3, 10), (4, 20)] {
        world.until_ready().await;
        world.programs.crash("dns");
        assert_eq!(world.until_failed("signal 11 ended it").await, times);
        let failed = world.clock.monotonic();
        world.until_ready().await;
        assert_eq!((world.clock.monotonic() - failed).as_secs(), pause);
    }
    world.pass(600).await;
    world.programs.crash("dns");
    world.pass(2).await;
    world.until_ready().await;
    assert_eq!(world.started(), 6, "it was well for long, and is started at once");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_not_waited_for_while_a_failed_program_rests() {
    let world = world();
    let manner = ProgramManner { ends: Some(ProgramEnd::Exited(2)), ..ProgramManner::default() };
    world.programs.set_manner(DNSMASQ, manner);
    world.want(dnsmasq("bad"));
    world.pass(100).await;
    let times = world.until_failed("it exited with status 2").await;
    assert!((3..8).contains(&times), "{times}");
    world.programs.set_manner(DNSMASQ, ProgramManner::default());
    let asked = world.clock.monotonic();
    world.want(dnsmasq("good"));
    world.until_ready().await;
    assert!(world.clock.monotonic() - asked < Duration::from_secs(2));
    world.programs.set_manner(DNSMASQ, ProgramManner { is_missing: true, ..Default::default() });
    world.programs.crash("dns");
    world.until_failed("`/usr/sbin/dnsmasq` is not installed").await;
    world.supervisor.want(Wanted::new());
    world.until_gone().await;
    assert_eq!(world.conf(), None, "the files of one that rests go, too");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_is_ready_when_its_probe_says_so_and_failed_when_it_never_does() {
    let world = world();
    world.answers.store(false, Ordering::Relaxed);
    let within = Duration::from_secs(30);
    world.want(ProgramSpec { ready: Ready::When { command: ask(), within }, ..dnsmasq("one") });
    world.pass(5).await;
    assert_eq!(world.programs.running().len(), 1);
    let state = world.supervisor.states().borrow().get("dns").cloned();
    assert_eq!(state, Some(ProgramState::Starting));
    world.until_failed("it was not ready within 30 s: `ask`: nobody listens").await;
    assert!(world.programs.running().is_empty(), "it was ended");
    world.answers.store(true, Ordering::Relaxed);
    world.until_ready().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_end_is_killed_with_what_it_started() {
    let world = world();
    let manner = ProgramManner { is_stubborn: true, children: 2, ..ProgramManner::default() };
    world.programs.set_manner(DNSMASQ, manner);
    world.want(dnsmasq("one"));
    world.until_ready().await;
    assert_eq!(world.programs.processes(), 3);
    let asked = world.clock.monotonic();
    world.supervisor.want(Wanted::new());
    world.until_gone().await;
    let took = (world.clock.monotonic() - asked).as_secs();
    assert!((5..8).contains(&took), "{took} s");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_program_that_cannot_run_keeps_no_other_from_running() {
    let world = world();
    world.files.set_refusing(|path| path == Path::new("/run/bad.conf"));
    let mut bad = dnsmasq("one");
    bad.files = [("/run/bad.conf".into(), bad.files[Path::new(CONF)].clone())].into();
    let good = ProgramSpec { program: "/usr/sbin/pdns_server".to_owned(), ..dnsmasq("two") };
    world.supervisor.want([("dns".to_owned(), bad), ("pdns".to_owned(), good)].into());
    world.until_failed("`/run/bad.conf` could not be used").await;
    let mut states = world.supervisor.states();
    let runs = states.wait_for(|states| matches!(states["pdns"], ProgramState::Ready { .. }));
    drop(runs.await.unwrap());
    world.files.set_refusing(|_| false);
    world.until_ready().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_daemon_has_left_is_ended_before_anything_starts() {
    let programs = ScriptedPrograms::new();
    programs.set_left_over(3);
    let world = world_with(programs);
    world.want(dnsmasq("one"));
    world.until_ready().await;
    let calls = world.programs.calls();
    assert_eq!(calls, [ProgramCall::LeftOverEnded(3), ProgramCall::Started("dns".to_owned())]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_beside_what_an_earlier_daemon_has_left_and_cannot_be_killed() {
    let programs = ScriptedPrograms::new();
    programs.set_left_over(3);
    programs.set_left_over_immortal(true);
    let world = world_with(programs);
    world.want(dnsmasq("one"));
    world.pass(60).await;
    let times = world.until_failed("3 processes of `an earlier daemon` are still there").await;
    assert!((3..8).contains(&times), "{times}");
    assert_eq!(world.started(), 0);
    world.programs.set_left_over_immortal(false);
    world.until_ready().await;
    let calls = world.programs.calls();
    assert_eq!(calls, [ProgramCall::LeftOverEnded(3), ProgramCall::Started("dns".to_owned())]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_killed_is_killed_again_before_the_next_one_starts() {
    let world = world();
    let immortal = ProgramManner { is_stubborn: true, is_immortal: true, ..Default::default() };
    world.programs.set_manner(DNSMASQ, immortal);
    world.want(dnsmasq("one"));
    world.until_ready().await;
    let mut other = dnsmasq("one");
    other.args.push("--log-dhcp".to_owned());
    world.want(other);
    world.pass(100).await;
    let times = world.until_failed("1 processes of `dns` are still there").await;
    assert!((3..8).contains(&times), "{times}");
    assert_eq!((world.started(), world.programs.processes()), (1, 1), "none runs beside it");
    world.supervisor.want(Wanted::new());
    world.pass(100).await;
    world.until_failed("1 processes of `dns` are still there").await;
    world.want(dnsmasq("one"));
    world.programs.set_manner(DNSMASQ, ProgramManner::default());
    world.programs.let_die("dns");
    world.until_ready().await;
    assert_eq!((world.started(), world.programs.processes()), (2, 1));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_daemon_does_not_wait_for_a_program_that_cannot_be_killed() {
    let world = world();
    let immortal = ProgramManner { is_stubborn: true, is_immortal: true, ..Default::default() };
    world.programs.set_manner(DNSMASQ, immortal);
    world.want(dnsmasq("one"));
    world.until_ready().await;
    let asked = world.clock.monotonic();
    world.shutdown.cancel();
    world.task.await.unwrap();
    assert!(world.clock.monotonic() - asked < Duration::from_secs(10));
    assert!(world.supervisor.states().borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_a_bug_has_ended_is_replaced_at_once_and_then_after_longer_and_longer() {
    let world = world();
    let bug = Command { program: "panic".to_owned(), ..ask() };
    let breaks =
        |contents| ProgramSpec { reload: Reload::Command(bug.clone()), ..dnsmasq(contents) };
    world.want(breaks("one"));
    world.until_ready().await;
    world.want(breaks("two"));
    world.until_started(2).await;
    world.until_ready().await;
    assert_eq!(world.programs.running().len(), 1, "the first has ended with its keeper");
    world.want(breaks("three"));
    assert_eq!(world.until_failed("a bug has ended what keeps it").await, 2);
    let failed = world.clock.monotonic();
    assert!(world.programs.running().is_empty());
    world.until_ready().await;
    assert_eq!((world.clock.monotonic() - failed).as_secs(), 5);
    assert_eq!((world.started(), world.conf().as_deref()), (3, Some("three")));

    let within = Duration::from_secs(30);
    let never = Ready::When { command: bug.clone(), within };
    world.want(ProgramSpec { args: Vec::new(), ready: never, ..dnsmasq("four") });
    world.pass(100).await;
    let started = world.started();
    assert!((5..10).contains(&started), "{started}");
    world.until_failed("a bug has ended what keeps it").await;
    world.supervisor.want(Wanted::new());
    world.until_gone().await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_wanted_again_while_it_stops_runs_again() {
    let world = world();
    let manner = ProgramManner { is_stubborn: true, ..ProgramManner::default() };
    world.programs.set_manner(DNSMASQ, manner);
    world.want(dnsmasq("one"));
    world.until_ready().await;
    world.supervisor.want(Wanted::new());
    world.until("it stops", |state| state == Some(&ProgramState::Stopping)).await;
    world.want(dnsmasq("one"));
    world.until_ready().await;
    assert_eq!((world.started(), world.programs.running().len()), (2, 1));
    assert_eq!(world.conf().as_deref(), Some("one"));
    world.stop().await;
}
