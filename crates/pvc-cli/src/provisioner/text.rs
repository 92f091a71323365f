//! Texts that are kept: userdata and scripts.

use std::io::Read as _;
use std::path::Path;

use clap::Args;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::edit;
use crate::outcome::{Exit, Failure, Outcome, plain_io};
use crate::output::{Cell, Table};

/// Number of lines of a text that a list shows.
const LINES: usize = 4;

/// The text in `file`, or on standard input for `-`.
pub fn read(file: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().read_to_end(&mut bytes).map(drop),
        false => std::fs::read(file).map(|read| bytes = read),
    };
    read.map_err(|error| {
        Failure::usage(format!("cannot read `{}`: {}", file.display(), plain_io(&error)))
    })?;
    String::from_utf8(bytes)
        .map_err(|_| Failure::failed(format!("`{}` is not UTF-8 text", file.display())))
}

/// The list of texts, each by its name, its number and itself; a line of the text to a row.
pub fn table<'a>(
    (group, column): (&'static str, &'static str),
    rows: impl Iterator<Item = (&'a str, i64, &'a str)>,
    is_long: bool,
) -> Table {
    let mut table = Table::new().group(group, &[("Name", 12), ("ID", 5), (column, 8)]);
    for (name, id, text) in rows {
        let mut lines: Vec<&str> = text.lines().collect();
        if !is_long && lines.len() > LINES {
            lines.truncate(LINES);
            lines.push("[...]");
        }
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        table.row(vec![name.into(), id.to_string().into(), first.into()]);
        for line in lines {
            table.more(vec![Cell::default(), Cell::default(), line.into()]);
        }
    }
    table
}

/// Source of a new text.
#[derive(Debug, Args)]
pub struct Source {
    /// The file with the new text; `-` is standard input
    #[arg(value_name = "FILENAME", conflicts_with = "editor")]
    file: Option<std::path::PathBuf>,

    /// Edit the present text (`$VISUAL`, `$EDITOR`, or vi)
    #[arg(short, long)]
    editor: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Source {
    /// Has `put` keep a new text: that of the file, or what becomes of the present one in an
    /// editor, after a look at what has changed.
    pub fn replace(
        self,
        pvc: &mut Pvc,
        (what, name): (&str, &str),
        suffix: &str,
        present: impl FnOnce(&mut Pvc) -> Result<String, Failure>,
        put: impl FnOnce(&mut Pvc, String) -> Result<String, Failure>,
    ) -> Outcome {
        if let Some(file) = &self.file {
            let text = read(file)?;
            let message = put(pvc, text)?;
            pvc.done(message);
            return Ok(());
        }
        if !self.editor {
            return Err(Failure::usage(
                "neither a file with the new text nor `--editor` was given",
            )
            .hint("`--editor` edits the present one; FILENAME `-` is standard input"));
        }
        let present = present(pvc)?;
        let new = edit::edited(name, suffix, &present)?;
        if !edit::show_changes(pvc, &present, &new) {
            return Ok(());
        }
        let asked =
            confirm::ask(pvc, self.yes, &format!("Write modifications to {what} \"{name}\""));
        let made = asked.and_then(|()| put(pvc, new.clone()));
        match made {
            Ok(message) => {
                pvc.done(message);
                Ok(())
            }
            // Declined: said, and a failure for scripts, as of VMs.
            Err(failure) if failure.message.is_empty() => {
                Err(Failure { exit: Exit::Failed, ..failure })
            }
            Err(failure) => Err(edit::kept(&new, suffix, failure)),
        }
    }
}
