//! OSDs, asked of the monitors and changed by them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use pvc_model::osd::{OsdFlag, OsdId, OsdState, Safety};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{OsdError, OsdMap, StorageError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers;
use crate::monitors::AskError;
use crate::rados::Errno;
use crate::rbd::io_error;
use crate::storage::RbdStorage;

/// Nobody can tell yet: placement groups without figures.
const TRY_AGAIN: Errno = Errno(11);
const BUSY: Errno = Errno(16);

/// `osd dump`, as far as it is about OSDs and flags.
#[derive(Deserialize)]
struct Dump {
    flags: String,
    osds: Vec<DumpedOsd>,
}

#[derive(Deserialize)]
struct DumpedOsd {
    osd: u32,
    uuid: Uuid,
    up: u8,
    #[serde(rename = "in")]
    is_in: u8,
    /// The epoch in which it came up last; 0 if it never did.
    up_from: u64,
    state: Vec<String>,
}

/// Flags whose two halves Ceph shows one by one.
const PAUSED: [&str; 2] = ["pauserd", "pausewr"];

/// The states of the OSDs in the text of `osd dump`.
#[cfg(test)]
pub(crate) fn states_in(dump: &[u8]) -> Result<Vec<OsdState>, String> {
    answers::json(dump).map(states)
}

fn states(dump: Dump) -> Vec<OsdState> {
    let state = |osd: DumpedOsd| {
        let is_destroyed = osd.uuid.is_nil() || osd.state.iter().any(|word| word == "destroyed");
        OsdState {
            id: OsdId(osd.osd),
            uuid: (!is_destroyed).then_some(osd.uuid),
            is_up: osd.up == 1,
            is_in: osd.is_in == 1,
            // Ceph's own word `new` stays with an OSD that is taken in before it boots.
            is_new: osd.up_from == 0,
        }
    };
    let mut states: Vec<_> = dump.osds.into_iter().map(state).collect();
    states.sort_by_key(|state| state.id);
    states
}

fn flags(dump: &Dump) -> BTreeSet<OsdFlag> {
    let set: BTreeSet<&str> = dump.flags.split(',').collect();
    let mut flags: BTreeSet<_> = set.iter().filter_map(|name| OsdFlag::parse(name).ok()).collect();
    if PAUSED.iter().all(|half| set.contains(half)) {
        flags.insert(OsdFlag::Pause);
    }
    flags
}

impl RbdStorage {
    async fn osd_dump(&self) -> Result<Dump, OsdError> {
        let doing = "listing OSDs";
        let text = self.monitors.json(json!({ "prefix": "osd dump" })).await;
        let text = text.map_err(|error| error.while_doing(doing))?;
        Ok(answers::json(&text).map_err(|why| io_error(doing, why))?)
    }

    /// Ceph takes an order about an OSD that it does not know for done.
    async fn require_osd(&self, id: OsdId) -> Result<(), OsdError> {
        match self.osd_ids().await?.contains(&id) {
            true => Ok(()),
            false => Err(OsdError::NoOsd { osd: id }),
        }
    }

    async fn order_osd(&self, id: OsdId, command: Value, doing: &str) -> Result<(), OsdError> {
        let answered = self.monitors.ask(&command).await;
        answered.map(drop).map_err(|error| refused(id, error, doing))
    }

    /// Destroys or purges. The manager, which looks whether that is safe, takes either of both
    /// words of force for an order not to look. It has to be asked itself: what the monitors of
    /// Ceph 16 pass on of these is refused (`EINVAL`).
    async fn end_osd(&self, prefix: &str, id: OsdId, force: bool) -> Result<(), OsdError> {
        let mut command = json!({ "prefix": prefix, "id": id.0 });
        if force {
            command["force"] = Value::from(true);
        }
        let answered = self.monitors.ask_manager(&command).await;
        answered.map(drop).map_err(|error| refused(id, error, "destroying an OSD"))
    }
}

