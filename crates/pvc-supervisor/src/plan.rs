//! Step that a change of a program's specification needs.

use crate::spec::{ProgramSpec, Reload};

/// Action on a program that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Only what matters later has changed.
    Keep,
    /// Only its files have changed, and it can read them again.
    Reload,
    Restart,
    Stop,
}

/// The step from how a program runs to how it is wanted, if it is.
pub fn step(runs: &ProgramSpec, wanted: Option<&ProgramSpec>) -> Step {
    let Some(wanted) = wanted else { return Step::Stop };
    let is_same_process =
        runs.program == wanted.program && runs.args == wanted.args && runs.env == wanted.env;
    match (is_same_process, runs.files == wanted.files, &wanted.reload) {
        (false, ..) => Step::Restart,
        (true, true, _) => Step::Keep,
        (true, false, Reload::Restart) => Step::Restart,
        (true, false, Reload::Signal(_) | Reload::Command(_)) => Step::Reload,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pvc_ports::{FileAccess, ProgramSignal};

    use super::*;
    use crate::spec::{ConfigFile, Ready, Stop};

    fn spec() -> ProgramSpec {
        ProgramSpec {
            program: "/usr/sbin/dnsmasq".to_owned(),
            args: vec!["--keep-in-foreground".to_owned()],
            env: Vec::new(),
            files: BTreeMap::new(),
            reload: Reload::Signal(ProgramSignal::Hangup),
            ready: Ready::AtOnce,
            stop: Stop::default(),
        }
    }

    #[test]
    fn a_program_is_reloaded_for_its_files_and_restarted_for_its_arguments() {
        let file = ConfigFile { contents: b"x".to_vec(), access: FileAccess::PUBLIC };
        let with_file = ProgramSpec { files: [("/etc/x".into(), file)].into(), ..spec() };
        let with_arg = ProgramSpec { args: Vec::new(), ..with_file.clone() };
        let with_env = ProgramSpec { env: vec![("A".to_owned(), "b".to_owned())], ..spec() };
        let without_reload = ProgramSpec { reload: Reload::Restart, ..with_file.clone() };
        let soon = Stop { within: std::time::Duration::ZERO, ..Stop::default() };
        let other_stop = ProgramSpec { stop: soon, ..spec() };
        for (wanted, expected) in [
            (spec(), Step::Keep),
            (with_file, Step::Reload),
            (with_arg, Step::Restart),
            (with_env, Step::Restart),
            (without_reload, Step::Restart),
            (other_stop, Step::Keep),
        ] {
            assert_eq!(step(&spec(), Some(&wanted)), expected, "{wanted:?}");
        }
        assert_eq!(step(&spec(), None), Step::Stop);
    }
}
