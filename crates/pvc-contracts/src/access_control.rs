//! Contract of the side of a tree on which it keeps out who does not know its password.

use bytes::Bytes;
use pvc_ports::{Access, AccessList, CreateMode, Tree, TreeError};

/// Runs the suite against a tree that everybody may use, of which `tree` knows a password. It
/// leaves the node `/controlled`, which is for members.
pub async fn access_control_contract(tree: &dyn Tree) {
    let control = tree.access_control().expect("it knows a password");
    let (node, below) = ("/controlled", "/controlled/below");
    for path in [node, below] {
        tree.create(path, Bytes::new(), CreateMode::Persistent).await.expect("nobody has made it");
        let access = control.access(path).await.expect("reachable");
        assert_eq!(access, Some(AccessList::Anybody), "a password alone closes nothing");
    }
    assert_eq!(control.access("/absent").await.expect("reachable"), None);
    let gone = control.set_access("/absent", Access::Members).await;
    assert!(matches!(gone, Err(TreeError::NoNode { .. })), "{gone:?}");
    for access in [Access::Members, Access::Members, Access::Anybody, Access::Members] {
        control.set_access(node, access).await.expect("a member may");
        let found = control.access(node).await.expect("a member may");
        assert_eq!(found, Some(access.into()));
        let found = control.access(below).await.expect("a member may");
        assert_eq!(found, Some(AccessList::Anybody), "not what lies below");
    }
    assert!(tree.get(node).await.expect("a member may").is_some());
}
