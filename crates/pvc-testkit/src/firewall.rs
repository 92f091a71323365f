use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::firewall::{TableName, check_rules};
use pvc_ports::{Firewall, FirewallError};

type Refuses = Box<dyn Fn(&TableName, Option<&str>) -> bool + Send + Sync>;

struct Inner {
    tables: BTreeMap<TableName, String>,
    changes: usize,
    refuses: Refuses,
    delay: Duration,
    has_old_rules: bool,
}

/// The packet filter of a machine without packets: tables that say what they were made of.
pub struct MemoryFirewall {
    inner: Mutex<Inner>,
}

impl MemoryFirewall {
    /// Without any table.
    pub fn new() -> Self {
        let (tables, refuses) = (BTreeMap::new(), Box::new(|_: &TableName, _: Option<&str>| false));
        MemoryFirewall {
            inner: Mutex::new(Inner {
                tables,
                changes: 0,
                refuses,
                delay: Duration::ZERO,
                has_old_rules: false,
            }),
        }
    }

    /// The rules of a table, if it is there.
    pub fn loaded(&self, table: &TableName) -> Option<String> {
        self.inner().tables.get(table).cloned()
    }

    /// Takes all tables away, as `nft flush ruleset` does.
    pub fn flush(&self) {
        self.inner().tables.clear();
    }

    /// Refuses from now on the rules of each table for which `refuses` is true, and its removal
    /// (`None`) likewise.
    pub fn set_refusing(
        &self,
        refuses: impl Fn(&TableName, Option<&str>) -> bool + Send + Sync + 'static,
    ) {
        self.inner().refuses = Box::new(refuses);
    }

    /// Lets this much time pass before rules are refused or taken.
    pub fn set_delay(&self, delay: Duration) {
        self.inner().delay = delay;
    }

    /// Leaves rules of networks there, as PVC 1.0.3 does.
    pub fn leave_old_rules(&self) {
        self.inner().has_old_rules = true;
    }

    pub fn has_old_rules(&self) -> bool {
        self.inner().has_old_rules
    }

    /// Number of times that a table was loaded or removed.
    pub fn changes(&self) -> usize {
        self.inner().changes
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no test panics while holding it")
    }
}

impl Default for MemoryFirewall {
    fn default() -> Self {
        Self::new()
    }
}

impl Inner {
    fn check(
        &self,
        what: &'static str,
        table: &TableName,
        rules: Option<&str>,
    ) -> Result<(), FirewallError> {
        if let Some(rules) = rules {
            check_rules(rules)
                .map_err(|source| FirewallError::BadRules { table: table.clone(), source })?;
        }
        match (self.refuses)(table, rules) {
            true => {
                let why = "these are refused".to_owned();
                Err(FirewallError::Refused { what, table: table.clone(), why })
            }
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Firewall for MemoryFirewall {
    async fn table(&self, table: &TableName) -> Result<Option<String>, FirewallError> {
        Ok(self.inner().tables.get(table).cloned())
    }

    async fn check(&self, table: &TableName, rules: &str) -> Result<(), FirewallError> {
        self.inner().check("check", table, Some(rules))
    }

    async fn apply(&self, table: &TableName, rules: Option<&str>) -> Result<(), FirewallError> {
        let delay = self.inner().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let mut inner = self.inner();
        inner.check(if rules.is_some() { "load" } else { "drop" }, table, rules)?;
        inner.changes += 1;
        match rules {
            Some(rules) => inner.tables.insert(table.clone(), rules.to_owned()),
            None => inner.tables.remove(table),
        };
        Ok(())
    }

    async fn remove_old_rules(&self) -> Result<bool, FirewallError> {
        Ok(std::mem::take(&mut self.inner().has_old_rules))
    }
}
