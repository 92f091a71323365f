//! Keeper of one program, from when it is wanted until it is wanted no more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::vm::backoff::Backoff;
use pvc_model::with_causes;
use pvc_ports::{Command, FileAccess, Program, RunningProgram};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::plan::{Step, step};
use crate::spec::{ProgramSpec, ProgramState, Ready, Reload};
use crate::talk::Talk;
use crate::{States, SupervisorPorts};

/// Time between two questions whether a program is ready.
const PROBE: Duration = Duration::from_millis(500);

/// Time for which the last lines of a program that has ended are read: what it has left behind may
/// hold its outputs open.
const LAST_LINES: Duration = Duration::from_secs(1);

pub struct Keeper {
    name: String,
    ports: SupervisorPorts,
    states: watch::Sender<States>,
    shutdown: CancellationToken,
}

/// State that one life of a program leaves to the next.
#[derive(Default)]
struct Past {
    /// Paths of the files that are there because a keeper has written them.
    written: BTreeSet<PathBuf>,
    /// A program that was killed, and whose processes were not all dead then.
    immortal: Option<Arc<dyn RunningProgram>>,
}

/// Reason why a life of a program is over.
enum Over {
    /// Ended by the keeper, because another specification or none is wanted now.
    Superseded,
    Failed(String),
}

/// Files that a running program is to read and that could not be written yet: it goes on with those
/// that it has read.
struct Unwritten {
    next: ProgramSpec,
    why: String,
    backoff: Backoff,
}

/// A program that runs.
struct Life {
    running: Arc<dyn RunningProgram>,
    is_ready: bool,
    unwritten: Option<Unwritten>,
}

impl Life {
    fn state(&self) -> ProgramState {
        match (&self.unwritten, self.is_ready) {
            (Some(Unwritten { why, backoff, .. }), _) => {
                ProgramState::Failed { why: why.clone(), times: backoff.failures() }
            }
            (None, true) => ProgramState::Ready { pid: self.running.pid() },
            (None, false) => ProgramState::Starting,
        }
    }

    /// Time until the files are to be tried again, if they are.
    fn due_in(&self, now: Duration) -> Option<Duration> {
        let Unwritten { backoff, .. } = self.unwritten.as_ref()?;
        Some(backoff.wait_until(now).unwrap_or(now).saturating_sub(now))
    }
}

impl Keeper {
    pub fn new(
        name: &str,
        ports: SupervisorPorts,
        states: watch::Sender<States>,
        shutdown: CancellationToken,
    ) -> Self {
        Keeper { name: name.to_owned(), ports, states, shutdown }
    }

    /// Keeps the program running as it is wanted, until it is wanted no more and nothing is left of
    /// it. After `shutdown` what does not die is left behind.
    pub async fn run(self, mut wanted: watch::Receiver<Option<ProgramSpec>>) {
        let (mut past, mut backoff) = (Past::default(), Backoff::default());
        loop {
            let is_over = self.shutdown.is_cancelled();
            let spec = wanted.borrow_and_update().clone().filter(|_| !is_over);
            self.remove_files(&mut past.written, spec.as_ref()).await;
            let begun = self.ports.clock.monotonic();
            let over = match (self.end_immortal(&mut past).await, spec) {
                (Ok(()), Some(spec)) => self.live(spec, &mut past, &mut wanted).await,
                (Ok(()), None) => break,
                (Err(_), None) if is_over => break,
                (Err(why), _) => Over::Failed(why),
            };
            match over {
                Over::Superseded => backoff.reset(),
                Over::Failed(why) => self.rest(&mut backoff, &mut wanted, begun, why).await,
            }
        }
        self.states.send_modify(|states| _ = states.remove(&self.name));
    }

    fn is(&self, state: ProgramState) {
        self.states.send_modify(|states| _ = states.insert(self.name.clone(), state));
    }

    /// Waits until the program is due again, or something else is wanted of it.
    async fn rest(
        &self,
        backoff: &mut Backoff,
        wanted: &mut watch::Receiver<Option<ProgramSpec>>,
        begun: Duration,
        why: String,
    ) {
        let now = self.ports.clock.monotonic();
        backoff.died(now, now.saturating_sub(begun));
        let times = backoff.failures();
        let wait = backoff.wait_until(now).unwrap_or(now).saturating_sub(now);
        let again = wait.as_secs();
        tracing::warn!(program = self.name, times, again_in_seconds = again, "{why}");
        self.is(ProgramState::Failed { why, times });
        tokio::select! {
            biased;
            _ = wanted.changed() => backoff.reset(),
            () = self.shutdown.cancelled() => {}
            () = self.ports.clock.sleep(wait) => {}
        }
    }