fn refused(id: OsdId, error: AskError, doing: &str) -> OsdError {
    match error.errno() {
        Some(Errno::NOT_FOUND) => OsdError::NoOsd { osd: id },
        Some(BUSY | TRY_AGAIN) => OsdError::NotSafe { osd: id, why: said(&error) },
        _ => error.while_doing(&format!("{doing} (OSD {id})")).into(),
    }
}

/// The words of Ceph for why it refused.
fn said(error: &AskError) -> String {
    let text = error.to_string();
    text.strip_prefix("Ceph refused: ").map_or(text.clone(), |said| {
        said.trim_start_matches("Error ").trim_end_matches('.').to_owned()
    })
}

#[async_trait]
impl OsdMap for RbdStorage {
    async fn cluster_uuid(&self) -> Result<Uuid, OsdError> {
        let doing = "saying who it is";
        let text = self.monitors.text(json!({ "prefix": "fsid" })).await;
        let text = text.map_err(|error| error.while_doing(doing))?;
        let uuid = Uuid::try_parse(text.trim());
        uuid.map_err(|_| {
            io_error(doing, format!("`{}` is no UUID", pvc_model::shown(&text))).into()
        })
    }

    async fn osd_ids(&self) -> Result<BTreeSet<OsdId>, OsdError> {
        let doing = "listing OSDs";
        let text = self.monitors.json(json!({ "prefix": "osd ls" })).await;
        let text = text.map_err(|error| error.while_doing(doing))?;
        let ids: Vec<u32> = answers::json(&text).map_err(|why| io_error(doing, why))?;
        Ok(ids.into_iter().map(OsdId).collect())
    }

    async fn osd_states(&self) -> Result<Vec<OsdState>, OsdError> {
        self.osd_dump().await.map(states)
    }

    async fn osd_in(&self, id: OsdId) -> Result<(), OsdError> {
        self.require_osd(id).await?;
        let command = json!({ "prefix": "osd in", "ids": [id.to_string()] });
        self.order_osd(id, command, "taking an OSD in").await
    }

    async fn osd_out(&self, id: OsdId) -> Result<(), OsdError> {
        self.require_osd(id).await?;
        let command = json!({ "prefix": "osd out", "ids": [id.to_string()] });
        self.order_osd(id, command, "taking an OSD out").await
    }

    async fn osd_down(&self, id: OsdId) -> Result<(), OsdError> {
        self.require_osd(id).await?;
        let command = json!({ "prefix": "osd down", "ids": [id.to_string()] });
        self.order_osd(id, command, "taking an OSD for down").await
    }

    async fn safe_to_destroy(&self, id: OsdId) -> Result<Safety, OsdError> {
        self.require_osd(id).await?;
        let command = json!({ "prefix": "osd safe-to-destroy", "ids": [id.to_string()] });
        match self.monitors.ask(&command).await {
            Ok(_) => Ok(Safety::Safe),
            Err(error) if matches!(error.errno(), Some(BUSY | TRY_AGAIN)) => {
                Ok(Safety::NotYet(said(&error)))
            }
            Err(error) => Err(refused(id, error, "saying whether an OSD is needed")),
        }
    }

    async fn destroy(&self, id: OsdId, force: bool) -> Result<(), OsdError> {
        let states = self.osd_states().await?;
        let found = states.iter().find(|state| state.id == id);
        match found.ok_or(OsdError::NoOsd { osd: id })?.uuid {
            Some(_) => self.end_osd("osd destroy", id, force).await,
            None => Ok(()),
        }
    }

    async fn purge(&self, id: OsdId, force: bool) -> Result<(), OsdError> {
        match self.osd_ids().await?.contains(&id) {
            true => self.end_osd("osd purge", id, force).await,
            false => Ok(()),
        }
    }

