use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use pvc_ports::{Program, ProgramEnd, ProgramSignal, Programs, ProgramsError, RunningProgram};
use tokio::sync::{Notify, watch};

/// Number of lines that wait for whoever takes them.
const WAITING_LINES: usize = 1000;

/// Behaviour of a program that is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramManner {
    /// Lines that it writes at once.
    pub says: Vec<String>,
    /// Line that it writes each time it receives SIGHUP.
    pub says_when_hung_up: Option<String>,
    /// End that it comes to at once; `None`: it goes on.
    pub ends: Option<ProgramEnd>,
    /// Whether it goes on after SIGTERM.
    pub is_stubborn: bool,
    /// Number of processes that it starts and that leave its group.
    pub children: usize,
    /// Its executable file does not exist.
    pub is_missing: bool,
    /// Its processes survive being killed, until they are [let die](ScriptedPrograms::let_die).
    pub is_immortal: bool,
}

/// Call that somebody made, with the name of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramCall {
    Started(String),
    Signalled(String, ProgramSignal),
    Killed(String),
    /// Number of processes that were ended.
    LeftOverEnded(usize),
}

#[derive(Default)]
struct Inner {
    manners: BTreeMap<String, ProgramManner>,
    running: Vec<Arc<Played>>,
    calls: Vec<ProgramCall>,
    left_over: usize,
    left_over_is_immortal: bool,
    next_pid: u32,
}

/// A machine's programs, played: what each of them does is set by the path of its file.
#[derive(Default, Clone)]
pub struct ScriptedPrograms {
    inner: Arc<Mutex<Inner>>,
}

impl ScriptedPrograms {
    /// Every program runs until it is ended, and writes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the behaviour of programs of this file that are started from now on.
    pub fn set_manner(&self, program: &str, manner: ProgramManner) {
        self.inner().manners.insert(program.to_owned(), manner);
    }

    /// Ends every running program of this name, as a bug of its own does.
    pub fn crash(&self, name: &str) {
        for played in self.inner().running.iter().filter(|played| played.program.name == name) {
            played.end(ProgramEnd::Killed(11));
        }
    }

    /// The daemon that has started what runs now is killed: it runs on, and is left over.
    pub fn leave_behind(&self) {
        self.inner().running.iter().for_each(|played| played.state().is_left_over = true);
    }

    /// The machine loses its power: no process is left, not even one that could not be killed.
    pub fn lose_power(&self) {
        let mut inner = self.inner();
        (inner.left_over, inner.left_over_is_immortal) = (0, false);
        inner.running.drain(..).for_each(|played| played.die());
    }

    /// Sets the number of processes that an earlier daemon has left behind.
    pub fn set_left_over(&self, count: usize) {
        self.inner().left_over = count;
    }

    /// While set, what an earlier daemon has left behind survives being killed.
    pub fn set_left_over_immortal(&self, is_immortal: bool) {
        self.inner().left_over_is_immortal = is_immortal;
    }

    /// From now on every running program of this name dies when it is killed.
    pub fn let_die(&self, name: &str) {
        for played in self.inner().running.iter().filter(|played| played.program.name == name) {
            played.state().is_immortal = false;
        }
    }

    /// Returns the calls that were made, in order.
    pub fn calls(&self) -> Vec<ProgramCall> {
        self.inner().calls.clone()
    }

    /// The programs that run now, as they were started.
    pub fn running(&self) -> Vec<Program> {
        let inner = self.inner();
        let runs = inner.running.iter().filter(|played| played.end.borrow().is_none());
        runs.map(|played| played.program.clone()).collect()
    }

    /// Number of processes of all programs.
    pub fn processes(&self) -> usize {
        self.inner().running.iter().map(|played| played.processes()).sum()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while holding it")
    }
}

struct Lines {
    waiting: VecDeque<String>,
    left_out: u64,
    children: usize,
    is_immortal: bool,
    /// Whether the daemon that has started it is no more.
    is_left_over: bool,
}

struct Played {
    program: Program,
    manner: ProgramManner,
    pid: u32,
    end: watch::Sender<Option<ProgramEnd>>,
    lines: Mutex<Lines>,
    news: Notify,
}

impl Played {
    fn state(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().expect("no test panics while holding it")
    }

    fn say(&self, line: &str) {
        let mut lines = self.state();
        match lines.waiting.len() < WAITING_LINES {
            true => lines.waiting.push_back(line.to_owned()),
            false => lines.left_out += 1,
        }
        drop(lines);
        self.news.notify_one();
    }

    fn end(&self, how: ProgramEnd) {
        self.end.send_if_modified(|end| match end {
            Some(_) => false,
            None => {
                *end = Some(how);
                true
            }
        });
        self.news.notify_one();
    }

