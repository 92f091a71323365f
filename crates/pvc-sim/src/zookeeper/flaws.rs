//! The deliberate flaws: versions that are forgotten, wall clocks that are compared.

use std::time::Duration;

use pvc_ports::{Entry, Op};

use super::{Around, Ask, Ensemble};
use crate::nature::Mutation;

/// Age at which a stamp is disbelieved by who compares wall clocks.
const BELIEVED: Duration = Duration::from_secs(30);

impl Ensemble {
    /// Returns what arrives of a change with one of the deliberate flaws.
    pub(super) fn mutated(&self, around: &Around<'_>, client: usize, ask: Ask) -> Ask {
        let Ask::Multi(ops) = ask else { return ask };
        let current = |path: &str| self.tree.node(path).map_or(0, |node| node.version);
        let believed = &self.clients[client].believed;
        let flawed = |op| match (around.run.nature.mutation, op) {
            (Some(Mutation::Versionless), Op::Set { path, data, .. }) => {
                Op::Set { path, data, version: None }
            }
            (Some(Mutation::Versionless), Op::Check { path, .. }) => {
                Op::Check { version: current(&path), path }
            }
            // Who believes in an old stamp decides by it.
            (Some(Mutation::WallClock), Op::Check { path, version })
                if believed.get(&path).is_some_and(|entry| entry.stat.version == version) =>
            {
                Op::Check { version: current(&path), path }
            }
            (_, op) => op,
        };
        Ask::Multi(ops.into_iter().map(flawed).collect())
    }

    /// Filters what a reader sees with the deliberate flaw of comparing wall clocks: a stamp that
    /// is old by the reader's clock is no sign of life, as if it had not been written.
    pub(super) fn disbelieved(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        paths: &[String],
        mut entries: Vec<Option<Entry>>,
    ) -> Vec<Option<Entry>> {
        let Some(host) = self.host_of(around.processes, client) else { return entries };
        let now = around.run.wall(around.hosts[host].wall_offset);
        let believed = &mut self.clients[client].believed;
        for (path, entry) in paths.iter().zip(&mut entries) {
            let Some(known) = entry.as_mut().filter(|_| path.ends_with("/keepalive")) else {
                continue;
            };
            let stamp = std::str::from_utf8(&known.data).ok().and_then(|text| text.parse().ok());
            let is_old = stamp.is_some_and(|stamp| now > Duration::from_secs(stamp) + BELIEVED);
            match believed.get(path).filter(|_| is_old) {
                Some(before) => known.clone_from(before),
                None => drop(believed.insert(path.clone(), known.clone())),
            }
        }
        entries
    }
}
