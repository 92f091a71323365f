//! Waiting until a node has become what it was asked to be.

use pvc_api_types::operations::node::GetNodeNode;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use pvc_api_types::{Node, NodeWait};
use pvc_client::Kind;

use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Failure, Outcome};
use crate::output::harmless;

const PAUSE: Duration = Duration::from_secs(1);
/// A dot for this many looks.
const LOOKS_PER_DOT: u32 = 5;
/// Time that a node may stay as it was before it is said not to have taken up the request, and that
/// the API may be away: the primary node's address moves with it.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A change of one of a node's states.
pub struct Change {
    pub state: fn(&Node) -> &str,
    /// State that the node passes through, such as `flush`.
    pub passing: &'static str,
    /// State that it ends in, such as `flushed`.
    pub reached: &'static str,
}

/// Meaning of a look at the node for the waiting.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Reached,
    /// Under way, or not yet begun.
    GoOn,
    /// The node has become something else, so somebody asked for something else meanwhile.
    Diverted,
}

impl Change {
    fn verdict(&self, state: &str, begun: bool) -> Verdict {
        match state {
            _ if state == self.reached => Verdict::Reached,
            _ if state == self.passing || !begun => Verdict::GoOn,
            _ => Verdict::Diverted,
        }
    }
}

/// Prints the reply to a request and, if `wait`, waits until the node has followed it. A reply
/// with the word `already` says there is nothing to wait for, unless it is being done already.
pub fn finish(pvc: &mut Pvc, node: &str, reply: &str, wait: bool, change: &Change) -> Outcome {
    pvc.done(reply);
    if !wait || pvc.dry_run || (reply.contains("already") && !reply.contains("being")) {
        return Ok(());
    }
    pvc.out.flush();
    interrupt::watch();
    let mut story = Story::begin(pvc.chatty());
    let outcome = watch(pvc, node, change, &mut story);
    story.end(outcome.is_ok());
    outcome
}

