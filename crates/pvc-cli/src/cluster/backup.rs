use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};
use crate::output::json;

/// Save the cluster's records as JSON
///
/// Everything the cluster knows about nodes, VMs, networks and volumes is written to
/// standard output or to a file; the content of volumes is not part of it. The passwords
/// of the nodes' BMCs are left out: a restore keeps those that are there, and a node's
/// daemon writes its own at its start. A file is created readable by its owner alone.
///
/// A store that holds no cluster, as one that has lost its data, has no backup: the
/// command fails, and FILE stays as it is. Name the file by its day all the same, and keep
/// several: an old or new cluster is saved like any other.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc cluster backup --file cluster-$(date +%F).json
  pvc -q cluster backup --secrets | gpg -e -r admin > cluster.json.gpg")]
pub struct Backup {
    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Also save the passwords of the nodes' BMCs, in clear
    #[arg(long)]
    secrets: bool,
}

impl Backup {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let records = pvc.client()?.backup(self.secrets)?;
        if !is_backup(&records) {
            // The cluster's API may be one that gives what is there, and be it nothing.
            return Err(Failure::failed("the store holds no cluster, and nothing was saved").hint(
                "it may have lost its data: keep the last backup, `pvc cluster restore` writes it \
                 back",
            ));
        }
        let backup = json::pretty(&records);
        match self.file {
            Some(file) if file != Path::new("-") => write(&file, &backup).map_err(|error| {
                Failure::failed(format!("cannot write `{}`: {}", file.display(), plain_io(&error)))
            }),
            _ => {
                pvc.out.line(backup);
                Ok(())
            }
        }
    }
}

/// Whether these are the records of a cluster, which `pvc cluster restore` takes.
fn is_backup(records: &Value) -> bool {
    records.as_object().is_some_and(|records| records.contains_key("/schema/version"))
}

/// Writes the file whole or not at all: half a backup is worse than the old one. Until then it has
/// a name that nobody can have prepared, for others may write to the folder; it is readable by its
/// owner alone from the beginning.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut part = tempfile::Builder::new()
        .prefix(".pvc-backup.")
        .suffix(".part")
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    part.write_all(text.as_bytes())?;
    part.write_all(b"\n")?;
    part.as_file().sync_all()?;
    part.persist(file).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_records_of_no_cluster_are_no_backup() {
        for (records, expected) in [
            (serde_json::json!({}), false),
            (serde_json::json!({ "/": "", "/schema": "" }), false),
            (serde_json::json!([]), false),
            (serde_json::json!({ "/schema/version": "15" }), true),
        ] {
            assert_eq!(is_backup(&records), expected, "{records}");
        }
    }

    #[test]
    fn what_others_have_put_into_the_folder_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let in_it = |name: &str| folder.path().join(name);
        std::fs::write(in_it("passwords"), "theirs").unwrap();
        symlink("passwords", in_it("cluster.json.part")).unwrap();
        symlink("passwords", in_it("cluster.json")).unwrap();
        write(&in_it("cluster.json"), "{}").unwrap();
        assert_eq!(std::fs::read_to_string(in_it("passwords")).unwrap(), "theirs");
        assert_eq!(std::fs::read_to_string(in_it("cluster.json")).unwrap(), "{}\n");
        let made = std::fs::symlink_metadata(in_it("cluster.json")).unwrap();
        assert!(made.is_file());
        assert_eq!(made.permissions().mode() & 0o777, 0o600);
        write(&in_it("cluster.json"), "{\"a\": 1}").unwrap();
        let names = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 3, "nothing is left over");
    }
}
