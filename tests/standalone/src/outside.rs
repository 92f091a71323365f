//! Somebody else's hand in the tree: writes that no daemon of ours would make.

use bytes::Bytes;
use pvc_ports::{CreateMode, Op, Tree};
use pvc_zookeeper::{ZookeeperOptions, ZookeeperTree};
use tokio::runtime::Runtime;

/// A bare client of a ZooKeeper server, for blocking callers.
pub struct Outside {
    runtime: Runtime,
    tree: ZookeeperTree,
}

impl Outside {
    pub fn connect(server: &str) -> Outside {
        let runtime = Runtime::new().expect("threads can be made");
        let tree = runtime
            .block_on(ZookeeperTree::connect(server, ZookeeperOptions::default()))
            .expect("the server serves");
        Outside { runtime, tree }
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        let entry = self.runtime.block_on(self.tree.get(path)).expect("the server answers");
        entry.map(|entry| entry.data.to_vec())
    }

    pub fn children(&self, path: &str) -> Vec<String> {
        self.runtime
            .block_on(self.tree.children(path))
            .expect("the server answers")
            .unwrap_or_default()
    }

    /// Writes `value`, whatever was there.
    pub fn put(&self, path: &str, value: &[u8]) {
        let data = Bytes::copy_from_slice(value);
        if self.get(path).is_some() {
            let set = Op::Set { path: path.to_owned(), data, version: None };
            self.runtime.block_on(self.tree.multi(vec![set])).expect("the write is proper");
        } else {
            let made = self.runtime.block_on(self.tree.create(path, data, CreateMode::Persistent));
            made.expect("the parent is there");
        }
    }

    /// Deletes a node with all below it.
    pub fn delete_all(&self, path: &str) {
        for child in self.children(path) {
            self.delete_all(&format!("{path}/{child}"));
        }
        let delete = Op::Delete { path: path.to_owned(), version: None };
        self.runtime
            .block_on(self.tree.multi(vec![delete]))
            .expect("it is there and has no children");
    }
}
