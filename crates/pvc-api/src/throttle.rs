//! Limits for those who guess keys, and for those whom the log should not be full of.

#![allow(clippy::disallowed_types, reason = "looked up by key, never walked")]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

use crate::error::{ApiError, Result};

/// Refusals of one address that has not shown a key.
#[derive(Default)]
struct Guesser {
    /// Wrong keys, and when the last one came.
    count: u32,
    last: Duration,
    /// Refusals that are being held back now.
    held: u32,
    /// Time at which the log last reported it, and number of refusals that it has left out since.
    reported: Option<Duration>,
    unreported: u64,
}

/// Slows down those who guess, and reports them once a second. A refusal is held back longer the
/// more there were lately, and an address that lets many be held at once gets no more of them until
/// they are through. Whoever shows the right key is not concerned by any of it, also at the same
/// address.
#[derive(Default)]
pub struct Throttle {
    guessers: Mutex<Guessers>,
}

#[derive(Default)]
struct Guessers {
    known: HashMap<IpAddr, Guesser>,
    /// Time at which guessers that may be forgotten were last looked for.
    tidied: Option<Duration>,
}

/// Failures are forgotten after this time without another.
const MEMORY: Duration = Duration::from_secs(60);
/// The first failures are answered at once: somebody is setting up a client.
const FREE: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(4);
const MAX_HELD: u32 = 16;
const MAX_ADDRESSES: usize = 10_000;
/// Interval at which the log reports one address.
const REPORT_EVERY: Duration = Duration::from_secs(1);

impl Throttle {
    fn guessers(&self) -> MutexGuard<'_, Guessers> {
        self.guessers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses another refusal to an address that has too many of them outstanding.
    pub fn admit(&self, address: IpAddr) -> Result<()> {
        match self.guessers().known.get(&group(address)) {
            Some(guesser) if guesser.held >= MAX_HELD => {
                let message = "too many requests with a wrong key came from this address";
                Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, message)
                    .retry_after(LONGEST_DELAY.as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// Notes a wrong key at `now` and says for how long the refusal is to be held back.
    pub fn note(&self, address: IpAddr, now: Duration) -> Duration {
        let mut guessers = self.guessers();
        let Some(guesser) = guessers.find(address, now) else {
            // A flood from everywhere: remembering more helps nobody.
            return FIRST_DELAY;
        };
        if guesser.last + MEMORY <= now {
            guesser.count = 0;
        }
        guesser.count += 1;
        guesser.last = now;
        match guesser.count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(over) => FIRST_DELAY.saturating_mul(1 << over.min(8)).min(LONGEST_DELAY),
        }
    }

    /// Whether the log tells of what a guesser at `address` did at `now`, and how much like it was
    /// left out before.
    pub fn tell(&self, address: IpAddr, now: Duration) -> Option<u64> {
        let mut guessers = self.guessers();
        let guesser = guessers.find(address, now)?;
        if guesser.reported.is_some_and(|reported| reported + REPORT_EVERY > now) {
            guesser.unreported += 1;
            return None;
        }
        guesser.reported = Some(now);
        Some(std::mem::take(&mut guesser.unreported))
    }

    fn hold(&self, address: IpAddr, change: i32) {
        if let Some(guesser) = self.guessers().known.get_mut(&group(address)) {
            guesser.held = guesser.held.saturating_add_signed(change);
        }
    }
}

impl Guessers {
    /// Finds what is known of `address`; `None` if it is new and there are too many others.
    fn find(&mut self, address: IpAddr, now: Duration) -> Option<&mut Guesser> {
        let address = group(address);
        if self.known.len() >= MAX_ADDRESSES && !self.known.contains_key(&address) {
            self.tidy(now);
            if self.known.len() >= MAX_ADDRESSES {
                return None;
            }
        }
        Some(self.known.entry(address).or_default())
    }

    /// Forgets who has done nothing lately; looks for them once a second at most.
    fn tidy(&mut self, now: Duration) {
        if self.tidied.is_some_and(|tidied| tidied + REPORT_EVERY > now) {
            return;
        }
        self.tidied = Some(now);
        let is_recent = |at: Duration| at + MEMORY > now;
        self.known.retain(|_, guesser| {
            guesser.held > 0 || is_recent(guesser.last) || guesser.reported.is_some_and(is_recent)
        });
    }
}

/// The addresses that are one client: an IPv6 host has its whole /64 to choose from.
pub fn group(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        },
    }
}

/// Counts a refusal as held until it is dropped, also if its client goes away meanwhile.
pub struct Held<'a>(&'a Throttle, IpAddr);

impl<'a> Held<'a> {
    pub fn new(throttle: &'a Throttle, address: IpAddr) -> Self {
        throttle.hold(address, 1);
        Held(throttle, address)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.hold(self.1, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_held_back_longer_each_time_and_forgotten_after_a_minute() {
        let throttle = Throttle::default();
        let address = "192.0.2.1".parse().unwrap();
        let mut now = Duration::from_secs(1000);
        let delays: Vec<u128> = (0..10).map(|_| throttle.note(address, now).as_millis()).collect();
        assert_eq!(delays, [0, 0, 0, 250, 500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(throttle.note("192.0.2.2".parse().unwrap(), now), Duration::ZERO);
        now += MEMORY;
        assert_eq!(throttle.note(address, now), Duration::ZERO);
    }

    #[test]
    fn an_address_that_floods_is_asked_to_come_back_until_its_refusals_are_through() {
        let throttle = Throttle::default();
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        throttle.note(address, Duration::from_secs(1));
        let held: Vec<_> = (0..MAX_HELD).map(|_| Held::new(&throttle, address)).collect();
        assert_eq!(throttle.admit(neighbour).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        assert!(throttle.admit("2001:db8:0:1::1".parse().unwrap()).is_ok());
        drop(held);
        assert!(throttle.admit(address).is_ok());
    }

    #[test]
    fn the_log_tells_of_an_address_once_a_second_and_how_much_it_left_out() {
        let throttle = Throttle::default();
        let (address, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let at = Duration::from_millis;
        assert_eq!(throttle.tell(address, at(5_000)), Some(0));
        assert!((5_001..6_000).all(|now| throttle.tell(address, at(now)).is_none()));
        assert_eq!(throttle.tell(other, at(5_500)), Some(0));
        assert_eq!(throttle.tell(address, at(6_000)), Some(999));
        assert_eq!(throttle.tell(address, at(7_000)), Some(0));
    }

    #[test]
    fn a_flood_from_everywhere_is_not_remembered_for_ever() {
        let throttle = Throttle::default();
        let address = |number: u32| IpAddr::V4(number.into());
        let now = Duration::from_secs(1000);
        assert!(
            (0..20_000).filter(|number| throttle.tell(address(*number), now).is_some()).count()
                == MAX_ADDRESSES
        );
        assert_eq!(throttle.tell(address(30_000), now), None);
        assert_eq!(throttle.tell(address(30_000), now + MEMORY), Some(0));
        assert!(throttle.guessers().known.len() < MAX_ADDRESSES);
    }
}
