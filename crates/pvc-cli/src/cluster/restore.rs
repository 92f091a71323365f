use pvc_api_types::operations::cluster::{GetStatus, PostRestore, Restoration};
use pvc_api_types::param::Added;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use pvc_model::cluster::is_of_another;
use serde_json::{Map, Value};

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome, plain_io};

/// Write the records of a backup back
///
/// Each record of the backup that says what is to be replaces the present one; records
/// that are not in the backup stay. What was under way then, and what nodes said of
/// themselves, does not come back: tasks, held volumes, moves, changes that wait to be
/// confirmed, faults. A VM that was being made, imported, restored or removed comes back
/// disabled. The answer names such VMs, and says whether the cluster is in maintenance.
///
/// What would be replaced is shown first, and the name of the backup's cluster has to be
/// typed. A backup of another cluster than this one is refused, unless `--force` is said;
/// a store that has lost everything has no name, and takes any. Stop
/// `pvc.target` on every node before, which leaves guests and the API running: a node's
/// daemon acts on the records at once. It pulls the plug of a guest whose VM is off by
/// them, or belongs to another node. The question says how many VMs are off. Guests that
/// cannot be shut down before are dealt with before the daemons are started again; see
/// "Restoring the records" in the manual.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc cluster restore --filename cluster.json")]
pub struct Restore {
    /// The file that `pvc cluster backup` wrote; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,

    /// Also the backup of a cluster with another name
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Restore {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let text = read(&self.filename).map_err(|error| {
            Failure::usage(format!(
                "cannot read `{}`: {}",
                self.filename.display(),
                plain_io(&error)
            ))
        })?;
        let backup: Value = serde_json::from_str(&text).map_err(|error| {
            Failure::failed(format!("`{}` is no JSON: {error}", self.filename.display()))
        })?;
        let records = backup
            .as_object()
            .filter(|records| records.contains_key("/schema/version"))
            .ok_or_else(|| {
                Failure::failed(format!("`{}` is no backup of a cluster", self.filename.display()))
                    .hint(
                        "a backup is one object of records by path, with `/schema/version` among \
                           them",
                    )
            })?;
        let here = pvc.client()?.read_soon(GetStatus)?.read()?.cluster_name;
        let names = Names { backup: name(records), here: &here };
        if is_of_another(names.backup, &here) && !self.force {
            return Err(Failure::failed(format!(
                "`{}` is a backup of cluster `{}`, and this is cluster `{here}`",
                self.filename.display(),
                names.backup,
            ))
            .hint(
                "is it the right connection (`pvc connection list`)? `--force` restores the backup \
                 of a cluster with another name",
            ));
        }
        let sentence = format!(
            "{} by the {} of `{}`{} ({}).{}",
            names.replaced(),
            records.len(),
            self.filename.display(),
            names.origin(),
            summary(records.keys()),
            warning(records),
        );
        let restoration =
            Restoration { really: "yes".to_owned(), force: Added(self.force), cluster_data: text };
        // A backup is large, and is sent in vain where nobody can be asked.
        confirm::check_can_type(pvc, self.yes)?;
        // What the API would refuse nobody is asked about.
        if !pvc.unasked(self.yes.yes) {
            pvc.client()?.dry_run(PostRestore, [], &restoration)?;
        }
        confirm::type_name(pvc, self.yes, &sentence, names.typed())?;
        let message = pvc.client()?.change(PostRestore, [], &restoration)?;
        pvc.done(message);
        Ok(())
    }
}

/// Names of the backup's cluster and of the one that it is restored into. Either may be empty: a
/// store that has lost everything has none.
struct Names<'a> {
    backup: &'a str,
    here: &'a str,
}

impl<'a> Names<'a> {
    fn replaced(&self) -> String {
        match self.here {
            "" => "This replaces records of a store without a cluster's name".to_owned(),
            here => format!("This replaces records of cluster `{here}`"),
        }
    }

