//! The tree as a value: no input or output, no clock, no chance.
//!
//! A change is first worked out as a [`Draft`], which sees the state below it and its own changes
//! but alters nothing. Its [`Change`] is then put in force by [`TreeState::publish`]. Between the
//! two the caller may make the change durable, or drop it when that fails; readers meanwhile see
//! the state before it.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, Stat, TreeError, TreeEvent, check_path, parent_path,
};

/// A path that sorts by its parent first, so that the children of a node stand side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place(String);

impl Place {
    fn new(path: &str) -> Place {
        Place(path.to_owned())
    }

    /// Sorts before every child of `path` and after nothing that belongs to it.
    fn before_children_of(path: &str) -> Place {
        Place(format!("{}/", path.trim_end_matches('/')))
    }

    /// The parent (empty for the root and for the root's children) and the name.
    fn parts(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Place) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Place) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A node as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    pub data: Bytes,
    pub version: i32,
    /// Number of children that were ever created here: the number of the next sequential one.
    pub created: i32,
    pub czxid: i64,
    pub mzxid: i64,
    pub pzxid: i64,
    /// The session that owns it; 0 for a persistent node.
    pub owner: i64,
    pub num_children: i32,
}

impl Node {
    /// Returns the metadata that a client sees. ZooKeeper counts creations and derives the number
    /// of changes from it.
    pub fn stat(&self) -> Stat {
        Stat {
            version: self.version,
            cversion: self.created.wrapping_mul(2).wrapping_sub(self.num_children),
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ephemeral_owner: self.owner,
            num_children: self.num_children,
        }
    }
}

/// Something that somebody wants done to the tree, in one change.
#[derive(Debug, Clone)]
pub enum Work {
    Create {
        session: i64,
        path: String,
        data: Bytes,
        mode: CreateMode,
    },
    Multi {
        session: i64,
        ops: Vec<Op>,
    },
    /// Ends the session and removes what was ephemeral to it.
    End {
        session: i64,
    },
}

/// Result of a [`Work`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Created(String, Stat),
    Multi(Vec<Done>),
    Ended,
}

/// Everything that a [`Draft`] changes. A clone is the same change for another copy of the tree.
#[derive(Debug, Clone, Default)]
pub struct Change {
    nodes: BTreeMap<Place, Touched>,
    ended: BTreeSet<i64>,
    events: Vec<TreeEvent>,
    zxid: i64,
}

#[derive(Debug, Clone)]
struct Touched {
    node: Option<Node>,
    /// Whether this must survive the process. An ephemeral node, and what it does to the counters
    /// of its parent, need not.
    durable: bool,
}

impl Change {
    /// The zxid of the last piece of work in it.
    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    /// Lists what must be on disk before anybody may see this change: each path with its new node,
    /// or with `None` if it is no longer there, or only for as long as a session.
    pub fn durable(&self) -> impl Iterator<Item = (&str, Option<&Node>)> {
        let durable = self.nodes.iter().filter(|(_, touched)| touched.durable);
        durable.map(|(place, touched)| {
            (place.0.as_str(), touched.node.as_ref().filter(|node| node.owner == 0))
        })
    }
}

/// The whole tree at one moment.
#[derive(Debug, Clone)]
pub struct TreeState {
    nodes: BTreeMap<Place, Node>,
    /// The open sessions, each with its ephemeral nodes.
    sessions: BTreeMap<i64, BTreeSet<String>>,
    zxid: i64,
    next_session: i64,
}

impl TreeState {
    /// An empty tree. `epoch` is greater than that of every earlier life of the same tree that left
    /// anything behind: zxids and session ids begin with it and so grow from life to life.
    pub fn new(epoch: i32) -> TreeState {
        let first = i64::from(epoch) << 32;
        let nodes = BTreeMap::from([(Place::new("/"), Node::default())]);
        TreeState { nodes, sessions: BTreeMap::new(), zxid: first, next_session: first + 1 }
    }

    /// A tree of the given persistent nodes, in any order. The counts of children are worked out
    /// anew.
    ///
    /// # Errors
    /// The path of a node whose parent is missing.
    pub fn restore(
        epoch: i32,
        nodes: impl IntoIterator<Item = (String, Node)>,
    ) -> Result<TreeState, String> {
        let mut state = TreeState::new(epoch);
        for (path, node) in nodes {
            state.nodes.insert(Place(path), Node { num_children: 0, ..node });
        }
        let paths: Vec<String> = state.nodes.keys().map(|place| place.0.clone()).collect();
        for path in paths {
            let Some(parent) = parent_path(&path) else { continue };
            let Some(parent) = state.nodes.get_mut(&Place::new(parent)) else { return Err(path) };
            parent.num_children += 1;
        }
        Ok(state)
    }

