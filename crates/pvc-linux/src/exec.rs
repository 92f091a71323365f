use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::prctl;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpid, getppid};
use pvc_ports::{Command, Exec, ExecError, Output};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;

use crate::starters;

/// Bytes of a program's output that are kept, per stream. The rest is read and thrown away, so that
/// the program is not stopped by a full pipe.
const KEPT_BYTES: usize = 1 << 20;

/// Bytes that are read from a pipe at once.
const PIECE_BYTES: usize = 16 << 10;

/// Time after a program's end in which its pipes are read to the end: something that it left in the
/// background may hold them open for ever.
const DRAIN: Duration = Duration::from_secs(1);

/// Runs programs of this machine, each in a process group of its own. They end with this process,
/// also when it is killed.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinuxExec;

#[async_trait]
impl Exec for LinuxExec {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        self.run_with_stderr(command, &|_| ()).await
    }

    async fn run_with_stderr(
        &self,
        command: Command,
        on_stderr: &(dyn for<'a> Fn(&'a [u8]) + Send + Sync),
    ) -> Result<Output, ExecError> {
        let (program, deadline) = (command.program.clone(), command.deadline);
        let begun = tokio::time::Instant::now();
        let late = || ExecError::TimedOut { program: program.clone(), deadline };
        let started = tokio::time::timeout(deadline, spawn(&command)).await;
        let mut child = started.map_err(|_| late())??;
        let group = Group::of(&child);
        let whole = talk(&mut child, command.stdin.as_deref(), on_stderr);
        match tokio::time::timeout(deadline.saturating_sub(begun.elapsed()), whole).await {
            Ok(Ok(output)) => {
                group.disarm();
                Ok(output)
            }
            Ok(Err(source)) => Err(ExecError::Failed { program, source }),
            Err(_) => Err(late()),
        }
    }
}

async fn spawn(command: &Command) -> Result<Child, ExecError> {
    let stdin = if command.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    let own = getpid();
    let mut spawned = tokio::process::Command::new(&command.program);
    // The kernel kills it when the thread ends that starts it, as those of `starters` never do.
    let end_with_us = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // We may have been killed before the kernel knew.
        if getppid() == own { Ok(()) } else { Err(nix::errno::Errno::ESRCH.into()) }
    };
    // SAFETY: between fork and exec only two system calls are made, and nothing is allocated.
    unsafe { spawned.pre_exec(end_with_us) };
    spawned
        .args(&command.args)
        .envs(command.env.iter().map(|(name, value)| (name, value)))
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let program = command.program.clone();
    starters::start(spawned).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => ExecError::Missing { program },
        _ => ExecError::Failed { program, source },
    })
}

async fn talk(
    child: &mut Child,
    stdin: Option<&[u8]>,
    on_errors: &(dyn for<'a> Fn(&'a [u8]) + Send + Sync),
) -> std::io::Result<Output> {
    let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let write = async {
        if let (Some(mut pipe), Some(bytes)) = (input, stdin) {
            // A program that does not want its input may close the pipe: its exit status tells the
            // rest.
            let _ = pipe.write_all(bytes).await;
        }
    };
    let status = {
        let read = async {
            tokio::join!(write, keep(out, &mut stdout, &|_| ()), keep(err, &mut stderr, on_errors));
        };
        tokio::pin!(read);
        tokio::select! {
            biased;
            () = &mut read => child.wait().await?,
            status = child.wait() => {
                // What the pipes still hold is read; who holds them open longer is not waited for.
                let _ = tokio::time::timeout(DRAIN, &mut read).await;
                status?
            }
        }
    };
    Ok(Output { code: status.code(), stdout, stderr })
}

/// Reads the pipe to its end and keeps the beginning.
async fn keep(
    pipe: Option<impl AsyncRead + Unpin>,
    kept: &mut Vec<u8>,
    on_errors: &(dyn for<'a> Fn(&'a [u8]) + Send + Sync),
) {
    let Some(mut pipe) = pipe else { return };
    let mut piece = vec![0; PIECE_BYTES];
    // A read error ends the output where it is: what was said so far is worth more than nothing.
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        let piece = &piece[..count];
        on_errors(piece);
        let room = KEPT_BYTES.saturating_sub(kept.len()).min(count);
        kept.extend_from_slice(&piece[..room]);
    }
}

/// Kills a process group when dropped, unless the program ended by itself.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group may have ended a moment ago, which is all we want.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, deadline: Duration) -> Command {
        Command {
            program: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("SECRET".to_owned(), "it's \"quoted\" $HOME".to_owned())],
            stdin: None,
            deadline,
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    async fn is_gone(pid: i32) -> bool {
        for _ in 0..500 {
            let alive = std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z "));
            if !alive {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    #[tokio::test]
    async fn what_a_program_says_comes_back_with_its_status() {
        let output =
            LinuxExec.run(shell("printf %s \"$SECRET\"; echo no >&2; exit 3", LONG)).await.unwrap();
        assert_eq!(output.code, Some(3));
        assert_eq!(output.stdout, b"it's \"quoted\" $HOME");
        assert_eq!(output.stderr, b"no\n");
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named() {
        let mut command = shell("", LONG);
        command.program = "/nonexistent/tool".to_owned();
        let error = LinuxExec.run(command).await.unwrap_err();
        assert_eq!(error.to_string(), "`/nonexistent/tool` is not installed");
    }

    #[tokio::test]
    async fn a_program_gets_its_input_and_may_ignore_it() {
        let mut command = shell("cat", LONG);
        command.stdin = Some(b"hello".to_vec());
        assert_eq!(LinuxExec.run(command).await.unwrap().stdout, b"hello");
        let mut command = shell("exec 0<&-; exit 0", LONG);
        command.stdin = Some(vec![b'x'; 1 << 20]);
        assert_eq!(LinuxExec.run(command).await.unwrap().code, Some(0));
    }

    #[tokio::test]
    async fn too_much_output_is_cut_and_does_not_stop_the_program() {
        let output =
            LinuxExec.run(shell("head -c 3000000 /dev/zero; echo end >&2", LONG)).await.unwrap();
        assert_eq!(output.stdout.len(), KEPT_BYTES);
        assert_eq!(output.stderr, b"end\n");
    }

    #[tokio::test]
    async fn at_the_deadline_the_whole_process_group_dies() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", note.display());
        let error = LinuxExec.run(shell(&script, Duration::from_secs(1))).await.unwrap_err();
        assert!(matches!(error, ExecError::TimedOut { .. }), "{error}");
        let child: i32 = std::fs::read_to_string(&note).unwrap().trim().parse().unwrap();
        assert!(is_gone(child).await);
    }

    #[tokio::test]
    async fn a_dropped_run_takes_its_programs_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("pid");
        let script = format!("echo $$ > {}; sleep 600", note.display());
        let run = tokio::spawn(async move { LinuxExec.run(shell(&script, LONG)).await });
        let mut pid = None;
        while pid.is_none() {
            pid = std::fs::read_to_string(&note)
                .ok()
                .and_then(|text| text.trim().parse::<i32>().ok());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        run.abort();
        assert!(is_gone(pid.unwrap()).await);
    }

    #[tokio::test]
    async fn something_left_in_the_background_does_not_hold_up_the_answer() {
        let output =
            LinuxExec.run(shell("sleep 30 & echo $!", Duration::from_secs(15))).await.unwrap();
        assert_eq!(output.code, Some(0));
        let left: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        nix::sys::signal::kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
    }
}
