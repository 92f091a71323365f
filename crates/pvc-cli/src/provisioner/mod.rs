//! Parts of VMs: templates, userdata, scripts, and profiles of all of them.

mod profile;
mod script;
mod template;
mod text;
mod userdata;

use clap::Subcommand;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make VMs from templates
#[derive(Debug, Subcommand)]
pub enum Provisioner {
    /// Manage profiles
    #[command(subcommand, arg_required_else_help = true)]
    Profile(profile::Profile),
    /// Manage provisioning scripts
    #[command(subcommand, arg_required_else_help = true)]
    Script(script::Script),
    /// Manage templates
    #[command(subcommand, arg_required_else_help = true)]
    Template(template::Template),
    /// Manage userdata documents
    #[command(subcommand, arg_required_else_help = true)]
    Userdata(userdata::Userdata),
}

impl Provisioner {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Provisioner::Profile(command) => command.run(pvc),
            Provisioner::Script(command) => command.run(pvc),
            Provisioner::Template(command) => command.run(pvc),
            Provisioner::Userdata(command) => command.run(pvc),
        }
    }
}

/// The word for what is not set.
const UNSET: &str = "N/A";

/// A value, or the word for none.
fn or_unset(value: Option<&str>) -> &str {
    value.filter(|value| !value.is_empty()).unwrap_or(UNSET)
}