    /// All of its processes die.
    fn die(&self) {
        self.state().children = 0;
        self.end(ProgramEnd::Killed(9));
    }

    fn processes(&self) -> usize {
        usize::from(self.end.borrow().is_none()) + self.state().children
    }

    /// The next line, or whether there will be more.
    fn next_line(&self) -> Result<String, bool> {
        let mut lines = self.state();
        if let Some(line) = lines.waiting.pop_front() {
            return Ok(line);
        }
        match std::mem::take(&mut lines.left_out) {
            0 => Err(self.end.borrow().is_none() || lines.children > 0),
            count => Ok(format!("({count} lines were left out)")),
        }
    }
}

/// Handle of a program, for whoever started it.
struct Held {
    played: Arc<Played>,
    inner: Arc<Mutex<Inner>>,
}

impl Held {
    fn call(&self, call: ProgramCall) {
        self.inner.lock().expect("no test panics while holding it").calls.push(call);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let is_kept = {
            let state = self.played.state();
            state.is_immortal || state.is_left_over
        };
        if !is_kept {
            self.played.end(ProgramEnd::Killed(9));
        }
    }
}

#[async_trait]
impl Programs for ScriptedPrograms {
    async fn start(&self, program: &Program) -> Result<Arc<dyn RunningProgram>, ProgramsError> {
        let played = {
            let mut inner = self.inner();
            let manner = inner.manners.get(&program.program).cloned().unwrap_or_default();
            if manner.is_missing {
                return Err(ProgramsError::Missing { program: program.program.clone() });
            }
            inner.calls.push(ProgramCall::Started(program.name.clone()));
            inner.next_pid += 1;
            let (children, is_immortal) = (manner.children, manner.is_immortal);
            let (waiting, left_out, is_left_over) = (VecDeque::new(), 0, false);
            let lines = Lines { waiting, left_out, children, is_immortal, is_left_over };
            let played = Arc::new(Played {
                program: program.clone(),
                manner,
                pid: inner.next_pid,
                end: watch::channel(None).0,
                lines: Mutex::new(lines),
                news: Notify::new(),
            });
            inner.running.push(played.clone());
            played
        };
        for line in &played.manner.says {
            played.say(line);
        }
        if let Some(end) = played.manner.ends {
            played.end(end);
        }
        Ok(Arc::new(Held { played, inner: self.inner.clone() }))
    }

    async fn end_left_over(&self) -> Result<usize, ProgramsError> {
        let mut inner = self.inner();
        if inner.left_over_is_immortal {
            let (name, count) = ("an earlier daemon".to_owned(), inner.left_over);
            return Err(ProgramsError::Immortal { name, count });
        }
        let mut count = std::mem::take(&mut inner.left_over);
        let is_ended = |played: &mut Arc<Played>| {
            let state = played.state();
            state.is_left_over && !state.is_immortal
        };
        for played in inner.running.extract_if(.., is_ended) {
            count += played.processes();
            played.die();
        }
        if count > 0 {
            inner.calls.push(ProgramCall::LeftOverEnded(count));
        }
        Ok(count)
    }
}

#[async_trait]
impl RunningProgram for Held {
    fn pid(&self) -> u32 {
        self.played.pid
    }

    async fn ended(&self) -> ProgramEnd {
        let mut end = self.played.end.subscribe();
        let end = end.wait_for(Option::is_some).await.expect("this program holds the sender");
        (*end).expect("it was waited for")
    }

    async fn line(&self) -> Option<String> {
        loop {
            match self.played.next_line() {
                Ok(line) => return Some(line),
                Err(false) => return None,
                Err(true) => self.played.news.notified().await,
            }
        }
    }

    fn signal(&self, signal: ProgramSignal) {
        self.call(ProgramCall::Signalled(self.played.program.name.clone(), signal));
        if self.played.end.borrow().is_some() {
            return;
        }
        let manner = &self.played.manner;
        match signal {
            ProgramSignal::Hangup => {
                if let Some(line) = &manner.says_when_hung_up {
                    self.played.say(line);
                }
            }
            ProgramSignal::Terminate if !manner.is_stubborn => {
                self.played.end(ProgramEnd::Killed(15));
            }
            ProgramSignal::Interrupt if !manner.is_stubborn => {
                self.played.end(ProgramEnd::Killed(2));
            }
            _ => {}
        }
    }

    async fn kill(&self) -> Result<(), ProgramsError> {
        let name = self.played.program.name.clone();
        self.call(ProgramCall::Killed(name.clone()));
        if self.played.state().is_immortal {
            return Err(ProgramsError::Immortal { name, count: 1 + self.played.manner.children });
        }
        self.played.die();
        Ok(())
    }
}
