//! The locks under which a VM moves from node to node, as legacy peers take them (`spec/vm.md` §5).

use std::time::Duration;

use bytes::Bytes;
use pvc_model::Uuid;
use pvc_ports::Op;

use crate::error::StoreError;
use crate::lock::{LockGuard, LockKind, LockRecipe};
use crate::records::vm;
use crate::store::{Store, flat};

/// The locks of one VM's move.
pub struct MoveLocks {
    store: Store,
    recipe: LockRecipe,
    vm: Uuid,
}

/// The record, locked by the sender: legacy peers that want to change the VM's state wait
/// meanwhile.
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
        self.store.ensure_path(&vm::key(self.vm, TURN)).await?;
        self.acquire(TURN, timeout).await
    }

    /// Returns when somebody else than `own` has the turn or waits for it.
    pub async fn until_others(&self, own: Option<&LockGuard>) -> Result<(), StoreError> {
        self.recipe.until_others_queue(&vm::key(self.vm, TURN), own).await
    }

    /// Whether somebody has the turn or waits for it.
    pub async fn anybody(&self) -> Result<bool, StoreError> {
        self.recipe.others_queue(&vm::key(self.vm, TURN), None).await
    }

    /// Says that this node receives the VM, or no longer does.
    pub async fn say_receiving(&self, receiving: bool) -> Result<(), StoreError> {
        let path = vm::key(self.vm, TURN);
        if self.store.with_raw(|raw| !raw.contains(&vm::root(self.vm))) {
            return Ok(());
        }
        self.store.ensure_path(&path).await?;
        let data = if receiving { Bytes::from(self.vm.to_string()) } else { Bytes::new() };
        let say = vec![Op::Set { path, data, version: None }];
        self.store.tree.multi(say).await.map(drop).map_err(flat)
    }

    async fn acquire(&self, key: &str, timeout: Option<Duration>) -> Result<LockGuard, StoreError> {
        self.recipe.acquire(&vm::key(self.vm, key), LockKind::Exclusive, timeout).await
    }
}

const TURN: &str = "migrate_sync_lock";
