use clap::Args;
use pvc_api_types::operations::provisioner::{
    GetProvisionerScriptScript, PutProvisionerScriptScript, TextBody,
};

use super::check::check;
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::provisioner::text::Source;

/// Replace a script
///
/// The new text comes from a file, or from an editor: then what changes is shown and has to
/// be confirmed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner script modify web --editor
  pvc provisioner script modify web web.py")]
pub struct Modify {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::scripts())]
    name: String,

    #[command(flatten)]
    source: Source,
}

impl Modify {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let name = self.name.as_str();
        let present = |pvc: &mut Pvc| {
            let client = pvc.client()?;
            Ok(client.read_only(GetProvisionerScriptScript, [name], "script")?.read()?.script)
        };
        let put = |pvc: &mut Pvc, data: String| {
            let body = TextBody { data };
            let message = pvc.client()?.change(PutProvisionerScriptScript, [name], &body)?;
            check(pvc, &body.data);
            Ok(message)
        };
        self.source.replace(pvc, ("script", name), ".py", present, put)
    }
}
