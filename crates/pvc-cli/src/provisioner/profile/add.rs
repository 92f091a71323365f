use clap::Args;
use pvc_api_types::operations::provisioner::{
    PostProvisionerProfile, ProfileAddition, ProfileType,
};
use pvc_api_types::param::{Repeated, Scalar};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a profile
///
/// VMs are made from it: of the size and with the consoles of its system template, the
/// networks and disks of the two others, by its script.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner profile add web -s small -n web -t web -u web -x debootstrap \\
      -a deb_release=bookworm -a deb_packages=vim,less
  pvc provisioner profile add appliance -p ova -s appliance -x ova -o appliance")]
pub struct Add {
    /// Name of the profile
    #[arg(value_name = "NAME")]
    name: String,

    /// Source of the disks: `provisioner` for a storage template, or `ova`
    #[arg(short, long, value_name = "TYPE", default_value = "provisioner", value_parser = kind)]
    profile_type: ProfileType,

    /// System template
    #[arg(short, long, value_name = "TEMPLATE", add = crate::completion::system_templates())]
    system_template: String,

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
    script: String,

    /// OVA image
    #[arg(short, long)]
    ova: Option<String>,

    /// Argument of the script; may be repeated
    #[arg(short = 'a', long = "script-arg", value_name = "NAME=VALUE")]
    script_args: Vec<String>,
}

fn kind(word: &str) -> Result<ProfileType, String> {
    <ProfileType as Scalar>::parse(&word.to_ascii_lowercase())
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let addition = ProfileAddition {
            name: self.name,
            profile_type: self.profile_type,
            system_template: self.system_template,
            network_template: self.network_template,
            storage_template: self.storage_template,
            userdata: self.userdata,
            script: self.script,
            ova: self.ova,
            arg: Repeated(self.script_args),
        };
        let message = pvc.client()?.change(PostProvisionerProfile, [], &addition)?;
        pvc.done(message);
        Ok(())
    }
}
