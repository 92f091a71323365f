//! The files of a host: they outlive its programs and its power.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use pvc_ports::{DirectoryEntry, FileAccess, FileInfo, FileSpace, Files, FilesError};
use pvc_testkit::MemoryFiles;

use crate::process::Gate;

/// The files of a host, as its programs have them.
pub(crate) struct HostFiles {
    pub gate: Gate,
    pub host: usize,
}

impl HostFiles {
    async fn disk(&self) -> Arc<MemoryFiles> {
        self.gate
            .call(|state| {
                let host = &state.hosts[self.host];
                host.files.set_full(host.disk_full);
                host.files.clone()
            })
            .await
    }
}

#[async_trait]
impl Files for HostFiles {
    async fn look(&self, path: &Path) -> Result<Option<FileInfo>, FilesError> {
        self.disk().await.look(path).await
    }

    async fn follow(&self, path: &Path) -> Result<PathBuf, FilesError> {
        self.disk().await.follow(path).await
    }

    async fn read(&self, path: &Path, most_bytes: u64) -> Result<Vec<u8>, FilesError> {
        self.disk().await.read(path, most_bytes).await
    }

    async fn read_end(
        &self,
        path: &Path,
        most_bytes: u64,
    ) -> Result<(FileInfo, Vec<u8>), FilesError> {
        self.disk().await.read_end(path, most_bytes).await
    }

    async fn replace(
        &self,
        path: &Path,
        contents: &[u8],
        access: &FileAccess,
    ) -> Result<(), FilesError> {
        self.disk().await.replace(path, contents, access).await
    }

    async fn append(
        &self,
        path: &Path,
        bytes: &[u8],
        access: &FileAccess,
        most_bytes: u64,
    ) -> Result<(), FilesError> {
        self.disk().await.append(path, bytes, access, most_bytes).await
    }

    async fn keep_end(&self, path: &Path, most_bytes: u64) -> Result<(), FilesError> {
        self.disk().await.keep_end(path, most_bytes).await
    }

    async fn list(&self, path: &Path, most: usize) -> Result<Vec<DirectoryEntry>, FilesError> {
        self.disk().await.list(path, most).await
    }

    async fn create_directory(&self, path: &Path, access: &FileAccess) -> Result<(), FilesError> {
        self.disk().await.create_directory(path, access).await
    }

    async fn remove(&self, path: &Path) -> Result<(), FilesError> {
        self.disk().await.remove(path).await
    }

    async fn space(&self, path: &Path) -> Result<FileSpace, FilesError> {
        self.disk().await.space(path).await
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::files::{FilesFixture, HostilePaths, files_contract};
    use pvc_ports::FileOwner;

    use super::*;
    use crate::state::World;

    /// Disk on which other programs leave something.
    struct Planted(Arc<MemoryFiles>);

    impl HostilePaths for Planted {
        fn link(&self, path: &Path, to: &Path) {
            self.0.insert_link(path, to);
        }

        fn fifo(&self, path: &Path) {
            self.0.insert_fifo(path);
        }

        fn sparse(&self, path: &Path, length_bytes: u64) {
            self.0.insert_sparse(path, length_bytes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_files_keep_the_contract() {
        let (world, gates) = World::of_hosts(1);
        let disk = world.with(|state| state.hosts[0].files.clone());
        disk.insert_user("pvc");
        let files = HostFiles { gate: gates[0].clone(), host: 0 };
        let directory = Path::new("/var/lib/contract").to_owned();
        files.create_directory(&directory, &FileAccess::PUBLIC_DIRECTORY).await.unwrap();
        files_contract(FilesFixture {
            files: Arc::new(files),
            directory,
            hostile: Box::new(Planted(disk)),
            owner: FileOwner { user: "pvc".to_owned(), group: "pvc".to_owned() },
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn on_a_full_disk_nothing_is_replaced_and_all_is_read() {
        let (world, gates) = World::of_hosts(1);
        let files = HostFiles { gate: gates[0].clone(), host: 0 };
        let path = Path::new("/etc");
        files.create_directory(path, &FileAccess::PUBLIC_DIRECTORY).await.unwrap();
        let path = path.join("conf");
        files.replace(&path, b"old", &FileAccess::PUBLIC).await.unwrap();
        world.with(|state| state.hosts[0].disk_full = true);
        let error = files.replace(&path, b"new", &FileAccess::PUBLIC).await.unwrap_err();
        assert!(matches!(error, FilesError::NoSpace { .. }), "{error}");
        assert_eq!(files.read(&path, 10).await.unwrap(), b"old");
    }
}
