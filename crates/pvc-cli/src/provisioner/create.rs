use clap::Args;
use pvc_api_types::operations::provisioner::{Creation, PostProvisionerCreate};
use pvc_api_types::param::Repeated;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::task::{self, TaskWait};
use crate::vm::state::until_it_runs;

/// Make a VM from a profile
///
/// The profile's script is run as root on the primary node, in a process of its own. If it
/// fails, or the task is cancelled, what it has made is taken back. `pvc task log` shows what
/// it has said.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner create web1 web
  pvc provisioner create web2 web --script-arg deb_release=bookworm --no-start --no-wait
  pvc provisioner create web3 web --dry-run")]
pub struct Create {
    /// Name of the VM
    name: String,

    /// Profile that it is made from
    #[arg(add = crate::completion::profiles())]
    profile: String,

    /// Argument of the script, instead of that of the profile; may be repeated
    #[arg(short = 'a', long = "script-arg", value_name = "NAME=VALUE")]
    script_args: Vec<String>,

    /// Define the VM, which is the default
    #[arg(short, long, overrides_with = "no_define")]
    define: bool,

    /// Run the script, and define no VM
    #[arg(short = 'D', long, overrides_with = "define")]
    no_define: bool,

    /// Start the VM when it is made, which is the default
    #[arg(short, long, overrides_with = "no_start")]
    start: bool,

    /// Leave the VM stopped
    #[arg(short = 'S', long, overrides_with = "start")]
    no_start: bool,

    #[command(flatten)]
    wait: TaskWait,
}

impl Create {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let define = !self.no_define;
        let start = define && !self.no_start;
        let wanted = Creation {
            name: self.name,
            profile: self.profile,
            define_vm: Some(define),
            start_vm: Some(start),
            arg: Repeated(self.script_args),
        };
        let submitted = pvc.client()?.submit(PostProvisionerCreate, [], &wanted)?;
        let is_task = matches!(submitted, pvc_client::Submitted::Task(_));
        task::finish_with_log(pvc, submitted, self.wait)?;
        match start && is_task && self.wait.is_wanted() {
            true => until_it_runs(pvc, &wanted.name),
            false => Ok(()),
        }
    }
}
