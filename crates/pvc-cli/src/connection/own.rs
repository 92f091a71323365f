//! Whether this machine's own API listens on its loopback.

use nix::unistd::geteuid;

/// The listening state in the kernel's list of sockets.
const LISTENS: &str = "0A";

/// Whether a daemon listens on 127.0.0.1 at `port`: one of root's, or of whoever asks. Any other
/// user may listen there, too, while the daemon does not, and must not be given its key.
pub fn listens_on_loopback(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    is_among(&sockets, port, &[0, geteuid().as_raw()])
}

/// Whether one of `users` listens there, in a list as `/proc/net/tcp` has it.
fn is_among(sockets: &str, port: u16, users: &[u32]) -> bool {
    // The address is shown as the number that it is in this machine's memory.
    let local = format!("{:08X}:{port:04X}", u32::from_ne_bytes([127, 0, 0, 1]));
    sockets.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_there = words.next() == Some(&local) && words.nth(1) == Some(LISTENS);
        let user = words.nth(3).and_then(|user| user.parse().ok());
        is_there && user.is_some_and(|user| users.contains(&user))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::TcpListener;

    #[test]
    fn a_listener_of_ones_own_is_found_while_it_is_there() {
        let port = pvc_contracts::tcp_port::free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(listens_on_loopback(port));
        drop(listener);
        assert!(!listens_on_loopback(port));
    }

    #[test]
    fn another_users_listener_other_addresses_and_mere_connections_are_not_it() {
        let local = format!("{:08X}:1CCA", u32::from_ne_bytes([127, 0, 0, 1]));
        let line = |address: &str, state: &str, user: u32| {
            format!(
                "   1: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 \
                 {user:>5}        0 814 1\n"
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
                    retrnsmt   uid  timeout inode\n";
        for (address, state, user, found) in [
            (local.as_str(), "0A", 0, true),
            (&local, "0A", 1000, false),
            (&local, "01", 0, false),
            ("0100000A:1CCA", "0A", 0, false),
        ] {
            let sockets = format!("{head}{}", line(address, state, user));
            assert_eq!(is_among(&sockets, 7370, &[0, 7]), found, "{sockets}");
        }
    }
}
