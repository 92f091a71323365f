use std::path::PathBuf;

use clap::Args;
use pvc_api_types::operations::provisioner::{PostProvisionerUserdata, TextAddition};

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::provisioner::text;

/// Add userdata
///
/// It is kept as it is, and cloud-init in the guests of profiles that use it finds it at the
/// metadata service: `#cloud-config`, a program with `#!`, MIME multipart, or whatever else
/// cloud-init takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner userdata add web web.yaml")]
pub struct Add {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,

    /// The file with the text; `-` is standard input
    #[arg(value_name = "FILENAME")]
    file: PathBuf,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let data = text::read(&self.file)?;
        let addition = TextAddition { name: self.name, data };
        let message = pvc.client()?.change(PostProvisionerUserdata, [], &addition)?;
        check(pvc, &addition.data);
        pvc.done(message);
        Ok(())
    }
}

/// Beginnings by which cloud-init knows what userdata is.
const BEGINNINGS: [&str; 9] = [
    "#!",
    "#cloud-config",
    "#cloud-boothook",
    "#include",
    "#part-handler",
    "## template:",
    "content-type:",
    "mime-version:",
    "from ",
];

/// Warns of userdata that cloud-init would leave alone.
pub(super) fn check(pvc: &Pvc, data: &str) {
    let first = data.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let first = first.trim_start_matches('\u{feff}').to_ascii_lowercase();
    if !data.trim().is_empty() && !BEGINNINGS.iter().any(|known| first.starts_with(known)) {
        pvc.warn("cloud-init will not know what this userdata is: its first line says nothing");
        pvc.hint("`#cloud-config` is the first line of a configuration, `#!` begins a program");
    }
}
