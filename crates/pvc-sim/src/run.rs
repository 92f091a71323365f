//! State of a run that every part of the world needs: time and what waits for it, chance, and the
//! log.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::fence::Rules;
use pvc_testkit::TokioClock;

use crate::chance::Chance;
use crate::daemons::usual_rules;
use crate::log::Log;
use crate::nature::Nature;
use crate::state::State;

/// Something that happens to the world.
pub(crate) type StoryAction = Box<dyn FnOnce(&mut State) + Send>;

pub(crate) struct Run {
    pub now: Duration,
    pub nature: Nature,
    /// Time limits of fencers.
    pub rules: Rules,
    pub chance: Chance,
    log: Log,
    agenda: BTreeMap<(Duration, u64), StoryAction>,
    next_number: u64,
    /// Number of events of each kind so far.
    happened: BTreeMap<String, u64>,
}

impl Run {
    pub fn new(nature: Nature, log: Log) -> Run {
        Run {
            now: Duration::ZERO,
            nature,
            rules: usual_rules(),
            chance: Chance::for_purpose(nature.seed, "world"),
            log,
            agenda: BTreeMap::new(),
            next_number: 0,
            happened: BTreeMap::new(),
        }
    }

    pub fn note(&self, line: impl AsRef<str>) {
        self.log.note(line.as_ref());
    }

    /// Sets who speaks in the daemons' own logs from now on.
    pub fn set_source(&self, source: &str) {
        self.log.set_source(source);
    }

    /// Something of this kind has happened.
    pub fn count(&mut self, kind: String) {
        *self.happened.entry(kind).or_default() += 1;
    }

    pub fn happened(&self) -> &BTreeMap<String, u64> {
        &self.happened
    }

    /// Has something happen after `delay`.
    pub fn later(
        &mut self,
        delay: Duration,
        story_action: impl FnOnce(&mut State) + Send + 'static,
    ) {
        self.at(self.now + delay, story_action);
    }

    pub fn at(&mut self, when: Duration, story_action: impl FnOnce(&mut State) + Send + 'static) {
        self.next_number += 1;
        self.agenda.insert((when, self.next_number), Box::new(story_action));
    }

    /// Time of the next event.
    pub fn first(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((when, _), _)| *when)
    }

    /// Takes the next thing out of the agenda whose time has come.
    pub fn next_due(&mut self) -> Option<StoryAction> {
        let entry = self.agenda.first_entry()?;
        (entry.key().0 <= self.now).then(|| entry.remove())
    }

    /// Time that a message takes from one host to another.
    pub fn latency(&mut self) -> Duration {
        self.nature.latency(&mut self.chance)
    }

    /// Time that a wall clock shows that is `ahead` seconds ahead.
    pub fn wall(&self, ahead: i64) -> Duration {
        let now = TokioClock::WALL_START + self.now;
        let step = Duration::from_secs(ahead.unsigned_abs());
        if ahead < 0 { now.saturating_sub(step) } else { now + step }
    }
}
