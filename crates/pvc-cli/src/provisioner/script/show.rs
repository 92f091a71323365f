use clap::Args;
use pvc_api_types::operations::provisioner::GetProvisionerScriptScript;

use crate::context::Pvc;
use crate::format::{MaybeJson, TextFormat};
use crate::outcome::Outcome;

/// Show a script
///
/// The text as it is kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner script show web > web.py")]
pub struct Show {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::scripts())]
    name: String,

    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Show {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let answer = pvc.client()?.read_only(GetProvisionerScriptScript, [&self.name], "script")?;
        if !self.format.print_payload(pvc, &answer)? {
            pvc.out.document(answer.read()?.script);
        }
        Ok(())
    }
}
