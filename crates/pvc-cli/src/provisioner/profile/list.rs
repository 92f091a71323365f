use clap::Args;
use pvc_api_types::Profile;
use pvc_api_types::operations::provisioner::GetProvisionerProfile;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Table;
use crate::provisioner::{list, or_unset};

/// List the profiles
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner profile list
  pvc provisioner profile list '^web' -f csv")]
pub struct List {
    /// Only those with this in their name
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let what = ("profile", "pvc provisioner profile list");
        let name = |one: &Profile| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerProfile, what, name, table)
    }
}

fn table(profiles: &[Profile]) -> Table {
    let mut table = Table::new()
        .group("Profiles", &[("Name", 18), ("ID", 5), ("Source", 7)])
        .group("Templates", &[("System", 7), ("Network", 8), ("Storage", 8)])
        .group("Data", &[("Userdata", 9), ("Script", 7), ("Script Arguments", 16)]);
    for profile in profiles {
        let source = match profile.r#type.as_str() {
            "ova" => format!("OVA {}", profile.ova),
            other => other.to_owned(),
        };
        let given = profile.arguments.iter().filter(|argument| !argument.is_empty());
        let arguments: Vec<&str> = given.map(String::as_str).collect();
        table.row(vec![
            profile.name.as_str().into(),
            profile.id.to_string().into(),
            source.into(),
            profile.system_template.as_str().into(),
            profile.network_template.as_str().into(),
            profile.storage_template.as_str().into(),
            profile.userdata.as_str().into(),
            profile.script.as_str().into(),
            or_unset(Some(&arguments.join(", "))).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r##"[{"id": 1, "name": "web", "type": "provisioner", "system_template": "small",
            "network_template": "web", "storage_template": "web", "userdata": "web",
            "script": "debootstrap", "ova": "N/A", "arguments": ["release=12", "packages=a,b"]},
            {"id": 2, "name": "appliance", "type": "ova", "system_template": "appliance",
            "network_template": "N/A", "storage_template": "N/A", "userdata": "N/A",
            "script": "ova", "ova": "appliance", "arguments": [""]}]"##;
        let found: Vec<Profile> = serde_json::from_str(text).unwrap();
        let table = table(&found).render(Paint::OFF);
        crate::golden::check("profile-list.txt", &(table + "\n"));
    }
}