    /// Runs one life of the program, from its files to its end.
    async fn live(
        &self,
        mut spec: ProgramSpec,
        past: &mut Past,
        wanted: &mut watch::Receiver<Option<ProgramSpec>>,
    ) -> Over {
        self.is(ProgramState::Starting);
        if let Err(why) = self.write_files(&spec, &mut past.written).await {
            return Over::Failed(why);
        }
        let program = Program {
            name: self.name.clone(),
            program: spec.program.clone(),
            args: spec.args.clone(),
            env: spec.env.clone(),
        };
        let running = match self.ports.programs.start(&program).await {
            Ok(running) => running,
            Err(error) => return Over::Failed(with_causes(&error)),
        };
        tracing::info!(program = self.name, pid = running.pid(), "started");
        let mut talk = Talk::new(&self.name, self.ports.clock.monotonic());
        let probe = until_ready(&self.ports, spec.ready.clone());
        tokio::pin!(probe);
        let mut life = Life { running: running.clone(), is_ready: false, unwritten: None };
        let mut writes = true;
        loop {
            let due_in = life.due_in(self.ports.clock.monotonic());
            // The lines come last: there may be no end of them.
            let over = tokio::select! {
                biased;
                changed = wanted.changed() => {
                    let next = changed.ok().and_then(|()| wanted.borrow_and_update().clone());
                    self.change(&mut life, &mut spec, next, &mut past.written).await
                }
                end = running.ended() => {
                    self.last_lines(&running, &mut talk).await;
                    self.end_all(&running, past).await;
                    return Over::Failed(end.to_string());
                }
                () = self.ports.clock.sleep(due_in.unwrap_or_default()), if due_in.is_some() => {
                    let next = life.unwritten.as_ref().map(|unwritten| unwritten.next.clone());
                    self.change(&mut life, &mut spec, next, &mut past.written).await
                }
                ready = &mut probe, if !life.is_ready => match ready {
                    Ok(()) => {
                        life.is_ready = true;
                        self.is(life.state());
                        None
                    }
                    Err(why) => Some(Over::Failed(why)),
                },
                line = running.line(), if writes => {
                    match line {
                        Some(line) => talk.line(&line, self.ports.clock.monotonic()),
                        None => writes = false,
                    }
                    None
                }
            };
            if let Some(over) = over {
                self.stop(&running, &spec, &mut talk, past).await;
                return over;
            }
        }
    }

    /// Takes the program from `spec` to `next`, which `spec` is from then on. Returns why it has to
    /// be stopped, if it does.
    async fn change(
        &self,
        life: &mut Life,
        spec: &mut ProgramSpec,
        next: Option<ProgramSpec>,
        written: &mut BTreeSet<PathBuf>,
    ) -> Option<Over> {
        let next_step = step(spec, next.as_ref());
        let next = match (next_step, next) {
            (Step::Keep, Some(next)) if life.unwritten.is_none() => {
                *spec = next;
                return None;
            }
            // Of `Keep`, some of the files may be those that were wanted in between. A program that
            // has to be started anew is not stopped for files that cannot be written.
            (Step::Keep | Step::Reload | Step::Restart, Some(next)) => next,
            (_, None) | (Step::Stop, _) => return Some(Over::Superseded),
        };
        if let Err(why) = self.write_files(&next, written).await {
            self.put_off(life, next, why);
            return None;
        }
        if next_step == Step::Restart {
            return Some(Over::Superseded);
        }
        *spec = next;
        self.remove_files(written, Some(spec)).await;
        if let Err(why) = self.tell(&life.running, spec).await {
            return Some(Over::Failed(why));
        }
        if life.unwritten.take().is_some() {
            self.is(life.state());
        }
        None
    }

    /// Has the files of `next` tried again later. The program goes on as it is.
    fn put_off(&self, life: &mut Life, next: ProgramSpec, why: String) {
        let mut backoff = life.unwritten.take().map(|before| before.backoff).unwrap_or_default();
        let now = self.ports.clock.monotonic();
        backoff.died(now, Duration::ZERO);
        let times = backoff.failures();
        tracing::warn!(program = self.name, times, "it goes on with its old files: {why}");
        life.unwritten = Some(Unwritten { next, why, backoff });
        self.is(life.state());
    }

