//! Taking the time.

use std::future::Future;
use std::time::Duration;

use pvc_linux::SystemClock;
use pvc_ports::Clock;

use crate::report::Spread;

/// Sizes and repetitions: the real thing, or just enough to see that every figure is made.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// The sizes of the clusters, ascending.
    pub vms: [usize; 4],
    /// Number of times that each HTTP request is made.
    pub requests: usize,
    /// Number of times that each program is started.
    pub starts: usize,
    /// Number of times that the whole tree is read.
    pub sweeps: usize,
    /// Number of readings of a cache that make one sample; a single one is shorter than the clock
    /// can tell.
    pub batch: usize,
    pub keepalives: usize,
    /// Size of the file that is uploaded.
    pub upload_bytes: u64,
    pub uploads: usize,
    /// Size of the image that new VMs are made of.
    pub image_bytes: u64,
    /// Number of VMs that are made of it, one after the other.
    pub new_vms: usize,
    /// Number of VMs that are made of a profile at once.
    pub profile_vms: usize,
}

impl Scale {
    pub const FULL: Scale = Scale {
        vms: [10, 100, 1_000, 10_000],
        requests: 250,
        starts: 200,
        sweeps: 9,
        batch: 1_000,
        keepalives: 10,
        upload_bytes: 1 << 30,
        uploads: 3,
        image_bytes: 1 << 30,
        new_vms: 9,
        profile_vms: 100,
    };
    pub const QUICK: Scale = Scale {
        vms: [2, 4, 8, 16],
        requests: 3,
        starts: 2,
        sweeps: 2,
        batch: 10,
        keepalives: 2,
        upload_bytes: 8 << 20,
        uploads: 1,
        image_bytes: 64 << 20,
        new_vms: 1,
        profile_vms: 2,
    };

    pub fn small(&self) -> usize {
        self.vms[0]
    }

    /// The size that most budgets speak of.
    pub fn usual(&self) -> usize {
        self.vms[2]
    }

    pub fn large(&self) -> usize {
        self.vms[3]
    }
}

pub fn now() -> Duration {
    SystemClock.monotonic()
}

pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = now();
    let done = work();
    (now() - begin, done)
}

pub async fn timed_async<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let begin = now();
    let done = work.await;
    (now() - begin, done)
}

/// Samples of a thing and of its reference, taken in turn: a noisy machine slows down both.
#[derive(Debug, Default)]
pub struct Pair {
    pub measured: Vec<Duration>,
    pub reference: Vec<Duration>,
}

impl Pair {
    pub fn spreads(self) -> (Spread, Spread) {
        (Spread::of(self.measured), Spread::of(self.reference))
    }
}