    pub fn zxid(&self) -> i64 {
        self.zxid
    }

    pub fn node(&self, path: &str) -> Option<&Node> {
        self.nodes.get(&Place::new(path))
    }

    pub fn entry(&self, path: &str) -> Option<Entry> {
        self.node(path).map(|node| Entry { data: node.data.clone(), stat: node.stat() })
    }

    /// The names of the children of `path`, or `None` if there is no such node.
    pub fn children(&self, path: &str) -> Option<Vec<String>> {
        self.node(path)?;
        let first = Place::before_children_of(path);
        let parent = first.parts().0;
        let children =
            self.nodes.range(&first..).take_while(|(place, _)| place.parts().0 == parent);
        let names = children.map(|(place, _)| place.parts().1).filter(|name| !name.is_empty());
        Some(names.map(str::to_owned).collect())
    }

    /// Begins a session and returns its id.
    pub fn open_session(&mut self) -> i64 {
        let session = self.next_session;
        self.next_session += 1;
        self.sessions.insert(session, BTreeSet::new());
        session
    }

    pub fn has_session(&self, session: i64) -> bool {
        self.sessions.contains_key(&session)
    }

    pub fn draft(&self) -> Draft<'_> {
        let change = Change { zxid: self.zxid, ..Change::default() };
        Draft { base: self, change, undo: Vec::new() }
    }

    /// Puts a change in force that was drafted on this very state. Returns its events in order.
    pub fn publish(&mut self, change: Change) -> Vec<TreeEvent> {
        for (place, touched) in change.nodes {
            self.index_owner(&place, touched.node.as_ref());
            match touched.node {
                Some(node) => self.nodes.insert(place, node),
                None => self.nodes.remove(&place),
            };
        }
        for session in change.ended {
            self.sessions.remove(&session);
        }
        self.zxid = change.zxid;
        change.events
    }

    fn index_owner(&mut self, place: &Place, after: Option<&Node>) {
        let before = self.nodes.get(place).map_or(0, |node| node.owner);
        let after = after.map_or(0, |node| node.owner);
        if before == after {
            return;
        }
        if let Some(owned) = self.sessions.get_mut(&before) {
            owned.remove(&place.0);
        }
        if let Some(owned) = self.sessions.get_mut(&after) {
            owned.insert(place.0.clone());
        }
    }
}

/// Work being tried out on top of a state that stays as it is.
#[derive(Debug)]
pub struct Draft<'a> {
    base: &'a TreeState,
    change: Change,
    /// Places that the present piece of work replaced, oldest first.
    undo: Vec<(Place, Option<Touched>)>,
}

