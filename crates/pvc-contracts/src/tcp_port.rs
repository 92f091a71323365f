//! TCP ports of the loopback, for tests that need a number before somebody listens there, or of a
//! place where nobody does.
//!
//! Whoever binds port 0, drops the listener and uses the number later shares it with others: the
//! kernel may give it to the next who asks for any port, or for a connection's own end.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// First of the ports that are given.
const FIRST: u16 = 10_000;

/// Number of the ports that are given. They end before 32768, where the range begins from which
/// Linux gives ports to those who name none (`net.ipv4.ip_local_port_range`).
const COUNT: u16 = 22_000;

/// Ports that lie between where a process begins and where the process does that was started next.
const PER_PROCESS: u32 = 16;

/// Returns a port of 127.0.0.1 at which nobody listens, and that the kernel gives to nobody who
/// names none.
///
/// Calls of one process return different ports. Processes begin at different places, so that
/// tests beside each other do not meet: nextest runs each in a process of its own.
///
/// # Panics
/// If somebody listens at each of these ports.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(PER_PROCESS);
    (0..COUNT)
        .map(|_| port_at(begin.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed))))
        .find(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok())
        .expect("one of so many ports is free")
}

/// The port at this place of the ports that are given, which follow each other in a circle.
fn port_at(place: u32) -> u16 {
    let from_first = u16::try_from(place % u32::from(COUNT)).expect("less than their number");
    FIRST + from_first
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_port_is_another_and_none_that_the_kernel_gives_by_itself() {
        let ports: BTreeSet<u16> = (0..40).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 40);
        assert!(ports.iter().all(|port| (1024..32_768).contains(port)), "{ports:?}");
    }

    #[test]
    fn the_ports_are_a_circle() {
        let last = u32::from(COUNT) - 1;
        assert_eq!([0, last, last + 1].map(port_at), [10_000, 31_999, 10_000]);
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let next = free_port() + 1;
        // If it cannot be taken, it is in use already.
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, next));
        assert_ne!(free_port(), next);
    }
}
