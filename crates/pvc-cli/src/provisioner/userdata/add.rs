use std::path::PathBuf;

use clap::Args;
use pvc_api_types::operations::provisioner::{PostProvisionerUserdata, TextAddition};

use super::check::check;
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
