//! The token that a standalone daemon makes where nobody has set one: its API commands this machine
//! as root, and is within reach of every program on it.

#![allow(
    clippy::disallowed_methods,
    reason = "the standalone daemon's own file, before any port is there"
)]

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use anyhow::Context;
use nix::unistd::{Gid, Group};
use pvc_ports::Random;

/// Group whose members may read the token beside root, if there is such a group.
const GROUP: &str = "pvc";

/// The longest text that is taken for a token, in bytes.
const LONGEST: u64 = 1024;

/// The token in `file`; made there if there is none yet.
///
/// # Errors
/// The file cannot be read or written: an API whose token nobody can know is of no use, and one
/// without is open.
pub fn of_this_machine(file: &Path, random: &dyn Random) -> anyhow::Result<String> {
    match read(file) {
        Ok(token) if !token.is_empty() => return Ok(token),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error)
                .with_context(|| format!("the API's token `{}` cannot be read", file.display()));
        }
    }
    let token: String = (0..4).map(|_| format!("{:016x}", random.next_u64())).collect();
    let group = Group::from_name(GROUP).ok().flatten().map(|group| group.gid);
    write(file, &token, group)
        .with_context(|| format!("the API's token `{}` cannot be written", file.display()))?;
    tracing::info!(file = %file.display(), group = GROUP, "a token for the API was made: root may \
                                                           read it, and the group");
    Ok(token)
}

fn read(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text.trim().to_owned())
}

/// Never readable by others, also not for a moment.
fn write(file: &Path, token: &str, group: Option<Gid>) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let new = file.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut written = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    if let Some(group) = group {
        fchown(&written, None, Some(group.as_raw()))?;
        written.set_permissions(Permissions::from_mode(0o640))?;
    }
    writeln!(written, "{token}")?;
    written.sync_all()?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use pvc_linux::OsRandom;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_its_owners() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state/api-token");
        let token = of_this_machine(&file, &OsRandom).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(of_this_machine(&file, &OsRandom).unwrap(), token);
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o007, 0, "{mode:o}");
        assert_eq!(
            fs::read_dir(file.parent().unwrap()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_group_may_read_it_if_there_is_one_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("api-token");
        for (group, mode) in [(Some(Gid::current()), 0o640), (None, 0o600)] {
            write(&file, "token", group).unwrap();
            let found = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{found:o}");
        }
    }

    #[test]
    fn an_empty_token_is_made_anew_and_what_cannot_be_read_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("api-token");
        fs::write(&file, "\n").unwrap();
        assert_eq!(of_this_machine(&file, &OsRandom).unwrap().len(), 64);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let error = of_this_machine(&file, &OsRandom).unwrap_err();
        assert!(error.to_string().ends_with("cannot be read"), "{error}");
    }
}
