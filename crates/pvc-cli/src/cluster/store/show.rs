use clap::Args;
use pvc_api_types::StoreAccess;
use pvc_api_types::operations::cluster::GetStoreAccess;
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::Outcome;
use crate::output::Paint;
use crate::output::labels::Labels;

const WIDTH: usize = 24;

/// Show who may use the records, and which nodes do not know their password
#[derive(Debug, Args)]
pub struct Show {
    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Show {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let access = pvc.client()?.read(GetStoreAccess, [], &Nothing)?;
        if !self.format.print_payload(pvc, &access)? {
            let text = view(&access.read()?, pvc.out.paint());
            pvc.out.text(text);
        }
        Ok(())
    }
}

fn view(store: &StoreAccess, paint: Paint) -> String {
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("Records in ZooKeeper:");
    lines.blank();
    let whose = match store.access.as_str() {
        "members" => "those who know the password",
        "other" => "others: somebody has set the access list of `/`",
        _ => "whoever reaches ZooKeeper",
    };
    lines.line("For", whose);
    lines.line("Open keys", store.open.to_string());
    lines.line("Closed keys", store.closed.to_string());
    if store.others > 0 {
        lines.line("Keys for others", store.others.to_string());
    }
    let named = |nodes: &[String]| match nodes {
        [] => "none".to_owned(),
        nodes => nodes.join(", "),
    };
    lines.line("Nodes without password", named(&store.without_password));
    lines.line("With another password", named(&store.other_password));
    lines.finish()
}