impl Draft<'_> {
    /// Carries out `work`, or leaves the draft as it was.
    pub fn apply(&mut self, work: &Work) -> Result<Outcome, MultiError> {
        match work {
            Work::Create { session, path, data, mode } => self.whole(*session, |draft| {
                let (path, stat) = draft
                    .create(*session, path, data, *mode)
                    .map_err(|why| MultiError::Refused { index: 0, why })?;
                Ok(Outcome::Created(path, stat))
            }),
            Work::Multi { session, ops } => self.whole(*session, |draft| {
                let done = ops.iter().enumerate().map(|(index, op)| {
                    draft.one(*session, op).map_err(|why| MultiError::Refused { index, why })
                });
                Ok(Outcome::Multi(done.collect::<Result<_, _>>()?))
            }),
            Work::End { session } => {
                self.end(*session);
                Ok(Outcome::Ended)
            }
        }
    }

    pub fn finish(self) -> Change {
        self.change
    }

    /// Runs `work` under the next zxid; takes everything back if it fails.
    fn whole(
        &mut self,
        session: i64,
        work: impl FnOnce(&mut Self) -> Result<Outcome, MultiError>,
    ) -> Result<Outcome, MultiError> {
        if !self.base.has_session(session) || self.change.ended.contains(&session) {
            return Err(TreeError::Closed.into());
        }
        self.undo.clear();
        let events = self.change.events.len();
        self.change.zxid += 1;
        let outcome = work(self);
        if outcome.is_err() {
            self.take_back();
            self.change.events.truncate(events);
            self.change.zxid -= 1;
        }
        outcome
    }

    fn take_back(&mut self) {
        for (place, before) in self.undo.drain(..).rev() {
            match before {
                Some(touched) => self.change.nodes.insert(place, touched),
                None => self.change.nodes.remove(&place),
            };
        }
    }

    fn node(&self, path: &str) -> Option<&Node> {
        match self.change.nodes.get(&Place::new(path)) {
            Some(touched) => touched.node.as_ref(),
            None => self.base.node(path),
        }
    }

    fn existing(&self, path: &str, version: Option<i32>) -> Result<Node, TreeError> {
        check_path(path)?;
        let Some(node) = self.node(path) else {
            return Err(TreeError::NoNode { path: path.to_owned() });
        };
        match version {
            Some(version) if version != node.version => {
                Err(TreeError::BadVersion { path: path.to_owned() })
            }
            _ => Ok(node.clone()),
        }
    }

    fn touch(&mut self, path: &str, node: Option<Node>, durable: bool) {
        let place = Place::new(path);
        let before = self.change.nodes.get(&place).cloned();
        let durable = durable || before.as_ref().is_some_and(|touched| touched.durable);
        self.change.nodes.insert(place.clone(), Touched { node, durable });
        self.undo.push((place, before));
    }

    fn one(&mut self, session: i64, op: &Op) -> Result<Done, TreeError> {
        match op {
            Op::Create { path, mode: CreateMode::EphemeralSequential, .. } => {
                Err(TreeError::BadPath { path: path.clone() })
            }
            Op::Create { path, data, mode } => {
                self.create(session, path, data, *mode).map(|(_, stat)| Done::Created(stat))
            }
            Op::Set { path, data, version } => self.set(path, data, *version).map(Done::Set),
            Op::Delete { path, version } => self.delete(path, *version).map(|()| Done::Deleted),
            Op::Check { path, version } => {
                self.existing(path, Some(*version)).map(|_| Done::Checked)
            }
        }
    }

    fn create(
        &mut self,
        session: i64,
        path: &str,
        data: &Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        check_path(path)?;
        let Some(parent_of_path) = parent_path(path) else {
            return Err(TreeError::NodeExists { path: path.to_owned() });
        };
        let Some(parent) = self.node(parent_of_path).cloned() else {
            return Err(TreeError::NoNode { path: parent_of_path.to_owned() });
        };
        if parent.owner != 0 {
            return Err(TreeError::NoChildrenForEphemerals { path: path.to_owned() });
        }
        let path = match mode {
            CreateMode::EphemeralSequential => format!("{path}{:010}", parent.created),
            CreateMode::Persistent | CreateMode::Ephemeral => path.to_owned(),
        };
        if self.node(&path).is_some() {
            return Err(TreeError::NodeExists { path });
        }
        let zxid = self.change.zxid;
        let durable = mode == CreateMode::Persistent;
        let owner = if durable { 0 } else { session };
        let node = Node {
            data: data.clone(),
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            owner,
            ..Node::default()
        };
        let stat = node.stat();
        let parent = Node {
            created: parent.created.wrapping_add(1),
            num_children: parent.num_children + 1,
            pzxid: zxid,
            ..parent
        };
        self.touch(parent_of_path, Some(parent), durable);
        self.touch(&path, Some(node), durable);
        self.change.events.push(TreeEvent::Changed { path: path.clone() });
        Ok((path, stat))
    }

    fn set(&mut self, path: &str, data: &Bytes, version: Option<i32>) -> Result<Stat, TreeError> {
        let node = self.existing(path, version)?;
        let durable = node.owner == 0;
        let node = Node {
            data: data.clone(),
            version: node.version.wrapping_add(1),
            mzxid: self.change.zxid,
            ..node
        };
        let stat = node.stat();
        self.touch(path, Some(node), durable);
        self.change.events.push(TreeEvent::Changed { path: path.to_owned() });
        Ok(stat)
    }

    fn delete(&mut self, path: &str, version: Option<i32>) -> Result<(), TreeError> {
        let Some(parent_of_path) = parent_path(path) else {
            return Err(TreeError::BadPath { path: path.to_owned() });
        };
        let node = self.existing(path, version)?;
        if node.num_children > 0 {
            return Err(TreeError::NotEmpty { path: path.to_owned() });
        }
        let durable = node.owner == 0;
        if let Some(parent) = self.node(parent_of_path).cloned() {
            let num_children = parent.num_children - 1;
            let parent = Node { num_children, pzxid: self.change.zxid, ..parent };
            self.touch(parent_of_path, Some(parent), durable);
        }
        self.touch(path, None, durable);
        self.change.events.push(TreeEvent::Deleted { path: path.to_owned() });
        Ok(())
    }

    fn end(&mut self, session: i64) {
        let Some(owned) = self.base.sessions.get(&session) else { return };
        if !self.change.ended.insert(session) {
            return;
        }
        let is_own =
            |touched: &Touched| touched.node.as_ref().is_some_and(|node| node.owner == session);
        let drafted = self.change.nodes.iter().filter(|(_, touched)| is_own(touched));
        let drafted = drafted.map(|(place, _)| place.0.clone());
        let candidates: BTreeSet<String> = owned.iter().cloned().chain(drafted).collect();
        self.change.zxid += 1;
        for path in candidates {
            if self.node(&path).is_some_and(|node| node.owner == session) {
                self.delete(&path, None).expect("an ephemeral node exists and has no children");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &str, mode: CreateMode) -> Op {
        Op::Create { path: path.to_owned(), data: Bytes::from_static(b"x"), mode }
    }

    fn carry_out(tree: &mut TreeState, work: &Work) -> Result<Outcome, MultiError> {
        let mut draft = tree.draft();
        let outcome = draft.apply(work);
        let change = draft.finish();
        tree.publish(change);
        outcome
    }

    fn multi(tree: &mut TreeState, session: i64, ops: Vec<Op>) -> Result<Outcome, MultiError> {
        carry_out(tree, &Work::Multi { session, ops })
    }

    #[test]
    fn children_are_found_beside_names_that_sort_between_a_path_and_its_children() {
        let mut tree = TreeState::new(1);
        let session = tree.open_session();
        let paths = ["/a", "/a-", "/a/b", "/a/b/c", "/a/b!", "/a/b0", "/b"];
        let ops = paths.map(|path| create(path, CreateMode::Persistent)).to_vec();
        multi(&mut tree, session, ops).unwrap();
        assert_eq!(tree.children("/").unwrap(), ["a", "a-", "b"]);
        assert_eq!(tree.children("/a").unwrap(), ["b", "b!", "b0"]);
        assert_eq!(tree.children("/a/b").unwrap(), ["c"]);
        assert_eq!(tree.children("/b").unwrap(), Vec::<String>::new());
        assert_eq!(tree.children("/nothing"), None);
    }

    #[test]
    fn a_refused_piece_of_work_leaves_the_drafted_ones_before_it_alone() {
        let mut tree = TreeState::new(1);
        let session = tree.open_session();
        let mut draft = tree.draft();
        let good =
            vec![create("/a", CreateMode::Persistent), create("/a/b", CreateMode::Persistent)];
        draft.apply(&Work::Multi { session, ops: good }).unwrap();
        let delete = |path: &str| Op::Delete { path: path.to_owned(), version: None };
        let bad = vec![delete("/a/b"), create("/a/c", CreateMode::Persistent), delete("/nothing")];
        let refused = draft.apply(&Work::Multi { session, ops: bad }).unwrap_err();
        assert!(matches!(refused, MultiError::Refused { index: 2, why: TreeError::NoNode { .. } }));
        let change = draft.finish();
        let events = tree.publish(change);
        assert_eq!(tree.children("/a").unwrap(), ["b"]);
        assert_eq!(tree.node("/a").unwrap().created, 1);
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn what_was_persistent_and_is_now_ephemeral_is_gone_from_the_disk() {
        let mut tree = TreeState::new(1);
        let session = tree.open_session();
        multi(&mut tree, session, vec![create("/a", CreateMode::Persistent)]).unwrap();
        let ops = vec![
            Op::Delete { path: "/a".to_owned(), version: None },
            create("/a", CreateMode::Ephemeral),
        ];
        let mut draft = tree.draft();
        draft.apply(&Work::Multi { session, ops }).unwrap();
        let change = draft.finish();
        let durable: Vec<_> = change.durable().map(|(path, node)| (path, node.is_some())).collect();
        assert_eq!(durable, [("/", true), ("/a", false)]);
    }

    #[test]
    fn what_only_touches_ephemeral_nodes_needs_no_disk() {
        let mut tree = TreeState::new(1);
        let session = tree.open_session();
        let mut draft = tree.draft();
        let work = Work::Multi { session, ops: vec![create("/lock", CreateMode::Ephemeral)] };
        draft.apply(&work).unwrap();
        draft.apply(&Work::End { session }).unwrap();
        let change = draft.finish();
        assert_eq!(change.durable().count(), 0);
        tree.publish(change);
        assert_eq!(tree.node("/lock"), None);
        assert_eq!(tree.node("/").unwrap().num_children, 0);
    }

    #[test]
    fn a_session_that_ended_writes_nothing_more() {
        let mut tree = TreeState::new(1);
        let session = tree.open_session();
        let mut draft = tree.draft();
        draft.apply(&Work::End { session }).unwrap();
        let work = Work::Multi { session, ops: vec![create("/late", CreateMode::Ephemeral)] };
        assert!(matches!(draft.apply(&work), Err(MultiError::Tree(TreeError::Closed))));
    }

    #[test]
    fn a_later_life_of_the_tree_has_greater_zxids() {
        let mut first = TreeState::new(1);
        let session = first.open_session();
        multi(&mut first, session, vec![create("/a", CreateMode::Persistent)]).unwrap();
        assert!(TreeState::new(2).zxid() > first.zxid());
    }
}
