//! The embedded tree is a Tree, kept on disk or not.

use std::sync::Arc;

use async_trait::async_trait;
use pvc_contracts::tree::TreeFixture;
use pvc_embedded::EmbeddedTree;
use pvc_ports::Tree;
use tempfile::TempDir;

struct Embedded {
    tree: EmbeddedTree,
    _dir: Option<TempDir>,
}

impl Embedded {
    fn in_memory() -> Embedded {
        Embedded { tree: EmbeddedTree::in_memory(), _dir: None }
    }

    fn on_disk() -> Embedded {
        let dir = TempDir::new().expect("a directory");
        Embedded { tree: EmbeddedTree::open(dir.path()).expect("it opens"), _dir: Some(dir) }
    }
}

#[async_trait]
impl TreeFixture for Embedded {
    async fn connect(&self) -> Arc<dyn Tree> {
        self.tree.connect()
    }
}

mod in_memory {
    use super::Embedded;

    pvc_contracts::tree_contract!(Embedded::in_memory());
}

mod on_disk {
    use super::Embedded;

    pvc_contracts::tree_contract!(Embedded::on_disk());
}
