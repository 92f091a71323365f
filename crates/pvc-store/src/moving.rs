//! The locks under which a VM moves from node to node, as legacy peers take them (`spec/vm.md` §5).

use std::time::Duration;

use bytes::Bytes;
use pvc_model::{NodeName, Uuid};
use pvc_ports::Op;

use crate::error::StoreError;
use crate::keys;
use crate::lock::{LockGuard, LockKind, LockRecipe};
use crate::raw::Raw;
use crate::store::{Store, flat, is_conflict};

/// The locks of one VM's move.
pub struct MoveLocks {
    store: Store,
    recipe: LockRecipe,
    vm: Uuid,
}

/// The record, locked by the sender: legacy peers that want to change the VM's state wait meanwhile.
pub struct RecordLock {
    node: LockGuard,
    state: LockGuard,
}

impl RecordLock {
    /// Returns when one of the locks is lost with its session.
    pub async fn until_lost(&self) {
        tokio::select! {
            biased;
            () = self.node.until_lost() => {}
            () = self.state.until_lost() => {}
        }
    }

    pub async fn release(self) {
        self.node.release().await;
        self.state.release().await;
    }
}

impl Store {
    pub fn move_locks(&self, vm: Uuid) -> MoveLocks {
        // A daemon that stood still would make anew what was removed meanwhile.
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone())
            .on_what_exists();
        MoveLocks { store: self.clone(), recipe, vm }
    }

    /// What the daemon of `node` is announced by while it is connected, if it is one of ours:
    /// another number with each session. Older peers do not say.
    pub async fn announcement(&self, node: &NodeName) -> Result<Option<i64>, StoreError> {
        Ok(self.tree.get(&keys::daemon(node)).await?.map(|entry| entry.stat.czxid))
    }

    /// Whether the daemon of `node` is one of ours, also while its session is being made anew: its
    /// record says so until a legacy peer is started there.
    pub async fn has_our_daemon(&self, node: &NodeName) -> Result<bool, StoreError> {
        let is_announced = self.announcement(node).await?.is_some();
        Ok(is_announced
            || self.view().nodes.get(node).is_some_and(|record| record.runs_our_daemon()))
    }
}

impl Store {
    /// Removes what is noted about moves of VMs that have no record any more: legacy peers remove a
    /// record without its note, and a sender may write its last word late. Returns how many. The
    /// last move of a VM that is there stays.
    pub async fn remove_lost_move_notes(&self) -> Result<usize, StoreError> {
        if self.with_raw(lost_move_notes).is_empty() {
            return Ok(0);
        }
        self.fresh().await?;
        let mut removed = 0;
        for (path, version) in self.with_raw(lost_move_notes) {
            let delete = Op::Delete { path: path.clone(), version: Some(version) };
            match self.tree.multi(vec![delete]).await.map_err(flat) {
                Ok(_) => removed += 1,
                // Somebody else was faster, or writes it anew.
                Err(StoreError::Tree(error)) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
            self.refresh(vec![path]).await?;
        }
        Ok(removed)
    }
}

/// With the versions that they have.
fn lost_move_notes(raw: &Raw) -> Vec<(String, i32)> {
    let vms = raw.children(keys::MOVES).into_iter().filter_map(|name| Uuid::try_parse(&name).ok());
    let lost = vms.filter(|vm| !raw.contains(&keys::vm_root(*vm))).map(keys::move_note);
    lost.filter_map(|path| raw.get(&path).map(|note| note.version).map(|version| (path, version)))
        .collect()
}

impl MoveLocks {
    /// Locks the VM's record against legacy peers, waiting at most `timeout` for each of its two
    /// locks.
    pub async fn record(&self, timeout: Duration) -> Result<RecordLock, StoreError> {
        let node = self.acquire("node", Some(timeout)).await?;
        let state = self.acquire("state", Some(timeout)).await?;
        Ok(RecordLock { node, state })
    }

    /// Takes the turn: the lock that sender and receiver hand each other.
    pub async fn turn(&self, timeout: Option<Duration>) -> Result<LockGuard, StoreError> {
        self.store.ensure_path(&keys::vm(self.vm, TURN)).await?;
        self.acquire(TURN, timeout).await
    }

    /// Returns when somebody else than `own` has the turn or waits for it.
    pub async fn until_others(&self, own: Option<&LockGuard>) -> Result<(), StoreError> {
        self.recipe.until_others_queue(&keys::vm(self.vm, TURN), own).await
    }

    /// Whether somebody has the turn or waits for it.
    pub async fn anybody(&self) -> Result<bool, StoreError> {
        self.recipe.others_queue(&keys::vm(self.vm, TURN), None).await
    }

    /// Says that this node receives the VM, or no longer does.
    pub async fn say_receiving(&self, receiving: bool) -> Result<(), StoreError> {
        let path = keys::vm(self.vm, TURN);
        if self.store.with_raw(|raw| !raw.contains(&keys::vm_root(self.vm))) {
            return Ok(());
        }
        self.store.ensure_path(&path).await?;
        let data = if receiving { Bytes::from(self.vm.to_string()) } else { Bytes::new() };
        let say = vec![Op::Set { path, data, version: None }];
        self.store.tree.multi(say).await.map(drop).map_err(flat)
    }

    async fn acquire(&self, key: &str, timeout: Option<Duration>) -> Result<LockGuard, StoreError> {
        self.recipe.acquire(&keys::vm(self.vm, key), LockKind::Exclusive, timeout).await
    }
}

const TURN: &str = "migrate_sync_lock";
