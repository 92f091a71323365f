//! Pools: how they are made, and in how many parts.

use pvc_model::pool::{PoolSpec, Replication, Tier};
use pvc_model::storage::PoolName;
use pvc_ports::{Storage, StorageError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers;
use crate::monitors::AskError;
use crate::rados::{Errno, RadosError};
use crate::rbd::{io_error, with_pool};
use crate::storage::RbdStorage;

const MAKING: &str = "making a pool";

/// The rule that whoever set the cluster up made for its pools; a cluster without it has Ceph's
/// own.
const USUAL_RULE: &str = "replicated";

#[derive(Deserialize)]
struct Autoscaler {
    pg_autoscale_mode: String,
}

#[derive(Deserialize)]
struct Quorum {
    quorum_leader_name: String,
}

impl RbdStorage {
    /// Makes the pool, or completes one that was left by half: what says that it is for volumes is
    /// written last, and nothing is in it before. A pool that is for volumes is taken for this one
    /// if it has as many copies and placement groups.
    pub(crate) async fn make_pool_of(&self, spec: &PoolSpec) -> Result<(), StorageError> {
        let name = PoolName::parse(spec.name.as_str())?;
        let found = self.all_pools().await?.into_iter().find(|found| found.name == name);
        match found {
            Some(found)
                if found.is_for_volumes
                    && found.replication == Some(spec.replication)
                    && found.placement_groups == Some(spec.placement_groups) =>
            {
                return Ok(());
            }
            Some(found) if found.has_purpose || self.pool(&name).await?.stored_bytes > 0 => {
                return Err(StorageError::PoolExists { pool: name });
            }
            Some(_) => {}
            None => self.begin_pool(&name, spec).await?,
        }
        let Replication { copies, min_copies } = spec.replication;
        self.set_of_pool(&name, "size", &copies.to_string(), MAKING).await?;
        self.set_of_pool(&name, "min_size", &min_copies.to_string(), MAKING).await?;
        self.keep_groups(&name, MAKING).await?;
        self.enable_volumes(&name).await
    }

    async fn begin_pool(&self, name: &PoolName, spec: &PoolSpec) -> Result<(), StorageError> {
        let count = spec.placement_groups;
        let mut command = json!({
            "prefix": "osd pool create",
            "pool": name.as_str(),
            "pg_num": count,
            "pgp_num": count,
            "pool_type": "replicated",
        });
        if let Some(rule) = self.rule_of(name, spec.tier).await? {
            command["rule"] = Value::from(rule);
        }
        self.demand(name, &command, MAKING).await
    }

    /// The rule that spreads a pool's data over the devices of the tier; `None` for Ceph's own.
    async fn rule_of(&self, pool: &PoolName, tier: Tier) -> Result<Option<String>, StorageError> {
        let Some(class) = tier.device_class() else {
            let rules = self.names(pool, "osd crush rule ls").await?;
            let has_usual = rules.iter().any(|rule| rule == USUAL_RULE);
            return Ok(has_usual.then(|| USUAL_RULE.to_owned()));
        };
        if !self.names(pool, "osd crush class ls").await?.iter().any(|known| known == class) {
            return Err(StorageError::NoDevices { class });
        }
        let name = format!("{class}_tier");
        // One that is there already is left as it is, and that is no error.
        let command = json!({
            "prefix": "osd crush rule create-replicated",
            "name": name,
            "root": "default",
            "type": "host",
            "class": class,
        });
        self.demand(pool, &command, MAKING).await?;
        Ok(Some(name))
    }

    /// The names that Ceph lists, for who makes this pool.
    async fn names(&self, pool: &PoolName, prefix: &str) -> Result<Vec<String>, StorageError> {
        let doing = &with_pool(MAKING, pool);
        let answer = self.monitors.json(json!({ "prefix": prefix })).await;
        let answer = answer.map_err(|error| error.while_doing(doing))?;
        answers::json(&answer).map_err(|why| io_error(doing, why))
    }

    /// Says that the pool is for volumes.
    pub(crate) async fn enable_volumes(&self, pool: &PoolName) -> Result<(), StorageError> {
        let command =
            json!({ "prefix": "osd pool application enable", "pool": pool.as_str(), "app": "rbd" });
        self.demand(pool, &command, MAKING).await
    }

    /// Sets the number of placement groups, and by how many data is spread: where they are the same
    /// Ceph keeps them so, but somebody may have made them differ.
    pub(crate) async fn set_groups_of(
        &self,
        pool: &PoolName,
        count: u32,
    ) -> Result<(), StorageError> {
        if !self.exists(pool).await? {
            return Err(StorageError::NoPool { pool: pool.clone() });
        }
        let doing = "changing a pool";
        self.keep_groups(pool, doing).await?;
        for setting in ["pg_num", "pgp_num"] {
            self.set_of_pool(pool, setting, &count.to_string(), doing).await?;
        }
        Ok(())
    }

    /// Has Ceph's autoscaler say what it thinks of the number of placement groups, and leave it as
    /// an operator has set it: by itself it would take that of an empty pool back. Where it is off
    /// it stays so.
    async fn keep_groups(&self, pool: &PoolName, doing: &str) -> Result<(), StorageError> {
        let setting = "pg_autoscale_mode";
        let asked = json!({ "prefix": "osd pool get", "pool": pool.as_str(), "var": setting });
        let of_pool = &with_pool(doing, pool);
        let answer = self.monitors.json(asked).await.map_err(|error| error.while_doing(of_pool))?;
        let Autoscaler { pg_autoscale_mode } =
            answers::json(&answer).map_err(|why| io_error(of_pool, why))?;
        match pg_autoscale_mode.as_str() {
            "on" => self.set_of_pool(pool, setting, "warn", doing).await,
            _ => Ok(()),
        }
    }

    /// Whether the monitors remove pools at all, by the configuration that the first of them runs
    /// with; `None` if nobody says. It is a manager that answers, not a monitor.
    pub(crate) async fn removes_pools(&self) -> Option<bool> {
        let quorum = self.monitors.json(json!({ "prefix": "quorum_status" })).await.ok()?;
        let Quorum { quorum_leader_name } = answers::json(&quorum).ok()?;
        let who = format!("mon.{quorum_leader_name}");
        let setting =
            json!({ "prefix": "config show", "who": who, "key": "mon_allow_pool_delete" });
        let answer = self.monitors.ask_manager(&setting).await.ok()?;
        String::from_utf8_lossy(&answer.output).trim().parse().ok()
    }

    async fn set_of_pool(
        &self,
        pool: &PoolName,
        setting: &str,
        value: &str,
        doing: &str,
    ) -> Result<(), StorageError> {
        let command = json!({
            "prefix": "osd pool set",
            "pool": pool.as_str(),
            "var": setting,
            "val": value,
        });
        self.demand(pool, &command, doing).await
    }

    /// Gives an order about a pool that Ceph may have reasons to refuse.
    pub(crate) async fn demand(
        &self,
        pool: &PoolName,
        command: &Value,
        doing: &str,
    ) -> Result<(), StorageError> {
        let doing = with_pool(doing, pool);
        match self.monitors.ask(command).await {
            Ok(_) => Ok(()),
            Err(AskError::Rados(RadosError::Refused { errno, said }))
                if errno != Errno::TIMED_OUT =>
            {
                Err(StorageError::Refused { doing, said })
            }
            Err(error) => Err(error.while_doing(&doing)),
        }
    }
}
