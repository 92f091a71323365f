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
use crate::raw::Raw;
use crate::store::{Store, flat, is_conflict};

const ROOT: &str = "/pvcrs/renamings";

pub(super) const KIND: Kind =
    Kind { roots: &[ROOT], is_observed: |_| true, for_jobs: &[ROOT], ..PLAIN };

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
    /// seen, or there is a job of that name already.
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
        let ops: Vec<Op> = [note].into_iter().chain(job::creation(spec, progress)).collect();
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

/// `None` if it cannot be read as a whole: half of the names would be worse than none.
fn read(raw: &Raw, vm: Uuid) -> Option<FormerRenaming> {
    let path = path(vm);
    if raw.contains(&format!("{path}/owner")) {
        return None;
    }
    let Note { from, to, volumes } = serde_json::from_str(&raw.text(&path)?).ok()?;
    let names = |(old, new): &(String, String)| {
        Some((VolumeId::from_record(old)?, VolumeId::from_record(new)?))
    };
    let volumes = volumes.iter().map(names).collect::<Option<_>>()?;
    Some(FormerRenaming { vm, from, to, volumes })
}
