//! Two trees that are told the same things say the same things.
//!
//! The rules of [`crate::tree`] are what we thought of. Here a random walk through operations, good
//! and bad, is done on two trees side by side, and every answer and the trees at the end are
//! compared. What may differ is the numbering of changes, and nothing else.

use std::collections::BTreeMap;

use bytes::Bytes;
use pvc_ports::{CreateMode, Done, MultiError, Op, SplitMix, Stat, Tree, TreeError};

/// Does the same `steps` random changes to both trees, which must be empty below `root`.
///
/// # Panics
/// At the first difference, with the seed and the step.
pub async fn agree(one: &dyn Tree, other: &dyn Tree, root: &str, seed: u64, steps: usize) {
    let mut dice = Dice(SplitMix(seed));
    for step in 0..steps {
        let ops = dice.ops(root);
        let (left, right) = tokio::join!(one.multi(ops.clone()), other.multi(ops.clone()));
        let (left, right) = (outcome(left), outcome(right));
        assert_eq!(left, right, "seed {seed}, step {step}: {ops:#?}");
        if dice.below(20) == 0 {
            let prefix = dice.path(root);
            let mode = CreateMode::EphemeralSequential;
            let (left, right) = tokio::join!(
                one.create(&prefix, Bytes::new(), mode),
                other.create(&prefix, Bytes::new(), mode)
            );
            let name = |made: Result<(String, Stat), TreeError>| {
                made.map(|(path, _)| path).map_err(|error| error.to_string())
            };
            assert_eq!(
                name(left),
                name(right),
                "seed {seed}, step {step}: a sequence at `{prefix}`"
            );
        }
    }
    let (left, right) = (snapshot(one, root).await, snapshot(other, root).await);
    assert_eq!(left, right, "seed {seed}: the trees differ at the end");
}

/// The same walk for the same seed.
struct Dice(SplitMix);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// Chooses one of a few paths, so that operations meet each other.
    fn path(&mut self, root: &str) -> String {
        let mut path = root.to_owned();
        for _ in 0..=self.below(3) {
            path.push_str(["/a", "/b", "/a-", "/ü"][self.below(4) as usize]);
        }
        path
    }

    fn version(&mut self) -> Option<i32> {
        (self.below(2) == 0).then(|| self.below(3) as i32)
    }

    fn ops(&mut self, root: &str) -> Vec<Op> {
        (0..=self.below(4)).map(|_| self.op(root)).collect()
    }

    fn op(&mut self, root: &str) -> Op {
        let (path, data) = (self.path(root), Bytes::from(self.below(100).to_string()));
        match self.below(10) {
            0..=4 => Op::Create { path, data, mode: CreateMode::Persistent },
            5 => Op::Create { path, data, mode: CreateMode::Ephemeral },
            6 | 7 => Op::Set { path, data, version: self.version() },
            8 => Op::Delete { path, version: self.version() },
            _ => Op::Check { path, version: self.below(2) as i32 },
        }
    }
}

/// Returns what can be compared: everything but the numbers of changes and sessions.
fn outcome(result: Result<Vec<Done>, MultiError>) -> Result<Vec<String>, (usize, String)> {
    match result {
        Ok(done) => Ok(done.iter().map(shown).collect()),
        Err(MultiError::Refused { index, why }) => Err((index, why.to_string())),
        Err(MultiError::Tree(error)) => panic!("the tree failed: {error}"),
    }
}

fn shown(done: &Done) -> String {
    match done {
        Done::Created(stat) => format!("created {:?}", comparable(stat)),
        Done::Set(stat) => format!("set {:?}", comparable(stat)),
        Done::Deleted => "deleted".to_owned(),
        Done::Checked => "checked".to_owned(),
    }
}

/// Versions, counts, and how the zxids lie to each other.
fn comparable(stat: &Stat) -> (i32, i32, i32, bool, bool, bool) {
    let zxids = (stat.czxid == stat.mzxid, stat.czxid == stat.pzxid);
    (stat.version, stat.cversion, stat.num_children, stat.ephemeral_owner != 0, zxids.0, zxids.1)
}

async fn snapshot(tree: &dyn Tree, root: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let entry = tree.get(&path).await.expect("a read succeeds").expect("it exists");
        let mut names = tree.children(&path).await.expect("a read succeeds").expect("it exists");
        names.sort();
        found.insert(
            path.clone(),
            format!("{:?} {:?} {names:?}", entry.data, comparable(&entry.stat)),
        );
        open.extend(names.iter().map(|name| format!("{path}/{name}")));
    }
    found
}
