use std::path::PathBuf;

use clap::Args;
use pvc_api_types::operations::provisioner::{PostProvisionerScript, TextAddition};

use super::check::check;
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::provisioner::text;

/// Add a script
///
/// It is a Python program that is run as root on a node when a VM is made from a profile
/// that uses it. Where this machine has Python it is looked at, and a syntax error is warned
/// of.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner script add web web.py")]
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
        let message = pvc.client()?.change(PostProvisionerScript, [], &addition)?;
        check(pvc, &addition.data);
        pvc.done(message);
        Ok(())
    }
}
