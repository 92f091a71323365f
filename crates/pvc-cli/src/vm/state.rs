//! Asking for another state of a VM.

use clap::Args;
use pvc_api_types::operations::vm::{GetVmVm, Placement, PostVmVmNode, PostVmVmState, StateChange};
use pvc_api_types::param::Flag;
use pvc_client::Waiting;
use pvc_model::request::StateRequest;

use super::ahead;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::interrupt::{self, Meanwhile, Stream};
use crate::outcome::{Failure, Outcome};
use crate::{task, time};

/// `--wait[=TIME]` or `--dry-run`.
#[derive(Debug, Clone, Copy, Args)]
pub struct How {
    /// Return only when it is done, and fail if it fails; with a TIME such as 90s or 2m also if it
    /// takes longer
    #[arg(
        short,
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "forever",
        value_parser = limit
    )]
    wait: Option<Limit>,

    #[command(flatten)]
    dry_run: ahead::DryRun,
}

/// Request for another state of a VM.
pub struct StateCommand<'a> {
    pub vm: &'a str,
    pub state: StateRequest,
    pub force: bool,
    /// Question that is asked before, if any is.
    pub question: Option<(Yes, String)>,
}

impl StateCommand<'_> {
    fn request(&self, wait: bool) -> StateChange {
        let state = ahead::word(self.state);
        StateChange { state, force: Flag(self.force), wait: Flag(wait) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit(Waiting);

/// `forever`, or a time.
fn limit(text: &str) -> Result<Limit, String> {
    if text == "forever" {
        return Ok(Limit(Waiting::Forever));
    }
    Ok(Limit(Waiting::AtMost(time::parse(text)?)))
}

/// Asks for another state and, if wanted, waits until it is reached.
pub fn request(pvc: &mut Pvc, command: &StateCommand<'_>, how: How) -> Outcome {
    let vm = command.vm;
    if how.dry_run.is_wanted() {
        return ahead::tell(pvc, |client| ahead::check_state(client, vm, &command.request(false)));
    }
    if let Some((yes, sentence)) = &command.question {
        ahead::state(pvc, *yes, vm, command.state, command.force)?;
        confirm::ask(pvc, *yes, sentence)?;
    }
    let wait = how.wait.map(|limit| limit.0);
    pvc.client()?;
    if wait.is_some() {
        pvc.progress(&format!("Waiting for VM `{vm}`... "));
    }
    let words = wait.map(|_| no_longer_waiting(pvc, vm));
    let message =
        pvc.client()?.change_waiting(PostVmVmState, [vm], &command.request(wait.is_some()), wait);
    drop(words);
    if wait.is_some() {
        pvc.progress(if message.is_ok() { "done.\n" } else { "\n" });
    }
    let message = message.map_err(|error| explained(error, vm))?;
    if wait.is_some() {
        trouble(pvc, vm)?;
    }
    pvc.done(message);
    Ok(())
}

/// Waits until a VM that was started runs. Fails if it does not, and says so if somebody has given
/// it another state meanwhile.
pub fn until_it_runs(pvc: &mut Pvc, vm: &str) -> Outcome {
    trouble(pvc, vm)?;
    let state = pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?.state;
    if state != "start" {
        pvc.warn(&format!("VM `{vm}` is in state `{state}` by now"));
        return Ok(());
    }
    let start = StateChange {
        state: ahead::word(StateRequest::Start),
        force: Flag(false),
        wait: Flag(true),
    };
    let words = no_longer_waiting(pvc, vm);
    let waiting = Some(Waiting::Forever);
    let message = pvc.client()?.change_waiting(PostVmVmState, [vm], &start, waiting);
    drop(words);
    message.map_err(|error| explained(error, vm))?;
    trouble(pvc, vm)
}

/// Asks for another node, and waits if the placement says so.
pub fn place(pvc: &mut Pvc, vm: &str, placement: &Placement) -> Outcome {
    pvc.client()?;
    let words = placement.wait.0.then(|| no_longer_waiting(pvc, vm));
    let waiting = placement.wait.0.then_some(Waiting::Forever);
    let message = pvc.client()?.change_waiting(PostVmVmNode, [vm], placement, waiting);
    drop(words);
    pvc.done(message?);
    Ok(())
}

/// Message of Ctrl-C while the API carries a request about a VM out. Whether it has received the
/// request yet cannot be known here.
fn no_longer_waiting(pvc: &Pvc, vm: &str) -> Meanwhile {
    let text = format!(
        "\nerror: no longer waiting; a request that the API has received stands\n\
         hint: `pvc vm info {vm}` shows the present state\n"
    );
    interrupt::last_words(Stream::Error, if pvc.global.silent { String::new() } else { text })
}

fn explained(error: pvc_client::Error, vm: &str) -> Failure {
    match error {
        pvc_client::Error::TimedOut { after } => {
            Failure::failed(format!("VM `{vm}` has not got there within {} s", after.as_secs()))
                .hint(format!("the request stands; `pvc vm info {vm}` shows the present state"))
        }
        error => error.into(),
    }
}

/// Fails if the VM has.
fn trouble(pvc: &mut Pvc, vm: &str) -> Outcome {
    let found = pvc.client()?.read_only(GetVmVm, [vm], "VM")?.read()?;
    if found.state == "fail" {
        Err(task::guest_failed(&found.name, &found.failed_reason))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_limit_is_a_time_or_forever() {
        assert_eq!(limit("2m"), Ok(Limit(Waiting::AtMost(Duration::from_secs(120)))));
        assert_eq!(limit("forever"), Ok(Limit(Waiting::Forever)));
        assert!(limit("soon").is_err());
    }
}
