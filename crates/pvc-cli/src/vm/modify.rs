use std::path::PathBuf;

use clap::Args;
use pvc_api_types::Vm;

use super::live::{self, Decision, Edit};
use super::{Which, definition};
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::edit;
use crate::outcome::{Failure, Outcome};

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

    /// Take it also if it is plugged into a network between the nodes, or has the MAC address of
    /// another VM in a network
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
            None => edit::edited(&vm.name, ".xml", &present)?,
        };
        if !self.editor {
            return self.apply(pvc, vm, &present, &new);
        }
        let checked = definition::checked(pvc, "the new definition", &new);
        match checked.and_then(|new| self.apply(pvc, vm, &present, &new)) {
            Err(failure) if !failure.message.is_empty() => Err(edit::kept(&new, ".xml", failure)),
            outcome => outcome,
        }
    }

    fn apply(&self, pvc: &mut Pvc, vm: Vm, present: &str, new: &str) -> Outcome {
        if !edit::show_changes(pvc, present, &definition::pretty(new)?) {
            return Ok(());
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
