//! Threads that start programs.
//!
//! Whoever starts a program waits until the kernel has read it, from a disk that may hang: not a
//! thread of the daemon's tasks, with which the keepalive would wait. The threads are never ended,
//! for the kernel kills what is to end with this process when the thread ends that has started it.

use std::io;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Number of threads: so many starts may stand still until none is possible.
const THREADS: usize = 4;

/// The most starts that wait for a thread.
const WAITING: usize = 256;

type Start = Box<dyn FnOnce() + Send>;

/// Starts that wait for a thread.
struct Queue(SyncSender<Start>);

static QUEUE: OnceLock<io::Result<Queue>> = OnceLock::new();

/// Starts the program. Ends when it runs, which may be never: whoever waits has a time limit. A
/// start that has not begun by then never does, and a program that comes to run after that is
/// killed.
pub async fn start(mut command: Command) -> io::Result<Child> {
    let queue = match QUEUE.get_or_init(Queue::served) {
        Ok(queue) => queue,
        Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
    };
    command.kill_on_drop(true);
    let runtime = Handle::current();
    let (to, started) = oneshot::channel();
    queue.add(Box::new(move || {
        // Nobody waits for it any more: it is not to do its work at another time.
        if !to.is_closed() {
            let _runtime = runtime.enter();
            let _ = to.send(command.spawn());
        }
    }))?;
    started.await.unwrap_or_else(|_| Err(io::Error::other("the program's start broke off")))
}

impl Queue {
    /// A queue that threads work off, from the one that has waited longest.
    fn served() -> io::Result<Queue> {
        let (queue, waiting) = mpsc::sync_channel::<Start>(WAITING);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..THREADS {
            let waiting = waiting.clone();
            let next = move || waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
            thread::Builder::new().name("starter".to_owned()).spawn(move || {
                while let Ok(start) = next() {
                    start();
                }
            })?;
        }
        Ok(Queue(queue))
    }

    fn add(&self, start: Start) -> io::Result<()> {
        let full = |_| io::Error::new(io::ErrorKind::TimedOut, "programs cannot be started now");
        self.0.try_send(start).map_err(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_that_stand_still_hold_up_no_other_until_all_threads_do() {
        let queue = Queue::served().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (stands, standing) = mpsc::channel();
        for _ in 1..THREADS {
            let (wait, stands) = (wait.clone(), stands.clone());
            let stuck = move || {
                stands.send(()).unwrap();
                let _ = wait.lock().unwrap().recv();
            };
            queue.add(Box::new(stuck)).unwrap();
            standing.recv().unwrap();
        }
        let (done, ended) = mpsc::channel();
        for number in 0..3 {
            let done = done.clone();
            queue.add(Box::new(move || done.send(number).unwrap())).unwrap();
        }
        assert_eq!(ended.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        drop(go);
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_is_not_started() {
        let queue = QUEUE.get_or_init(Queue::served).as_ref().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        for _ in 0..THREADS {
            let wait = wait.clone();
            queue.add(Box::new(move || _ = wait.lock().unwrap().recv())).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        let mut touch = Command::new("touch");
        touch.arg(&made);
        let late = tokio::time::timeout(std::time::Duration::from_millis(1), start(touch)).await;
        assert!(late.is_err());
        drop(go);
        assert!(start(Command::new("true")).await.unwrap().wait().await.unwrap().success());
        assert!(!made.exists());
    }

    #[tokio::test]
    async fn a_program_is_started_and_one_that_is_not_there_is_not() {
        let mut child = start(Command::new("true")).await.unwrap();
        assert!(child.wait().await.unwrap().success());
        let missing = start(Command::new("/nowhere/program")).await.unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
