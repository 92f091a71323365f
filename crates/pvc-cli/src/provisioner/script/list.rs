use clap::Args;
use pvc_api_types::Script;
use pvc_api_types::operations::provisioner::GetProvisionerScript;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Table;
use crate::provisioner::{list, text};

/// List the scripts
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner script list
  pvc provisioner script list '^web' -f csv")]
pub struct List {
    /// Only those with this in their name
    limit: Option<String>,

    /// Show the whole text, and not its first lines alone
    #[arg(short, long)]
    long: bool,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let is_long = self.long;
        let table = |found: &[Script]| table(found, is_long);
        let what = ("script", "pvc provisioner script list");
        let name = |one: &Script| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerScript, what, name, table)
    }
}

fn table(found: &[Script], is_long: bool) -> Table {
    let rows = found.iter().map(|one| (one.name.as_str(), one.id, one.script.as_str()));
    text::table(("Script", "Script"), rows, is_long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r##"[{"id": 1, "name": "web", "script": "#cloud-config\na: 1\nb: 2\nc: 3\nd: 4\n"},
            {"id": 2, "name": "none", "script": ""}]"##;
        let found: Vec<Script> = serde_json::from_str(text).unwrap();
        let table = table(&found, false).render(Paint::OFF);
        crate::golden::check("script-list.txt", &(table + "\n"));
    }
}
