//! Parts of VMs: templates, userdata, scripts, and profiles of all of them.

mod create;
mod ova;
mod profile;
mod program;
mod script;
mod template;
mod text;
pub mod userdata;

use clap::Subcommand;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::provisioner::NameFilter;
use serde::de::DeserializeOwned;

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::Table;

/// Make VMs from templates
#[derive(Debug, Subcommand)]
pub enum Provisioner {
    Create(create::Create),
    /// Manage OVA images
    #[command(subcommand, arg_required_else_help = true)]
    Ova(ova::Ova),
    /// Manage profiles
    #[command(subcommand, arg_required_else_help = true)]
    Profile(profile::Profile),
    /// Manage provisioning scripts
    #[command(subcommand, arg_required_else_help = true)]
    Script(script::Script),
    /// Manage templates
    #[command(subcommand, arg_required_else_help = true)]
    Template(template::Template),
    /// Manage userdata documents
    #[command(subcommand, arg_required_else_help = true)]
    Userdata(userdata::Userdata),
}

impl Provisioner {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        match self {
            Provisioner::Create(command) => command.run(pvc),
            Provisioner::Ova(command) => command.run(pvc),
            Provisioner::Profile(command) => command.run(pvc),
            Provisioner::Script(command) => command.run(pvc),
            Provisioner::Template(command) => command.run(pvc),
            Provisioner::Userdata(command) => command.run(pvc),
        }
    }
}

/// Lists what `operation` finds of this name: as it came, by its names alone, or as rows. `what` is
/// one of them, and the command that lists all.
fn list<O, T>(
    pvc: &mut Pvc,
    listing: &Listing,
    limit: Option<String>,
    operation: O,
    what: (&str, &str),
    name: impl Fn(&T) -> String,
    table: impl FnOnce(&[T]) -> Table,
) -> Outcome
where
    O: Operation<At = [String; 0], Params = NameFilter, Reply = Vec<T>>,
    T: DeserializeOwned,
{
    listing.check()?;
    let narrowed = limit.is_some();
    let answer = or_empty(pvc.client()?.read(operation, [], &NameFilter { limit }))?;
    let found: Option<Vec<T>> = listing.read(pvc, &answer, narrowed, what)?;
    match found {
        Some(found) => listing.print(pvc, &found, name, table),
        None => Ok(()),
    }
}

/// The word for what is not set.
const UNSET: &str = "N/A";

/// A value, or the word for none.
fn or_unset(value: Option<&str>) -> &str {
    value.filter(|value| !value.is_empty()).unwrap_or(UNSET)
}