    fn origin(&self) -> String {
        match self.backup {
            "" => String::new(),
            backup => format!(", a backup of cluster `{backup}`"),
        }
    }

    /// Word that has to be typed: never an empty one, which Enter would be.
    fn typed(&self) -> &'a str {
        let names = [self.backup, self.here];
        names.into_iter().find(|name| !name.is_empty()).unwrap_or("restore")
    }
}

/// The name of the cluster that a backup is of; empty if the backup does not say it.
fn name(records: &Map<String, Value>) -> &str {
    records.get("/config").and_then(Value::as_str).unwrap_or_default()
}

/// The text of a file; `-` is standard input.
pub(super) fn read(file: &Path) -> std::io::Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map(|_| text)
}

/// Numbers of nodes, VMs and networks that a set of paths describes.
fn summary<'a>(paths: impl Iterator<Item = &'a String>) -> String {
    let (mut nodes, mut vms, mut networks) = (0, 0, 0);
    for path in paths {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        match parts[..] {
            ["nodes", _] => nodes += 1,
            ["domains", _] => vms += 1,
            ["networks", _] => networks += 1,
            _ => {}
        }
    }
    format!("{nodes} nodes, {vms} VMs, {networks} networks")
}

/// Sentences about the VMs that are off once `records` are restored, each with a space before it;
/// empty if there are none.
fn warning(records: &Map<String, Value>) -> String {
    let is_off = |(path, state): &(&String, &Value)| {
        let parts: Vec<&str> = path.split('/').collect();
        matches!(parts[..], ["", "domains", _, "state"])
            && matches!(state.as_str(), Some("stop" | "shutdown"))
    };
    match records.iter().filter(is_off).count() {
        0 => String::new(),
        off => format!(
            " By them {off} VMs are to be off: if a guest of theirs runs, a node's daemon pulls \
             its plug at once, or when it is started. `systemctl stop pvc.target` on all nodes \
             before leaves the guests and the API running."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_that_are_off_by_a_backup_are_counted_and_what_becomes_of_their_guests_is_said() {
        let of = |records: Value| warning(records.as_object().expect("an object"));
        let off = of(serde_json::json!({
            "/domains/a/state": "stop",
            "/domains/b/state": "shutdown",
            "/domains/c/state": "start",
            "/domains/d/state": "disable",
            "/domains/e/tags/state": "stop",
            "/domains/f": "stop",
            "/nodes/state": "stop",
            "/domains/g/state": 1,
        }));
        assert!(off.starts_with(" By them 2 VMs are to be off: "), "{off}");
        assert!(off.contains("`systemctl stop pvc.target` on all nodes"), "{off}");
        assert_eq!(of(serde_json::json!({ "/domains/a/state": "start" })), "");
    }

    #[test]
    fn what_is_typed_is_the_name_of_the_backup_and_never_nothing() {
        let records = |name: &str| serde_json::json!({ "/config": name });
        let none = serde_json::json!({ "/config/maintenance": "true" });
        assert_eq!(name(records("prod").as_object().expect("an object")), "prod");
        assert_eq!(name(none.as_object().expect("an object")), "");
        for (backup, here, typed) in [
            ("prod", "prod", "prod"),
            ("prod", "", "prod"),
            ("prod", "lab", "prod"),
            ("", "lab", "lab"),
            ("", "", "restore"),
        ] {
            assert_eq!(Names { backup, here }.typed(), typed, "{backup} {here}");
        }
    }

    #[test]
    fn only_the_objects_themselves_are_counted() {
        let paths = [
            "/",
            "/nodes",
            "/nodes/hv1",
            "/nodes/hv1/state",
            "/domains/x",
            "/networks/10",
            "/config",
        ];
        let paths: Vec<String> = paths.map(str::to_owned).to_vec();
        assert_eq!(summary(paths.iter()), "1 nodes, 1 VMs, 1 networks");
    }
}
