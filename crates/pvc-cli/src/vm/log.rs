use clap::Args;
use pvc_api_types::operations::node::Lines;
use pvc_api_types::operations::vm::GetVmVmConsole;
use pvc_api_types::param::Or;
use pvc_client::{Client, Error};

use super::Which;
use crate::context::Pvc;
use crate::log;
use crate::outcome::Outcome;

/// Show a VM's serial console
///
/// The last lines are shown in a pager (`$PAGER`, or `less`) if the output is a
/// terminal. With `--follow` what the guest writes is printed as it comes, until Ctrl-C.
/// On a terminal everything but text and colours is left out: a guest cannot send
/// commands to it.
#[derive(Debug, Args)]
pub struct Log {
    #[command(flatten)]
    vm: Which,

    /// Number of lines [default: 1000, or 10 with --follow]
    #[arg(short, long)]
    lines: Option<usize>,

    /// Go on with what the guest writes as it comes
    #[arg(short, long)]
    follow: bool,
}

impl Log {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        let client = pvc.take_client()?;
        if self.follow {
            let lines = self.lines.unwrap_or(log::FOLLOWED);
            return log::follow(pvc, lines, &|lines| end_of_console(&client, vm, lines));
        }
        let lines = self.lines.unwrap_or(log::VIEWED);
        let text = end_of_console(&client, vm, lines)?;
        log::view(pvc, &log::tail(&text, lines))
    }
}

/// The last lines.
fn end_of_console(client: &Client, vm: &str, lines: usize) -> Result<String, Error> {
    let lines = Lines { lines: Or(u32::try_from(lines).unwrap_or(u32::MAX)) };
    Ok(client.read(GetVmVmConsole, [vm], &lines)?.read()?.data)
}