    async fn reserve(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        let doing = "reserving the number of an OSD";
        if !self.osd_ids().await?.contains(&id) {
            let command = json!({ "prefix": "osd create", "id": id.0, "uuid": uuid.to_string() });
            self.order_osd(id, command, doing).await?;
        }
        let dump = self.osd_dump().await?;
        // One that has been in since it was made may hold data.
        let is_new = |osd: &DumpedOsd| osd.state.iter().any(|word| word == "new");
        let may_go = dump.osds.iter().any(|osd| (osd.osd, osd.uuid) == (id.0, uuid) && is_new(osd));
        match states(dump).iter().find(|state| state.id == id).and_then(|state| state.uuid) {
            None => Ok(()),
            Some(_) if may_go => self.end_osd("osd destroy", id, true).await,
            Some(_) => Err(OsdError::NumberTaken { osd: id }),
        }
    }

    async fn crush_add(&self, id: OsdId, weight: f64, host: &NodeName) -> Result<(), OsdError> {
        self.require_osd(id).await?;
        let place = ["root=default".to_owned(), format!("host={host}")];
        let command = json!({
            "prefix": "osd crush add", "id": id.0, "weight": weight, "args": place,
        });
        self.order_osd(id, command, "giving an OSD its place").await
    }

    async fn crush_remove(&self, id: OsdId) -> Result<(), OsdError> {
        let command = json!({ "prefix": "osd crush rm", "name": format!("osd.{id}") });
        match self.order_osd(id, command, "taking an OSD's place from it").await {
            Err(OsdError::NoOsd { .. }) => Ok(()),
            other => other,
        }
    }

    async fn flags(&self) -> Result<BTreeSet<OsdFlag>, OsdError> {
        self.osd_dump().await.map(|dump| flags(&dump))
    }

    async fn set_flag(&self, flag: OsdFlag) -> Result<(), OsdError> {
        Ok(self.order_flag("osd set", flag).await?)
    }

    async fn unset_flag(&self, flag: OsdFlag) -> Result<(), OsdError> {
        Ok(self.order_flag("osd unset", flag).await?)
    }
}

impl RbdStorage {
    async fn order_flag(&self, prefix: &str, flag: OsdFlag) -> Result<(), StorageError> {
        let answered = self.monitors.ask(&json!({ "prefix": prefix, "key": flag.name() })).await;
        let doing = format!("changing flag `{}`", flag.name());
        answered.map(drop).map_err(|error| error.while_doing(&doing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed by Ceph 16 for two OSDs, the second of which was destroyed; cut to what is read.
    const DUMP: &str = r#"{"epoch":11,"fsid":"8d3c1a52-6c2f-4f0b-8f8e-0e8f7d2f1c11",
        "flags":"noout,pauserd,pausewr,sortbitwise,recovery_deletes,purged_snapdirs,pglog_hardlimit",
        "flags_num":5799940,"flags_set":["noout","pauserd","pausewr"],
        "osds":[
        {"osd":1,"uuid":"00000000-0000-0000-0000-000000000000","up":0,"in":0,"weight":0,"up_from":0,
         "primary_affinity":1,"state":["destroyed","exists","new"]},
        {"osd":0,"uuid":"6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000","up":1,"in":1,"weight":1,"up_from":8,
         "primary_affinity":1,"state":["exists","up"]}]}"#;

    #[test]
    fn osds_and_flags_are_read_as_ceph_prints_them() {
        let dump: Dump = answers::json(DUMP.as_bytes()).unwrap();
        assert_eq!(flags(&dump), BTreeSet::from([OsdFlag::NoOut, OsdFlag::Pause]));
        let uuid = Uuid::try_parse("6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000").unwrap();
        assert_eq!(
            states(dump),
            [
                OsdState {
                    id: OsdId(0),
                    uuid: Some(uuid),
                    is_up: true,
                    is_in: true,
                    is_new: false
                },
                OsdState { id: OsdId(1), uuid: None, is_up: false, is_in: false, is_new: true },
            ]
        );
    }
}
