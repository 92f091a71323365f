//! Parts of what is drawn: moments of a history, some of the hosts, and times.

use crate::chance::Chance;

pub(super) fn some_hosts(chance: &mut Chance, hosts: usize) -> Vec<usize> {
    let wanted: Vec<usize> = (0..hosts).filter(|_| chance.happens(500)).collect();
    if wanted.is_empty() { vec![chance.below(hosts as u64) as usize] } else { wanted }
}

/// Time that a fault lasts, in milliseconds.
pub(super) fn lasts(chance: &mut Chance) -> u64 {
    match chance.below(3) {
        0 => 500 + chance.below(15_000),
        1 => 15_000 + chance.below(75_000),
        _ => 90_000 + chance.below(500_000),
    }
}

/// Moments of a history, some time apart, until its end.
pub(super) struct Moments {
    /// The last of them, in milliseconds.
    at: u64,
    between: u64,
    end: u64,
}

impl Moments {
    /// Moments after `begin`, on average `between` milliseconds from one to the next.
    pub(super) fn new(begin: u64, between: u64, minutes: u64) -> Moments {
        Moments { at: begin, between, end: minutes * 60_000 }
    }

    /// Draws the next one.
    pub(super) fn next(&mut self, chance: &mut Chance) -> Option<u64> {
        self.at = self.at.saturating_add(1 + chance.below(2 * self.between));
        (self.at <= self.end).then_some(self.at)
    }
}
