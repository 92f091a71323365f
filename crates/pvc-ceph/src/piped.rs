//! Programs that are given their input, or whose output is taken, while they run.

use std::io;
use std::os::fd::AsFd;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use nix::fcntl::{FcntlArg, fcntl};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::watch;

use crate::rbd::{Failure, failure};

/// Deadline of a stream to get on by a byte: a Ceph that hangs does not hold it for ever.
pub(crate) const STALLED: Duration = Duration::from_secs(120);

/// Time that a program gets to leave by itself when its pipe is closed. One that is killed has its
/// volume open for another half a minute.
const LEAVING: Duration = Duration::from_secs(30);

/// Bytes of what a program says that are kept. The rest is read and thrown away.
const KEPT_BYTES: u64 = 64 << 10;

/// Bytes that are read from a pipe at once.
const READ_BYTES: usize = 64 << 10;

/// Bytes that a pipe may hold, instead of 64 KiB, so that its two ends wait less for each other: as
/// many as the kernel lets anybody have (`fs.pipe-max-size`).
const PIPE_BYTES: i32 = 1 << 20;

/// Time in which what a program said is read after its end.
const DRAIN: Duration = Duration::from_secs(1);

/// Pipe of a program that we have the other end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipe {
    Input,
    Output,
}

/// A running program with a pipe. It dies with the value, and it is better to
/// [let it leave](Piped::leave). When the daemon dies the pipe closes, and `rbd` ends by itself:
/// its input is cut, or nobody takes its output.
pub(crate) struct Piped {
    program: String,
    child: Child,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    /// Words of the program about itself, once they have an end.
    said: watch::Receiver<Option<Vec<u8>>>,
    deadline: Duration,
}

impl Piped {
    pub fn start(program: &str, args: Vec<String>, pipe: Pipe) -> Result<Self, Failure> {
        let end_of = |this| if pipe == this { Stdio::piped() } else { Stdio::null() };
        let spawned = tokio::process::Command::new(program)
            .args(args)
            .stdin(end_of(Pipe::Input))
            .stdout(end_of(Pipe::Output))
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = spawned.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::Other(format!("`{program}` is not installed")),
            _ => Failure::Other(format!("`{program}` could not be run: {error}")),
        })?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        for pipe in [input.as_ref().map(AsFd::as_fd), output.as_ref().map(AsFd::as_fd)] {
            // One that stays as it was is only slower.
            let _ = pipe.map(|pipe| fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES)));
        }
        let (sender, said) = watch::channel(None);
        let pipe = child.stderr.take();
        tokio::spawn(async move { sender.send_replace(Some(keep(pipe).await)) });
        let program = program.to_owned();
        Ok(Piped { program, child, input, output, said, deadline: STALLED })
    }

    /// The same, with another deadline to get on by a byte.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Piped { deadline, ..self }
    }

    /// Whether the program has ended, well or not.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Gives the program some of the bytes and takes those from them.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing: what the program has not got is still there.
    pub async fn give(&mut self, bytes: &mut Bytes) -> Result<(), Failure> {
        let Some(input) = &mut self.input else { return Err(closed()) };
        let given = match tokio::time::timeout(self.deadline, input.write(bytes)).await {
            Ok(given) => given,
            Err(_) => return Err(self.late()),
        };
        match given {
            Ok(count) => {
                bytes.advance(count);
                Ok(())
            }
            // It has ended, or does not want more: its end says why.
            Err(error) => match self.end().await {
                Ok(()) => Err(Failure::Other(error.to_string())),
                Err(failure) => Err(failure),
            },
        }
    }

    /// Takes some of what the program puts out; `false` when that has an end.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub async fn take(&mut self, bytes: &mut BytesMut) -> Result<bool, Failure> {
        let Some(output) = &mut self.output else { return Err(closed()) };
        bytes.reserve(READ_BYTES);
        let mut some = output.take(READ_BYTES as u64);
        match tokio::time::timeout(self.deadline, some.read_buf(bytes)).await {
            Ok(Ok(count)) => Ok(count > 0),
            Ok(Err(error)) => Err(Failure::Other(error.to_string())),
            Err(_) => Err(self.late()),
        }
    }

    /// Closes the pipe and waits until the program has ended well.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing: this can be asked again.
    pub async fn end(&mut self) -> Result<(), Failure> {
        self.close();
        let ended = tokio::time::timeout(self.deadline, self.child.wait()).await;
        let status = ended.map_err(|_| self.late())?;
        let status = status.map_err(|error| Failure::Other(error.to_string()))?;
        if status.success() {
            return Ok(());
        }
        Err(self.failure(status).await)
    }

    /// Closes the pipe and waits until the program has gone, however.
    pub async fn leave(mut self) {
        self.close();
        if tokio::time::timeout(LEAVING, self.child.wait()).await.is_ok() {
            return;
        }
        tracing::warn!(program = self.program, "a program does not leave, and is killed");
        if let Err(error) = self.child.kill().await {
            tracing::warn!(program = self.program, %error, "a program cannot be killed");
        }
    }

    fn close(&mut self) {
        self.input = None;
        self.output = None;
    }

    fn late(&self) -> Failure {
        Failure::TimedOut { seconds: self.deadline.as_secs() }
    }

    async fn failure(&mut self, status: ExitStatus) -> Failure {
        let whole = tokio::time::timeout(DRAIN, self.said.wait_for(Option::is_some)).await;
        let said = match &whole {
            Ok(Ok(said)) => said.as_deref().unwrap_or_default(),
            // Something holds its pipe open.
            Ok(Err(_)) | Err(_) => &[],
        };
        failure(&self.program, status.code(), &String::from_utf8_lossy(said))
    }
}

