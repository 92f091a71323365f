//! The shared tree: ZooKeeper, or something that behaves like it.
//!
//! A path is absolute, its parts are separated by `/`, it does not end with `/` (except the root).
//! Each node of the tree has data (bytes), a [`Stat`] and children. All changes have a place in one
//! total order, the zxid.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

/// Metadata that the tree keeps about a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// Number of writes of the data since the node was created; 0 after creation.
    pub version: i32,
    /// Number of changes of the set of children.
    pub cversion: i32,
    /// The zxid of the creation, of the last change of the data, of the last change of the
    /// children.
    pub czxid: i64,
    pub mzxid: i64,
    pub pzxid: i64,
    /// The session that owns an ephemeral node; 0 for others.
    pub ephemeral_owner: i64,
    pub num_children: i32,
}

/// A node's data and its stat, read at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub data: Bytes,
    pub stat: Stat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    Persistent,
    /// Gone with the session that made it.
    Ephemeral,
    /// An ephemeral node with ten digits appended to the name: the number that this creation has
    /// among the parent's changes of children. Not allowed in a [`Tree::multi`].
    EphemeralSequential,
}

/// An operation of a [`Tree::multi`]. `version: None` means "whatever the version".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create { path: String, data: Bytes, mode: CreateMode },
    Set { path: String, data: Bytes, version: Option<i32> },
    Delete { path: String, version: Option<i32> },
    Check { path: String, version: i32 },
}

impl Op {
    pub fn path(&self) -> &str {
        match self {
            Op::Create { path, .. }
            | Op::Set { path, .. }
            | Op::Delete { path, .. }
            | Op::Check { path, .. } => path,
        }
    }

    /// The bytes that this operation takes in a request, never less than what really goes out.
    pub fn request_bytes(&self) -> usize {
        const FRAME: usize = 96; // headers, lengths, version, flags and the access list
        let data = match self {
            Op::Create { data, .. } | Op::Set { data, .. } => data.len(),
            Op::Delete { .. } | Op::Check { .. } => 0,
        };
        FRAME + self.path().len() + data
    }
}

/// Refuses what no tree takes as a path: ZooKeeper's own rules, so that every tree has the same
/// ones.
///
/// Absolute, no `/` at the end (but for the root), no empty part, no `.` or `..`, and no character
/// that is a control, for private use, or outside the Basic Multilingual Plane.
pub fn check_path(path: &str) -> Result<(), TreeError> {
    let is_part = |part: &str| {
        !part.is_empty() && part != "." && part != ".." && part.chars().all(is_allowed)
    };
    let is_path =
        path == "/" || path.strip_prefix('/').is_some_and(|parts| parts.split('/').all(is_part));
    if is_path { Ok(()) } else { Err(TreeError::BadPath { path: path.to_owned() }) }
}

/// Refuses a multi with operations that no tree takes, whatever is in it: a server finds them only
/// when it has come to them.
pub fn check_multi(ops: &[Op]) -> Result<(), MultiError> {
    for (index, op) in ops.iter().enumerate() {
        let sequential = matches!(op, Op::Create { mode: CreateMode::EphemeralSequential, .. });
        let checked = match check_path(op.path()) {
            Ok(()) if sequential => Err(TreeError::BadPath { path: op.path().to_owned() }),
            checked => checked,
        };
        checked.map_err(|why| MultiError::Refused { index, why })?;
    }
    Ok(())
}

fn is_allowed(character: char) -> bool {
    !matches!(
        character,
        '\u{0}'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{e000}'..='\u{f8ff}'
            | '\u{fff0}'..=char::MAX
    )
}

/// Whether the path is `root` or below it, where a watch of `root` has events of it.
pub fn is_at_or_below(path: &str, root: &str) -> bool {
    let below = path.strip_prefix(root.trim_end_matches('/'));
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path one level up, or `None` for the root.
pub fn parent_path(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    }
}

/// Result of one operation of a multi that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Created(Stat),
    Set(Stat),
    Deleted,
    Checked,
}

#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("`{path}` does not exist in the tree")]
    NoNode { path: String },
    #[error("`{path}` exists already in the tree")]
    NodeExists { path: String },
    #[error("`{path}` was changed by somebody else")]
    BadVersion { path: String },
    #[error("`{path}` has children")]
    NotEmpty { path: String },
    #[error("an ephemeral node cannot have children, and `{path}` would be one")]
    NoChildrenForEphemerals { path: String },
    #[error("`{path}` is not a valid path of the tree")]
    BadPath { path: String },
    /// Sent by us before anything goes out: the other side would drop the connection.
    #[error("a request of {size} bytes is larger than the tree takes, which is {limit} bytes")]
    TooLarge { size: usize, limit: usize },
    /// The connection broke after the request was sent. It may have been carried out or not: read
    /// back.
    #[error("the connection to the tree was lost, and what became of the request is unknown")]
    OutcomeUnknown,
    #[error("the session with the tree has expired")]
    SessionExpired,
    /// Nothing was sent, or nothing was changed.
    #[error("the tree cannot be reached: {why}")]
    Unreachable { why: String },
    #[error("the tree on disk failed")]
    Disk(#[source] std::io::Error),
    #[error("the tree on disk is full; nothing was changed")]
    DiskFull,
    /// The node is for those alone who know a password, and we do not, or not that one.
    #[error("the tree does not allow the use of `{path}`")]
    NotAllowed { path: String },
    #[error("the tree was closed")]
    Closed,
}

