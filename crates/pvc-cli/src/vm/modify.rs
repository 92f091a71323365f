use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use pvc_api_types::Vm;
use similar::{ChangeTag, TextDiff};

use super::live::{self, Decision, Edit};
use super::{Which, definition};
use crate::answer::Format;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Failure, Outcome, plain_io};
use crate::output::{Colour, Paint};

/// Replace a VM's definition
///
/// The new one comes from a file or from an editor (`$VISUAL`, `$EDITOR`, or vi). What
/// changes is shown and has to be confirmed. A running guest sees the change with its
/// next start; `--restart` restarts it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm modify web1 --editor
  pvc vm modify web1 web1.xml --restart --yes")]
pub struct Modify {
    #[command(flatten)]
    vm: Which,

    /// The file with the new XML; `-` is standard input
    #[arg(value_name = "CFGFILE", conflicts_with = "editor")]
    cfgfile: Option<PathBuf>,

    /// Edit the present XML
    #[arg(short, long)]
    editor: bool,

    /// Restart the VM afterwards
    #[arg(short, long)]
    restart: bool,

    /// Do not ask whether the change is right
    #[arg(short = 'd', long)]
    confirm_diff: bool,

    /// Do not ask whether to restart
    #[arg(short, long)]
    confirm_restart: bool,

    /// Ask neither
    #[arg(short, long)]
    yes: bool,

    /// Take it also if it is plugged into a network between the nodes
    #[arg(long)]
    force: bool,
}

impl Modify {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        if self.cfgfile.is_none() && !self.editor {
            return Err(nothing_given(&self.vm.domain));
        }
        let vm = live::find(pvc, &self.vm.domain)?;
        definition::stored(&vm.name, &vm.xml)?;
        let present = definition::pretty(&vm.xml)?;
        let new = match &self.cfgfile {
            Some(file) => definition::read(pvc, file)?,
            None => edited(&vm.name, &present)?,
        };
        if !self.editor {
            return self.apply(pvc, vm, &present, &new);
        }
        let checked = definition::checked(pvc, "the new definition", &new);
        match checked.and_then(|new| self.apply(pvc, vm, &present, &new)) {
            Err(failure) if !failure.message.is_empty() => Err(kept(&new, failure)),
            outcome => outcome,
        }
    }

    fn apply(&self, pvc: &mut Pvc, vm: Vm, present: &str, new: &str) -> Outcome {
        let changes = difference(present, &definition::pretty(new)?, pvc.out.paint());
        if changes.is_empty() {
            pvc.out.line("Aborting with no modifications.");
            return Ok(());
        }
        if pvc.answers == Format::Sentence {
            pvc.out.line("Pending modifications:");
            pvc.out.line("");
            pvc.out.line(changes);
        }
        let name = vm.name.clone();
        let edit = Edit::written(vm, definition::stored(&name, new)?, self.force);
        if !self.confirm_diff && !pvc.unasked(self.yes) {
            edit.check(pvc)?;
            confirm::ask(pvc, Yes::default(), &format!("Write modifications to VM \"{name}\""))
                .map_err(declined_is_a_failure)?;
        }
        let decision = self.decide(pvc, &edit)?;
        edit.save(pvc, decision)
    }

    /// Whether to restart. Asked only if that was requested and the guest runs.
    fn decide(&self, pvc: &mut Pvc, edit: &Edit<'_>) -> Result<Decision, Failure> {
        if !self.restart || !edit.is_running() {
            return Ok(if self.restart { Decision::Undecided } else { Decision::Later });
        }
        if self.confirm_restart || pvc.unasked(self.yes) {
            return Ok(Decision::Restart);
        }
        edit.check(pvc)?;
        Ok(edit.ask(pvc))
    }
}

fn nothing_given(vm: &str) -> Failure {
    Failure::usage("neither a file with the new definition nor `--editor` was given").hint(format!(
        "`pvc vm modify {vm} --editor` edits the present one; `pvc vm modify {vm} FILE` takes it \
         from a file, \
         and from standard input if FILE is `-`"
    ))
}

/// A declined change ends this command with exit code 1, unlike others: scripts that edit must
/// notice.
fn declined_is_a_failure(failure: Failure) -> Failure {
    Failure { exit: crate::outcome::Exit::Failed, ..failure }
}

/// Lets the operator edit a text.
fn edited(vm: &str, present: &str) -> Result<String, Failure> {
    let cannot = |what: &str, error: &std::io::Error| {
        Failure::failed(format!("cannot {what}: {}", plain_io(error)))
    };
    let mut file = tempfile::Builder::new()
        .prefix(&format!("pvc-{}-", vm.replace('/', "_")))
        .suffix(".xml")
        .tempfile()
        .map_err(|error| cannot("make a file to edit", &error))?;
    file.write_all(present.as_bytes()).map_err(|error| cannot("write the file to edit", &error))?;
    let set = |name| std::env::var(name).ok().filter(|editor| !editor.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let _meanwhile = interrupt::left_to_another();
    let status = Command::new("sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(file.path())
        .status()
        .map_err(|error| cannot("start the editor", &error))?;
    if !status.success() {
        return Err(Failure::failed(format!(
            "the editor `{editor}` failed, and nothing was changed"
        ))
        .hint("`EDITOR` names the editor to use"));
    }
    std::fs::read_to_string(file.path()).map_err(|error| cannot("read the edited file", &error))
}

/// Keeps what somebody has typed, since it could not be used.
fn kept(text: &str, failure: Failure) -> Failure {
    let kept = tempfile::Builder::new().prefix("pvc-edited-").suffix(".xml").tempfile().and_then(
        |mut file| {
            file.write_all(text.as_bytes())?;
            file.keep().map_err(|error| error.error)
        },
    );
    match kept {
        Ok((_, path)) => {
            let hint = format!("what you have edited is kept in `{}`", path.display());
            let hint = failure
                .hint
                .as_ref()
                .map_or_else(|| hint.clone(), |before| format!("{before}; {hint}"));
            failure.hint(hint)
        }
        Err(_) => failure,
    }
}

/// Time for which a diff may be looked for; after that a longer one than needed is shown.
const DIFF_TIME: Duration = Duration::from_secs(1);

/// A unified diff in colours; empty if nothing differs.
fn difference(old: &str, new: &str, paint: Paint) -> String {
    let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(old, new);
    let mut text = String::new();
    for group in diff.grouped_ops(3) {
        if !text.is_empty() {
            text.push_str("...\n");
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let line = change.value().trim_end_matches('\n');
            let line = match change.tag() {
                ChangeTag::Insert => paint.colour(Colour::Green, format!("+{line}")),
                ChangeTag::Delete => paint.colour(Colour::Red, format!("-{line}")),
                ChangeTag::Equal => format!(" {line}"),
            };
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_change_makes_no_difference() {
        assert_eq!(difference("a\nb\n", "a\nb\n", Paint::OFF), "");
    }

    #[test]
    fn a_change_is_shown_with_its_surroundings() {
        let text = difference("a\nb\nc\n", "a\nB\nc\n", Paint::OFF);
        assert_eq!(text, " a\n-b\n+B\n c\n");
    }
}
