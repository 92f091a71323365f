//! The gate through which every act goes that writes to a pool.
//!
//! Ceph lets nobody write to a full pool, and leaves who tries waiting in the midst of what it
//! does. So no program that writes is started without a [`WritePermit`], which only this module
//! makes, after a look how full the pool is. To remove something is no writing.

use pvc_model::storage::PoolName;
use pvc_ports::{Storage, StorageError};

use crate::storage::RbdStorage;

/// Leave to write to a pool, which had room a moment ago.
#[derive(Debug)]
pub(crate) struct WritePermit {
    pool: PoolName,
}

impl WritePermit {
    #[cfg(test)]
    pub fn for_a_test(pool: &PoolName) -> Self {
        WritePermit { pool: pool.clone() }
    }

    pub fn pool(&self) -> &PoolName {
        &self.pool
    }
}

impl RbdStorage {
    /// Lets in what writes next to nothing.
    ///
    /// # Errors
    /// [`Full`](StorageError::Full).
    pub(crate) async fn may_write(&self, pool: &PoolName) -> Result<WritePermit, StorageError> {
        let pools = self.fullness().await?;
        match pools.iter().any(|found| found.name == *pool && found.free_bytes == 0) {
            true => Err(StorageError::Full { pool: pool.clone() }),
            false => Ok(WritePermit { pool: pool.clone() }),
        }
    }

    /// Lets in what may write so many bytes.
    ///
    /// # Errors
    /// [`NoRoom`](StorageError::NoRoom), and [`BeyondSafe`](StorageError::BeyondSafe) without
    /// `force`.
    pub(crate) async fn may_fill(
        &self,
        pool: &PoolName,
        needed_bytes: u64,
        force: bool,
    ) -> Result<WritePermit, StorageError> {
        let found = self.pool(pool).await?;
        found.check_room(needed_bytes, force)?;
        match found.free_bytes {
            0 => Err(StorageError::Full { pool: found.name }),
            _ => Ok(WritePermit { pool: found.name }),
        }
    }
}