/// Reason for which a multi was not carried out. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum MultiError {
    /// Operation `index` (from 0) could not be done: the one that decided.
    #[error("operation {index} was refused")]
    Refused {
        index: usize,
        #[source]
        why: TreeError,
    },
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// The state of our session with the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// `id` is new after an expiry: whatever was ephemeral is gone.
    Connected { id: i64 },
    /// Reads and writes wait or fail; the session may survive.
    Disconnected,
    /// The session is over; a new one is being made.
    Expired,
    /// [`Tree::close`] was called.
    Closed,
}

/// A hint that something changed. What it is now must be read: by the time the event arrives it may
/// have changed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeEvent {
    /// The node was created, or its data was written (also with the same value).
    Changed {
        path: String,
    },
    Deleted {
        path: String,
    },
    /// Changes may have been missed (a connection was re-made): read everything again.
    Resync,
}

/// Events of one [`Tree::watch`], in the order of the changes. Ends when the tree is closed.
pub type TreeWatch = mpsc::UnboundedReceiver<TreeEvent>;

/// The tree as one client sees it.
///
/// # Guarantees
/// Writes are linearizable. Reads never go back in time within one client and are followed by the
/// events of later changes; they may lag behind other clients unless [`sync`](Tree::sync) was
/// called.
#[async_trait]
pub trait Tree: Send + Sync {
    /// The node at `path`, or `None` if there is none.
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError>;

    /// Reads each path as [`get`](Tree::get) does, in order, in as few requests as possible. Not
    /// one moment: other clients' changes may fall between two entries.
    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError>;

    /// The names (not paths) of the children of `path` in no order, or `None` if `path` does not
    /// exist.
    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError>;

    /// Lists the children of each path as [`children`](Tree::children) does, in as few requests as
    /// possible.
    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError>;

    /// Creates `path`, whose parent must exist. Returns the path made, with its number if
    /// sequential.
    ///
    /// # Errors
    /// On [`TreeError::OutcomeUnknown`] the node may exist: look for it.
    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError>;

    /// Carries out all of `ops` or none, as one change with one zxid. An empty list succeeds.
    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError>;

    /// Returns once this client has seen everything that was written anywhere before the call.
    async fn sync(&self) -> Result<(), TreeError>;

    /// Watches the whole subtree at `root` (which need not exist), beginning at some moment before
    /// this call returns: whatever is read afterwards and then changes is announced. The first
    /// event is not a snapshot: read after watching. A [`TreeEvent::Resync`] follows every re-made
    /// connection.
    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError>;

    /// The state of the session, now and from now on.
    fn session(&self) -> watch::Receiver<SessionState>;

    /// Ends the session: ephemeral nodes go at once. Idempotent.
    async fn close(&self);

    /// The largest request this tree takes, in bytes.
    fn max_request_bytes(&self) -> usize;

    /// Access control of the tree; `None` where nobody else reaches it, or this client knows no
    /// password.
    fn access_control(&self) -> Option<&dyn AccessControl> {
        None
    }
}

/// Rights to read and write what the tree keeps at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Whoever reaches the tree.
    Anybody,
    /// Whoever knows the tree's password.
    Members,
}

/// Rights to use a node, as they are recorded there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessList {
    /// Whoever reaches the tree, with whatever else.
    Anybody,
    /// Whoever knows the tree's password, and nobody else.
    Members,
    /// Others, too, or others alone.
    Other,
}

impl From<Access> for AccessList {
    fn from(access: Access) -> AccessList {
        match access {
            Access::Anybody => AccessList::Anybody,
            Access::Members => AccessList::Members,
        }
    }
}

/// The side of a tree on which it keeps out who does not know its password.
#[async_trait]
pub trait AccessControl: Send + Sync {
    /// Returns who may use the node at `path`, or `None` if there is none.
    ///
    /// # Errors
    /// [`TreeError::NotAllowed`] if we may not: it is for those who know another password.
    async fn access(&self, path: &str) -> Result<Option<AccessList>, TreeError>;

    /// Lets these alone use the node at `path`; not what lies below. What any member creates some
    /// seconds later is for those who may use the root.
    ///
    /// # Errors
    /// [`TreeError::NoNode`] if it is gone.
    async fn set_access(&self, path: &str, access: Access) -> Result<(), TreeError>;
}

#[cfg(test)]
mod tests {
    use super::{check_path, parent_path};

    #[test]
    fn a_path_is_absolute_and_has_no_odd_parts() {
        for good in ["/", "/a", "/a/b.c/..d", "/ü/日本", "/a b"] {
            assert!(check_path(good).is_ok(), "{good:?}");
        }
        for bad in [
            "",
            "a",
            "/a/",
            "//",
            "/a//b",
            "/a/.",
            "/../a",
            "/a\u{0}",
            "/a\n",
            "/a\u{85}",
            "/😀",
            "/\u{e000}",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_root_has_no_parent() {
        assert_eq!(parent_path("/"), None);
        assert_eq!(parent_path("/a"), Some("/"));
        assert_eq!(parent_path("/a/b"), Some("/a"));
    }
}
