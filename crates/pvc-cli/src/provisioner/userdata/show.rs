use clap::Args;
use pvc_api_types::operations::provisioner::GetProvisionerUserdataUserdata;

use crate::context::Pvc;
use crate::format::{MaybeJson, TextFormat};
use crate::outcome::Outcome;

/// Show userdata
///
/// The text as it is kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner userdata show web > web.yaml")]
pub struct Show {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::userdata())]
    name: String,

    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Show {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let answer =
            pvc.client()?.read_only(GetProvisionerUserdataUserdata, [&self.name], "userdata")?;
        if !self.format.print_payload(pvc, &answer)? {
            pvc.out.document(answer.read()?.userdata);
        }
        Ok(())
    }
}
