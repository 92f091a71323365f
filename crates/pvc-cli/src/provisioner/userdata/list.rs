use clap::Args;
use pvc_api_types::Userdata;
use pvc_api_types::operations::provisioner::GetProvisionerUserdata;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Table;
use crate::provisioner::{list, text};

/// List the userdata
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner userdata list
  pvc provisioner userdata list '^web' -f csv")]
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
        let table = |found: &[Userdata]| table(found, is_long);
        let what = ("userdata", "pvc provisioner userdata list");
        let name = |one: &Userdata| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerUserdata, what, name, table)
    }
}

fn table(found: &[Userdata], is_long: bool) -> Table {
    let rows = found.iter().map(|one| (one.name.as_str(), one.id, one.userdata.as_str()));
    text::table(("Userdata", "Document"), rows, is_long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r##"[{"id": 1, "name": "web", "userdata": "#cloud-config\na: 1\nb: 2\nc: 3\nd: 4\n"},
            {"id": 2, "name": "none", "userdata": ""}]"##;
        let found: Vec<Userdata> = serde_json::from_str(text).unwrap();
        let table = table(&found, false).render(Paint::OFF);
        crate::golden::check("userdata-list.txt", &(table + "\n"));
    }
}