    /// Writes the files of a program, and adds to `written` those that are there.
    async fn write_files(
        &self,
        spec: &ProgramSpec,
        written: &mut BTreeSet<PathBuf>,
    ) -> Result<(), String> {
        let files = &self.ports.files;
        for (path, file) in &spec.files {
            let write = async {
                let directory = path.parent().unwrap_or(Path::new("/"));
                if directory.file_name().is_some() {
                    files.create_directory(directory, &FileAccess::PUBLIC_DIRECTORY).await?;
                }
                files.replace(path, &file.contents, &file.access).await
            };
            write.await.map_err(|error| with_causes(&error))?;
            written.insert(path.clone());
        }
        Ok(())
    }

    /// Removes the files that are wanted no more. One that cannot be removed is tried again at the
    /// next change.
    async fn remove_files(&self, written: &mut BTreeSet<PathBuf>, wanted: Option<&ProgramSpec>) {
        let is_wanted = |path: &Path| wanted.is_some_and(|wanted| wanted.files.contains_key(path));
        let stale: Vec<PathBuf> = written.iter().filter(|path| !is_wanted(path)).cloned().collect();
        for path in stale {
            match self.ports.files.remove(&path).await {
                Ok(()) => _ = written.remove(&path),
                Err(error) => {
                    tracing::warn!(
                        program = self.name,
                        error = with_causes(&error),
                        "a file stays"
                    );
                }
            }
        }
    }

    /// Has the program read its files again.
    async fn tell(
        &self,
        running: &Arc<dyn RunningProgram>,
        spec: &ProgramSpec,
    ) -> Result<(), String> {
        tracing::info!(program = self.name, "its files have changed; it reads them again");
        match &spec.reload {
            Reload::Signal(signal) => {
                running.signal(*signal);
                Ok(())
            }
            Reload::Command(command) => succeed(&self.ports, command.clone())
                .await
                .map_err(|why| format!("it could not be made to read its files again: {why}")),
            Reload::Restart => Ok(()),
        }
    }

    /// Asks the program to end, and kills what is still there when its time is over.
    async fn stop(
        &self,
        running: &Arc<dyn RunningProgram>,
        spec: &ProgramSpec,
        talk: &mut Talk,
        past: &mut Past,
    ) {
        self.is(ProgramState::Stopping);
        running.signal(spec.stop.signal);
        let clock = &self.ports.clock;
        let over = clock.sleep(spec.stop.within);
        tokio::pin!(over);
        let mut writes = true;
        loop {
            tokio::select! {
                biased;
                end = running.ended() => {
                    tracing::info!(program = self.name, "stopped: {end}");
                    break;
                }
                () = &mut over => {
                    let seconds = spec.stop.within.as_secs();
                    tracing::warn!(program = self.name, seconds, "it does not end, and is killed");
                    break;
                }
                line = running.line(), if writes => match line {
                    Some(line) => talk.line(&line, clock.monotonic()),
                    None => writes = false,
                },
            }
        }
        self.end_all(running, past).await;
        self.last_lines(running, talk).await;
    }

    /// Kills all that the program has started, and remembers it if it does not die.
    async fn end_all(&self, running: &Arc<dyn RunningProgram>, past: &mut Past) {
        past.immortal = Some(running.clone());
        if let Err(why) = self.end_immortal(past).await {
            tracing::error!(program = self.name, "it does not die: {why}");
        }
    }

    /// Kills again what did not die: another instance must not run beside it.
    async fn end_immortal(&self, past: &mut Past) -> Result<(), String> {
        if let Some(running) = &past.immortal {
            running.kill().await.map_err(|error| with_causes(&error))?;
        }
        past.immortal = None;
        Ok(())
    }

    async fn last_lines(&self, running: &Arc<dyn RunningProgram>, talk: &mut Talk) {
        let clock = &self.ports.clock;
        let over = clock.sleep(LAST_LINES);
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return,
                line = running.line() => match line {
                    Some(line) => talk.line(&line, clock.monotonic()),
                    None => return,
                },
            }
        }
    }
}

/// Returns when the program is ready, or why it is not in time.
async fn until_ready(ports: &SupervisorPorts, ready: Ready) -> Result<(), String> {
    let Ready::When { command, within } = ready else { return Ok(()) };
    let until = ports.clock.monotonic() + within;
    loop {
        let why = match succeed(ports, command.clone()).await {
            Ok(()) => return Ok(()),
            Err(why) => why,
        };
        if ports.clock.monotonic() >= until {
            return Err(format!("it was not ready within {} s: {why}", within.as_secs()));
        }
        ports.clock.sleep(PROBE).await;
    }
}

/// Runs a command that is to exit with status 0.
async fn succeed(ports: &SupervisorPorts, command: Command) -> Result<(), String> {
    let program = command.program.clone();
    let done = ports.exec.run(command).await.map_err(|error| with_causes(&error))?;
    done.success().map_err(|why| format!("`{program}`: {why}"))
}
