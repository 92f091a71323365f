//! Renamings as versions of PVC before this one left them: notes below `/pvcrs/renamings`, each
//! with an ephemeral key `owner` while the process lives that works on it. Now a renaming is a job;
//! a note that nobody works on any more becomes one, which takes it back.

use pvc_model::Uuid;
use pvc_model::job::{JobProgress, JobSpec};
use pvc_model::storage::VolumeId;
use pvc_ports::{MultiError, Op};
use serde::Deserialize;

use super::{Kind, PLAIN, job};
use crate::error::StoreError;
use crate::once;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};
use crate::store::{Store, flat, is_conflict};

const ROOT: &str = "/pvcrs/renamings";

/// Largest number of volumes of one renaming: no VM has as many disks.
const MOST_VOLUMES: usize = 1_000;

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    is_observed: |_| true,
    is_for_scripts: |_| true,
    for_jobs: &[ROOT],
    ..PLAIN
};

/// A renaming that was left half way: the VM's record has the old names, some of its volumes may
/// have the new ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormerRenaming {
    pub vm: Uuid,
    pub from: String,
    pub to: String,
    /// The volumes by their old and new names.
    pub volumes: Vec<(VolumeId, VolumeId)>,
}

#[derive(Deserialize)]
struct Note {
    from: String,
    to: String,
    /// Old and new names, each `pool/volume`.
    volumes: Vec<(String, String)>,
}

impl Store {
    /// The renamings that a process of an earlier version began, and that nobody works on any more.
    pub fn former_renamings(&self) -> Vec<FormerRenaming> {
        self.with_raw(|raw| {
            let vms = raw.children(ROOT).into_iter();
            vms.filter_map(|vm| read(raw, Uuid::try_parse(&vm).ok()?)).collect()
        })
    }

    /// Records a job in the place of the note about VM `vm`. `false` if the note is not as it was
    /// seen, if there is a job of that name already, or if the job would be more than is read of
    /// one: the note is all that says what the volumes were called.
    pub async fn replace_former_renaming(
        &self,
        vm: Uuid,
        spec: &JobSpec,
        progress: &JobProgress,
    ) -> Result<bool, StoreError> {
        let note = path(vm);
        let Some(version) = self.with_raw(|raw| raw.get(&note).map(|note| note.version)) else {
            return Ok(false);
        };
        let note = Op::Delete { path: note, version: Some(version) };
        let job = job::creation(spec, progress);
        if job.iter().any(|op| matches!(op, Op::Create { data, .. } if data.len() > MOST_JSON)) {
            log_left(vm);
            return Ok(false);
        }
        let ops: Vec<Op> = [note].into_iter().chain(job).collect();
        let paths = ops.iter().map(|op| op.path().to_owned()).collect();
        let replaced = match self.tree.multi(ops).await {
            Ok(_) => true,
            Err(MultiError::Refused { why, .. }) if is_conflict(&why) => false,
            Err(error) => return Err(flat(error)),
        };
        self.refresh(paths).await?;
        Ok(replaced)
    }
}

fn path(vm: Uuid) -> String {
    format!("{ROOT}/{vm}")
}

/// Says once that a note is left as it is.
fn log_left(vm: Uuid) {
    let note = path(vm);
    if once::is_new(&note) {
        tracing::error!(
            %vm,
            note,
            "the note of a renaming that an earlier version left half way is too large; it is left \
             alone"
        );
    }
}

/// `None` if it cannot be read as a whole: half of the names would be worse than none.
fn read(raw: &Raw, vm: Uuid) -> Option<FormerRenaming> {
    let path = path(vm);
    if raw.contains(&format!("{path}/owner")) {
        return None;
    }
    let Note { from, to, volumes } = serde_json::from_str(&json(raw, &path)?).ok()?;
    if volumes.len() > MOST_VOLUMES {
        log_left(vm);
        return None;
    }
    let names = |(old, new): &(String, String)| {
        Some((VolumeId::from_record(old)?, VolumeId::from_record(new)?))
    };
    let volumes = volumes.iter().map(names).collect::<Option<_>>()?;
    Some(FormerRenaming { vm, from, to, volumes })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use pvc_embedded::EmbeddedTree;
    use pvc_model::job::{JobId, JobVm, JobWork};
    use pvc_ports::CreateMode;
    use pvc_testkit::{SeededRandom, TokioClock};

    use super::*;
    use crate::reader::raw_of;

    const VM: Uuid = Uuid::from_u128(7);

    fn note(volumes: usize) -> String {
        let names = |number| (format!("vms/a{number}"), format!("vms/b{number}"));
        let volumes: Vec<(String, String)> = (0..volumes).map(names).collect();
        serde_json::json!({"from": "a", "to": "b", "volumes": volumes}).to_string()
    }

    #[test]
    fn of_a_renaming_of_which_too_much_is_said_nothing_is_read() {
        let read = |text: String| super::read(&raw_of([(path(VM), text)]), VM);
        let whole = read(note(MOST_VOLUMES)).expect("it can be read");
        assert_eq!(whole.volumes.len(), MOST_VOLUMES);
        assert_eq!(read(note(MOST_VOLUMES + 1)), None);
        assert_eq!(read(format!("{}{}", note(1), " ".repeat(MOST_JSON))), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_note_is_not_replaced_by_a_job_that_could_not_be_read() {
        let tree = EmbeddedTree::in_memory().connect();
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(tree.clone(), clock, random).await.expect("it can be read");
        store.initialize(false).await.expect("an empty tree");
        let create = |path: &str, data: String| Op::Create {
            path: path.to_owned(),
            data: Bytes::from(data),
            mode: CreateMode::Persistent,
        };
        let ops = vec![create(ROOT, String::new()), create(&path(VM), note(1))];
        tree.multi(ops).await.expect("nobody else writes");
        store.fresh().await.expect("reachable");
        let spec = JobSpec {
            id: JobId::from_bits(1),
            work: JobWork::RenameVm {
                vm: JobVm { name: "a".into(), uuid: Some(VM) },
                to: "b".into(),
            },
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 1,
        };
        let with_log =
            |bytes: usize| JobProgress { log: vec!["x".repeat(bytes)], ..JobProgress::pending() };
        let replace = async |bytes: usize| {
            store.replace_former_renaming(VM, &spec, &with_log(bytes)).await.expect("reachable")
        };
        assert!(!replace(MOST_JSON).await);
        assert_eq!(store.former_renamings().len(), 1, "it is left");
        assert!(store.view().jobs.is_empty());
        assert!(replace(1).await);
        assert!(store.former_renamings().is_empty() && store.view().jobs.len() == 1);
    }
}
