use clap::Args;
use pvc_api_types::operations::provisioner::{
    GetProvisionerUserdataUserdata, PutProvisionerUserdataUserdata, TextBody,
};

use super::check::check;
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::provisioner::text::Source;

/// Replace userdata
///
/// The new text comes from a file, or from an editor: then what changes is shown and has to
/// be confirmed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner userdata modify web --editor
  pvc provisioner userdata modify web web.yaml")]
pub struct Modify {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::userdata())]
    name: String,

    #[command(flatten)]
    source: Source,
}

impl Modify {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let name = self.name.as_str();
        let present = |pvc: &mut Pvc| {
            let client = pvc.client()?;
            Ok(client
                .read_only(GetProvisionerUserdataUserdata, [name], "userdata")?
                .read()?
                .userdata)
        };
        let put = |pvc: &mut Pvc, data: String| {
            let body = TextBody { data };
            let message = pvc.client()?.change(PutProvisionerUserdataUserdata, [name], &body)?;
            check(pvc, &body.data);
            Ok(message)
        };
        self.source.replace(pvc, ("userdata", name), ".yaml", present, put)
    }
}
