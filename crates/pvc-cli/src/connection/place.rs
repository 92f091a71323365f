//! Place where connections are stored, and whether it can be trusted: what is read there decides
//! which server gets which key.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::outcome::Failure;

const FILE: &str = "pvc.json";

/// Reason why there is no place to store connections in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPlace {
    /// Neither the directory nor a home is known.
    Unnamed,
    /// Directory that belongs to somebody else.
    Foreign { path: PathBuf, owner: u32 },
    /// Everybody can write it.
    Open { path: PathBuf },
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoPlace::Unnamed => f.write_str(
                "there is no place for connections: neither `PVC_CLIENT_DIR` nor `HOME` is set",
            ),
            NoPlace::Foreign { path, owner } => {
                write!(
                    f,
                    "`{}` is not used for connections: it belongs to the user {owner}",
                    path.display()
                )
            }
            NoPlace::Open { path } => {
                write!(
                    f,
                    "`{}` is not used for connections: everybody can write it",
                    path.display()
                )
            }
        }
    }
}

impl NoPlace {
    /// The failure that wanting to store something is.
    pub fn failure(&self) -> Failure {
        Failure::failed(self.to_string()).hint(match self {
            NoPlace::Unnamed => {
                "set `PVC_CLIENT_DIR` to a directory that is yours alone: connections hold keys"
                    .to_owned()
            }
            NoPlace::Foreign { .. } => {
                "give it back to its user, or name a directory of your own with `PVC_CLIENT_DIR`"
                    .to_owned()
            }
            NoPlace::Open { path } => format!(
                "`chmod o-w {}`, or name a directory that is yours alone with `PVC_CLIENT_DIR`",
                path.display()
            ),
        })
    }
}

/// The file that this user's connections are stored in, whether it exists or not.
pub fn of_this_user() -> Result<PathBuf, NoPlace> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory =
        set("PVC_CLIENT_DIR").or_else(|| set("HOME").map(|home| home.join(".config/pvc")));
    let file = directory.ok_or(NoPlace::Unnamed)?.join(FILE);
    trusted(&file, &owners())?;
    Ok(file)
}

/// Owners whose files this program believes: its user, root, and, behind `sudo`, the person who
/// called it with their own home.
fn owners() -> Vec<u32> {
    let user = nix::unistd::geteuid().as_raw();
    let caller = std::env::var("SUDO_UID").ok().and_then(|id| id.parse().ok());
    [Some(user), Some(0), caller.filter(|_| user == 0)].into_iter().flatten().collect()
}

/// Checks the file and its directory, as far as they exist.
fn trusted(file: &Path, owners: &[u32]) -> Result<(), NoPlace> {
    let directory = file.parent().unwrap_or(Path::new("."));
    for path in [directory, file] {
        let Some((owner, mode)) = owner_and_mode(path) else { continue };
        if !owners.contains(&owner) {
            return Err(NoPlace::Foreign { path: path.to_owned(), owner });
        }
        if mode & 0o002 != 0 {
            return Err(NoPlace::Open { path: path.to_owned() });
        }
    }
    Ok(())
}

/// `None` for what does not exist. What cannot be looked at cannot be read or written either, and
/// says so itself.
fn owner_and_mode(path: &Path) -> Option<(u32, u32)> {
    let found: io::Result<std::fs::Metadata> = std::fs::metadata(path);
    found.ok().map(|metadata| (metadata.uid(), metadata.mode()))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf, u32) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        let owner = std::fs::metadata(directory.path()).unwrap().uid();
        (directory, file, owner)
    }

    #[test]
    fn a_place_that_does_not_exist_yet_is_trusted() {
        assert_eq!(trusted(Path::new("/nonexistent/pvc/pvc.json"), &[]), Ok(()));
    }

    #[test]
    fn a_place_of_ones_own_is_trusted_and_one_of_somebody_else_is_not() {
        let (directory, file, owner) = place();
        assert_eq!(trusted(&file, &[owner]), Ok(()));
        let path = directory.path().to_owned();
        assert_eq!(trusted(&file, &[owner + 1]), Err(NoPlace::Foreign { path, owner }));
    }

    #[test]
    fn what_everybody_can_write_is_not_trusted() {
        let (directory, file, owner) = place();
        std::fs::write(&file, "{}").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert_eq!(trusted(&file, &[owner]), Err(NoPlace::Open { path: file.clone() }));
        std::fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
        assert_eq!(trusted(&file, &[owner]), Ok(()), "a group is somebody's choice");
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
        let path = directory.path().to_owned();
        assert_eq!(trusted(&file, &[owner]), Err(NoPlace::Open { path }));
    }
}
