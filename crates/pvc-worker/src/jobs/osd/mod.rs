//! Jobs about the OSDs of this node.
//!
//! A step that destroys nothing can be taken back; the first that destroys something is the point
//! of no return. The record of an OSD is written before it runs for the first time, and is the last
//! that goes: whatever dies half way, the OSD is in the list, and a job about it can be repeated.
//!
//! ```text
//!  add       make ─ databases ─ record ─▶ start
//!  replace   group ─ drain ─ stop ─▶ destroy ─ erase ─ prepare ─ record ─ start
//!  remove    drain ─ stop ─▶ destroy ─ erase ─ purge ─ forget
//!            drain ─▶ destroy ─ purge ─ forget          (of a fenced node, by another one)
//!  refresh   start ─ record
//!  db group  partition and group                        (▶: there is no way back from here)
//! ```

mod acts;
mod add;
mod db_group;
mod disk;
mod error;
mod leave;
mod plan;
mod refresh;
mod remove;
mod replace;

pub(super) use add::Add;
pub(super) use db_group::AddDbGroup;
pub(super) use plan::Plan;
pub(super) use refresh::Refresh;
pub(super) use remove::Remove;
pub(super) use replace::Replace;

use std::sync::Arc;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::osd::{LvmOsd, OsdId, OsdState};
use pvc_model::storage::OsdRecord;
use pvc_ops::osd::{OsdRefusal, check_free, find_osd, is_of_fenced_node};
use pvc_ports::{OsdError, OsdHost, StorageCluster};
use serde::{Deserialize, Serialize};

use self::disk::Known;
use self::error::OsdJobError;
use super::text;
use crate::context::{Context, Unwritten};

type Result<T, E = OsdJobError> = std::result::Result<T, E>;

/// An OSD. Its number may be given to another one day, its UUID never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Osd {
    #[serde(with = "text::osd")]
    id: OsdId,
    uuid: Uuid,
}

impl Osd {
    fn is_in(self, state: &OsdState) -> bool {
        (state.id, state.uuid) == (self.id, Some(self.uuid))
    }

    fn lies_as(self, lvm: &LvmOsd) -> bool {
        (lvm.id, lvm.uuid) == (self.id, self.uuid)
    }
}

/// Ports that act on the OSDs of this node: its disks, and the cluster's monitors.
#[derive(Clone, Copy)]
pub(crate) struct Hands<'a> {
    disks: &'a dyn OsdHost,
    ceph: &'a dyn StorageCluster,
}

impl<'a> Hands<'a> {
    fn of(context: &'a Context) -> Result<Self> {
        let storage = context.tools.storage.as_ref();
        match (storage.osds(), storage.cluster()) {
            (Some(disks), Some(ceph)) => Ok(Hands { disks, ceph }),
            _ => Err(OsdRefusal::NoCeph.into()),
        }
    }

    /// The OSD as the cluster knows it; `None` if it does not, or its number is another's.
    async fn state(self, osd: Osd) -> Result<Option<OsdState>> {
        let states = self.ceph.osd_states().await?;
        Ok(states.into_iter().find(|state| osd.is_in(state)))
    }

    /// The OSD as it lies on this node; `None` if it does not.
    async fn lvm(self, osd: Osd) -> Result<Option<LvmOsd>> {
        Ok(self.disks.lvm_osds().await?.into_iter().find(|lvm| osd.lies_as(lvm)))
    }
}

/// Passes over that the cluster does not know the OSD: then nothing is left to do.
fn unless_gone(done: Result<(), OsdError>) -> Result<(), OsdError> {
    match done {
        Err(OsdError::NoOsd { .. }) => Ok(()),
        done => done,
    }
}

async fn fresh(context: &Context) -> Result<Arc<Cluster>> {
    Ok(context.tools.store.fresh().await.map_err(Unwritten::Store)?)
}

/// The record of an OSD of this node, which no other job may be changing.
fn own_record<'a>(context: &Context, view: &'a Cluster, id: OsdId) -> Result<&'a OsdRecord> {
    let (_, record) = find_osd(view, &id.to_string())?;
    if record.node != context.tools.node.as_str() {
        return Err(OsdRefusal::Elsewhere { osd: id, node: record.node.clone() }.into());
    }
    check_free(view, id, record, Some(&context.job))?;
    Ok(record)
}

/// The record of an OSD that is to be removed, and whether its node is a fenced one.
fn removed_record<'a>(
    context: &Context,
    view: &'a Cluster,
    id: OsdId,
) -> Result<(&'a OsdRecord, bool)> {
    let (_, record) = find_osd(view, &id.to_string())?;
    if record.node == context.tools.node.as_str() || !is_of_fenced_node(view, record) {
        return Ok((own_record(context, view, id)?, false));
    }
    check_free(view, id, record, Some(&context.job))?;
    Ok((record, true))
}

/// The state of the OSD that is recorded, if the cluster knows its number.
///
/// # Errors
/// If that is the number of another one by now: neither recorded nor on this node.
fn recorded_state<'a>(
    known: &'a Known,
    id: OsdId,
    record: &OsdRecord,
) -> Result<Option<&'a OsdState>> {
    let Some(state) = known.state(id) else { return Ok(None) };
    let is_it = |uuid: Uuid| {
        let osd = Osd { id, uuid };
        record.fsid.is_empty()
            || record.fsid == uuid.to_string()
            || known.on_node.iter().any(|lvm| osd.lies_as(lvm))
    };
    match state.uuid.filter(|uuid| !is_it(*uuid)) {
        Some(uuid) => Err(OsdJobError::Another { osd: id, uuid }),
        None => Ok(Some(state)),
    }
}

/// The UUID that is recorded. One that nobody has is that of no OSD.
fn recorded_uuid(record: &OsdRecord) -> Uuid {
    Uuid::try_parse(&record.fsid).unwrap_or_default()
}

/// The numbers for a sentence: `OSD 3`, `OSDs 3 and 4`.
fn named(ids: &[OsdId]) -> String {
    let names: Vec<String> = ids.iter().map(ToString::to_string).collect();
    match names.split_last() {
        None => "no OSD".to_owned(),
        Some((only, [])) => format!("OSD {only}"),
        Some((last, others)) => format!("OSDs {} and {last}", others.join(", ")),
    }
}
