//! Man pages.

use std::io::Write;
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

/// Writes a page. What the help says at its end is laid out by hand, so it is kept as it is.
fn page(command: clap::Command) -> std::io::Result<Vec<u8>> {
    let epilogue = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let groups = command.has_subcommands();
    let man = clap_mangen::Man::new(command);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if groups {
        man.render_subcommands_section(&mut page)?;
    }
    for paragraph in epilogue.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        let (heading, body) = paragraph.split_once(":\n").unwrap_or(("Notes", paragraph));
        write!(page, ".SH {}\n.nf\n{}\n.fi\n", heading.to_uppercase(), verbatim(body))?;
    }
    Ok(page)
}

/// Text that the page's formatter leaves alone.
fn verbatim(text: &str) -> String {
    let line = |line: &str| {
        let escaped = line.replace('\\', "\\e").replace('-', "\\-");
        // A dot or an apostrophe at the beginning of a line is an order.
        if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Writes the page of a command and those of all below it; returns how many.
fn write(command: &clap::Command, directory: &Path) -> std::io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    write_below(command, "pvc", directory)
}

fn write_below(command: &clap::Command, name: &str, directory: &Path) -> std::io::Result<usize> {
    // The page is named after the whole path: `pvc-vm-start`.
    let titled = command.clone().name(name.to_owned()).display_name(name.to_owned());
    std::fs::write(directory.join(format!("{name}.1")), page(titled)?)?;
    let mut pages = 1;
    for below in
        command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help")
    {
        pages += write_below(below, &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(pages)
}
