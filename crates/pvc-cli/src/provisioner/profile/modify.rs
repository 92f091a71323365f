use clap::Args;
use pvc_api_types::operations::provisioner::{ProfileChange, PutProvisionerProfileProfile};
use pvc_api_types::param::{Parameters, Repeated};

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// Change a profile
///
/// What is not given stays as it is, and an empty text clears: `--userdata ''`. Arguments
/// replace all there were. VMs that were made from it stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner profile modify web -s large
  pvc provisioner profile modify web --delete-script-args")]
pub struct Modify {
    /// Name of the profile
    #[arg(value_name = "NAME", add = crate::completion::profiles())]
    name: String,

    /// System template
    #[arg(short, long, value_name = "TEMPLATE", add = crate::completion::system_templates())]
    system_template: Option<String>,

    /// Network template
    #[arg(short, long, value_name = "TEMPLATE", add = crate::completion::network_templates())]
    network_template: Option<String>,

    /// Storage template
    #[arg(short = 't', long, value_name = "TEMPLATE", add = crate::completion::storage_templates())]
    storage_template: Option<String>,

    /// Userdata for cloud-init in the guests
    #[arg(short, long, add = crate::completion::userdata())]
    userdata: Option<String>,

    /// Script that builds the VMs
    #[arg(short = 'x', long, add = crate::completion::scripts())]
    script: Option<String>,

    /// Remove the arguments of the script
    #[arg(short, long, conflicts_with = "script_args")]
    delete_script_args: bool,

    /// Argument of the script; may be repeated
    #[arg(short = 'a', long = "script-arg", value_name = "NAME=VALUE")]
    script_args: Vec<String>,
}

impl Modify {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let are_given = self.delete_script_args || !self.script_args.is_empty();
        let change = ProfileChange {
            system_template: self.system_template,
            network_template: self.network_template,
            storage_template: self.storage_template,
            userdata: self.userdata,
            script: self.script,
            arg: are_given.then_some(Repeated(self.script_args)),
        };
        if change.write() == ProfileChange::default().write() {
            return Err(Failure::usage("nothing is to be changed")
                .hint("`pvc provisioner profile modify --help` lists what can be"));
        }
        let operation = PutProvisionerProfileProfile;
        let message = pvc.client()?.change(operation, [&self.name], &change)?;
        pvc.done(message);
        Ok(())
    }
}
