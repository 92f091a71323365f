mod add;
mod get;
mod remove;

use clap::Subcommand;
use pvc_api_types::VmTag;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::output::{Cell, Table, paint};

#[derive(Debug, Subcommand)]
pub enum Tag {
    Add(add::Add),
    Get(get::Get),
    Remove(remove::Remove),
}

impl Tag {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Tag::Add(command) => command.run(pvc),
            Tag::Get(command) => command.run(pvc),
            Tag::Remove(command) => command.run(pvc),
        }
    }
}

pub fn table(tags: &[VmTag]) -> Table {
    let mut table = Table::new().columns(&[("Name", 4), ("Type", 5), ("Protected", 10)]);
    for tag in tags {
        let protected = if tag.protected { "True" } else { "False" };
        table.row(vec![
            tag.name.as_str().into(),
            tag.r#type.as_str().into(),
            Cell::coloured(protected, paint::flag(tag.protected)),
        ]);
    }
    table
}
