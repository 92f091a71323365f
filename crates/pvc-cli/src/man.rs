//! Man pages.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};
use crate::tree;

/// Write the man pages into a directory
///
/// One page for each command, `pvc.1`, `pvc-vm.1`, `pvc-vm-start.1` and so on. Packages
/// are built with it.
#[derive(Debug, Args)]
pub struct Man {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let mut command = tree::command().disable_help_subcommand(true);
        command.build();
        let pages = write(&command, &self.directory).map_err(|error| {
            Failure::failed(format!(
                "cannot write the man pages into `{}`: {}",
                self.directory.display(),
                plain_io(&error)
            ))
        })?;
        pvc.note(&format!("{pages} pages written to `{}`", self.directory.display()));
        Ok(())
    }
}

/// Writes the page of a command and those of all below it; returns how many.
fn write(command: &clap::Command, directory: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    write_below(command, "pvc", directory)
}

fn write_below(command: &clap::Command, name: &str, directory: &Path) -> std::io::Result<usize> {
    // The page is named after the whole path: `pvc-vm-start`.
    let titled = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let mut page = Vec::new();
    clap_mangen::Man::new(titled).render(&mut page)?;
    std::fs::write(directory.join(format!("{name}.1")), page)?;
    let mut pages = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        pages += write_below(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(pages)
}