fn closed() -> Failure {
    Failure::Other("its pipe is closed".to_owned())
}

/// Reads the pipe to its end and keeps the beginning.
async fn keep(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else { return kept };
    // A read error ends it where it is: what was said so far is worth more than nothing.
    let _ = (&mut pipe).take(KEPT_BYTES).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, pipe: Pipe) -> Piped {
        Piped::start("/bin/sh", vec!["-c".to_owned(), script.to_owned()], pipe).unwrap()
    }

    fn hurried(script: &str, pipe: Pipe) -> Piped {
        Piped { deadline: Duration::from_secs(1), ..shell(script, pipe) }
    }

    async fn give_all(piped: &mut Piped, bytes: impl Into<Bytes>) -> Result<(), Failure> {
        let mut bytes = bytes.into();
        while !bytes.is_empty() {
            piped.give(&mut bytes).await?;
        }
        Ok(())
    }

    #[tokio::test]
    async fn what_is_given_arrives_and_the_end_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("got");
        let mut piped = shell(&format!("cat > {}", note.display()), Pipe::Input);
        let bytes = vec![7; 300_000];
        give_all(&mut piped, bytes.clone()).await.unwrap();
        piped.end().await.unwrap();
        piped.end().await.expect("it can be asked again");
        assert!(std::fs::read(&note).unwrap() == bytes);
        assert!(piped.has_ended());
    }

    #[tokio::test]
    async fn what_is_put_out_is_taken_by_and_by() {
        let mut piped = shell("head -c 300000 /dev/zero; exit 3", Pipe::Output);
        let (mut bytes, mut length) = (BytesMut::new(), 0);
        while piped.take(&mut bytes).await.unwrap() {
            assert!(bytes.len() <= READ_BYTES);
            length += bytes.split().len();
        }
        assert_eq!(length, 300_000);
        assert!(matches!(piped.end().await, Err(Failure::Other(_))));
    }

    #[tokio::test]
    async fn a_program_that_ends_early_says_why() {
        let mut piped = shell("echo 'no, thanks' >&2; exit 5", Pipe::Input);
        let failure = give_all(&mut piped, vec![0; 4 << 20]).await.unwrap_err();
        assert!(matches!(&failure, Failure::Other(said) if said == "no, thanks"), "{failure:?}");
        let much = "head -c 3000000 /dev/zero >&2; exit 5";
        let mut piped = shell(much, Pipe::Input);
        assert!(matches!(piped.end().await, Err(Failure::Other(_))), "it is not held by its words");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_a_missed_deadline() {
        let mut piped = hurried("exec sleep 60", Pipe::Input);
        let failure = give_all(&mut piped, vec![0; 4 << 20]).await.unwrap_err();
        assert!(matches!(failure, Failure::TimedOut { seconds: 1 }), "{failure:?}");
        assert!(matches!(piped.end().await, Err(Failure::TimedOut { .. })));
        let mut piped = hurried("exec sleep 60", Pipe::Output);
        let failure = piped.take(&mut BytesMut::new()).await.unwrap_err();
        assert!(matches!(failure, Failure::TimedOut { seconds: 1 }), "{failure:?}");
    }

    #[tokio::test]
    async fn a_program_whose_pipe_is_closed_leaves_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("left");
        let left = format!("echo > {}", note.display());
        shell(&format!("cat > /dev/null; {left}"), Pipe::Input).leave().await;
        assert!(std::fs::remove_file(&note).is_ok());
        shell(&format!("trap '' PIPE; yes 2> /dev/null; {left}"), Pipe::Output).leave().await;
        assert!(note.exists());
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named() {
        let started = Piped::start("/nonexistent/tool", Vec::new(), Pipe::Input);
        let failure = started.err().unwrap();
        let is_named = matches!(&failure, Failure::Other(said) if said.contains("tool"));
        assert!(is_named, "{failure:?}");
    }
}