fn watch(pvc: &mut Pvc, node: &str, change: &Change, story: &mut Story) -> Outcome {
    let mut begun = false;
    let mut last_answer = Instant::now();
    loop {
        interrupt::pause(PAUSE);
        if interrupt::happened() {
            return Err(Failure::interrupted(format!("no longer waiting; node `{node}` goes on"))
                .hint(format!("`pvc node info {node}` shows how far it is")));
        }
        story.look();
        let found =
            match pvc.client()?.read_only(GetNodeNode, [node], "node").and_then(|node| node.read())
            {
                Ok(found) => found,
                Err(error) if may_pass(error.kind()) && last_answer.elapsed() < TIME_LIMIT => {
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
        last_answer = Instant::now();
        let state = (change.state)(&found);
        begun = begun || state == change.passing;
        match change.verdict(state, begun) {
            Verdict::Reached => return Ok(()),
            Verdict::GoOn if begun || story.started.elapsed() < TIME_LIMIT => story.tell(&found),
            Verdict::GoOn => {
                return Err(Failure::failed(format!("node `{node}` is still in state `{state}`"))
                    .hint("is its daemon running? `pvc node info` shows its last keepalive"));
            }
            Verdict::Diverted => {
                return Err(Failure::failed(format!(
                    "node `{node}` ended in state `{state}` instead of `{}`",
                    change.reached
                )));
            }
        }
    }
}

/// Output of the waiting on standard error: a line for each thing that is waited for, whenever it
/// changes; on a terminal below them a line that is drawn again and again, with the progress of
/// copies.
struct Story {
    shown: bool,
    terminal: bool,
    started: Instant,
    looks: u32,
    said: BTreeMap<String, String>,
    /// The columns of the line that is not ended.
    open: usize,
}

impl Story {
    fn begin(shown: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let mut story = Story {
            shown,
            terminal,
            started: Instant::now(),
            looks: 0,
            said: BTreeMap::new(),
            open: 0,
        };
        story.draw(BEGINNING.to_owned());
        story
    }

    /// A sign of life where no line is drawn again.
    fn look(&mut self) {
        self.looks += 1;
        if !self.terminal && self.open > 0 && self.looks.is_multiple_of(LOOKS_PER_DOT) {
            self.print(".");
        }
    }

    fn tell(&mut self, node: &Node) {
        let news = news(&mut self.said, node);
        if !news.is_empty() {
            self.clear();
            for line in news {
                self.print(&format!("  {}\n", harmless(&line, &[])));
            }
        }
        if self.terminal {
            let line = harmless(&status(node, self.started.elapsed().as_secs()), &[]);
            self.draw(line.chars().take(crate::output::width()).collect());
        }
    }

    fn end(&mut self, reached: bool) {
        if !reached {
            return self.clear();
        }
        let seconds = self.started.elapsed().as_secs();
        if self.terminal {
            self.clear();
        }
        let space = if self.open > 0 { " " } else { "" };
        self.print(&format!("{space}done. [{seconds}s]\n"));
    }

    /// Leaves the cursor at the beginning of a line.
    fn clear(&mut self) {
        let open = std::mem::take(&mut self.open);
        match (open, self.terminal) {
            (0, _) => {}
            (open, true) => self.print(&format!("\r{:open$}\r", "")),
            (_, false) => self.print("\n"),
        }
    }

    fn draw(&mut self, line: String) {
        if self.terminal {
            self.clear();
        }
        self.open = line.chars().count();
        self.print(&line);
    }

    fn print(&self, text: &str) {
        if self.shown {
            let mut stderr = std::io::stderr();
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        }
    }
}

const BEGINNING: &str = "Waiting...";

/// Lines about what has changed since it was `said`.
fn news(said: &mut BTreeMap<String, String>, node: &Node) -> Vec<String> {
    let mut now = BTreeMap::new();
    if !matches!(node.daemon_state.as_str(), "" | "run") {
        let why = format!("is in state `{}`; nothing happens until it runs", node.daemon_state);
        now.insert("the daemon of the node".to_owned(), why);
    }
    now.extend(
        node.waits_for.iter().map(|wait| (format!("VM `{}`:", wait.name), wait.reason.clone())),
    );
    let changed = now.iter().filter(|(who, what)| said.get(*who) != Some(what));
    let mut lines: Vec<String> = changed.map(|(who, what)| format!("{who} {what}")).collect();
    let settled = said.keys().filter(|who| !now.contains_key(*who));
    lines.extend(settled.map(|who| match who.ends_with(':') {
        true => format!("{who} it is done"),
        false => format!("{who} runs again"),
    }));
    *said = now;
    lines
}

/// `Waiting... 12 s; web1 43 %, db1 7 %`
fn status(node: &Node, seconds: u64) -> String {
    let copy = |wait: &NodeWait| Some(format!("{} {} %", wait.name, wait.percent?));
    let copies: Vec<String> = node.waits_for.iter().filter_map(copy).collect();
    let separator = if copies.is_empty() { "" } else { "; " };
    format!("{BEGINNING} {seconds} s{separator}{}", copies.join(", "))
}

fn may_pass(kind: Kind) -> bool {
    matches!(kind, Kind::Unreachable | Kind::Server | Kind::BadAnswer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Change =
        Change { state: |node| &node.domain_state, passing: "flush", reached: "flushed" };

    #[test]
    fn a_node_that_has_not_begun_is_waited_for() {
        assert_eq!(FLUSH.verdict("ready", false), Verdict::GoOn);
        assert_eq!(FLUSH.verdict("flush", true), Verdict::GoOn);
        assert_eq!(FLUSH.verdict("flushed", true), Verdict::Reached);
        assert_eq!(FLUSH.verdict("unflush", true), Verdict::Diverted);
    }

    fn node(waits: &[(&str, &str, Option<i64>)]) -> Node {
        let wait = |(name, reason, percent): &(&str, &str, Option<i64>)| NodeWait {
            name: (*name).to_owned(),
            action: "move".to_owned(),
            reason: (*reason).to_owned(),
            percent: *percent,
        };
        let waits_for = waits.iter().map(wait).collect();
        Node { daemon_state: "run".to_owned(), waits_for, ..Node::default() }
    }

    #[test]
    fn what_is_waited_for_is_said_once_for_each_change() {
        let mut said = BTreeMap::new();
        let both = [
            ("web1", "it is being moved to node `hv2`", None),
            ("db1", "it is being shut down", None),
        ];
        assert_eq!(
            news(&mut said, &node(&both)),
            ["VM `db1`: it is being shut down", "VM `web1`: it is being moved to node `hv2`"]
        );
        let farther = [("web1", "it is being moved to node `hv2`", Some(43)), both[1]];
        assert_eq!(news(&mut said, &node(&farther)), [""; 0], "progress is no change");
        assert_eq!(
            news(&mut said, &node(&[("db1", "it is being stopped", None)])),
            ["VM `db1`: it is being stopped", "VM `web1`: it is done"]
        );
        let dead = Node { daemon_state: "dead".to_owned(), ..node(&[]) };
        assert_eq!(
            news(&mut said, &dead),
            [
                "the daemon of the node is in state `dead`; nothing happens until it runs",
                "VM `db1`: it is done"
            ]
        );
        assert_eq!(news(&mut said, &node(&[])), ["the daemon of the node runs again"]);
        assert_eq!(news(&mut said, &node(&[])), [""; 0]);
    }

    #[test]
    fn a_terminal_sees_how_far_the_copies_are() {
        let copies = [("web1", "x", Some(43)), ("db1", "y", None), ("db2", "z", Some(7))];
        assert_eq!(status(&node(&copies), 12), "Waiting... 12 s; web1 43 %, db2 7 %");
        assert_eq!(status(&node(&[]), 3), "Waiting... 3 s");
    }
}
