//! The users whose program listens where this machine's own API should.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::geteuid;

/// The listening state in the kernel's list of sockets.
const LISTENS: &str = "0A";

/// Users whose program is taken for this machine's daemon. Any other user may listen there, too,
/// while the daemon does not, and must not be given its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Users(pub Vec<u32>);

impl Users {
    /// Root, whoever asks, and the owner of the file that holds the token: a daemon that another
    /// user has started made it.
    pub fn of(file: Option<&Path>) -> Self {
        let owner = file.and_then(|file| std::fs::metadata(file).ok()).map(|found| found.uid());
        Self([0, geteuid().as_raw()].into_iter().chain(owner).collect())
    }

    /// Whether one of them listens on 127.0.0.1 at `port`.
    pub fn listen_on_loopback(&self, port: u16) -> bool {
        let sockets = Sockets::read();
        sockets.is_ok_and(|sockets| self.own(&sockets, Ipv4Addr::LOCALHOST.into(), port).is_ok())
    }

    /// Checks that no other user's program would take a connection to `at`. An address of another
    /// machine is not looked at, nor anything where the kernel's list cannot be read.
    ///
    /// # Errors
    /// Nobody listens there, or somebody else.
    pub fn check(&self, at: IpAddr, port: u16) -> io::Result<()> {
        match Sockets::read() {
            Ok(sockets) if is_of_this_machine(at) => self.own(&sockets, at, port),
            _ => Ok(()),
        }
    }

    fn own(&self, sockets: &Sockets, at: IpAddr, port: u16) -> io::Result<()> {
        let users = sockets.users_at(at, port);
        match users.iter().find(|user| !self.0.contains(user)) {
            Some(other) => Err(io::Error::other(format!(
                "the program that listens there is the user {other}'s, who is not given the token"
            ))),
            // Asking nevertheless would race with whoever takes the port at this moment.
            None if users.is_empty() => Err(Errno::ECONNREFUSED.into()),
            None => Ok(()),
        }
    }
}

/// Whether connections to `at` stay on this machine. Nothing is sent for it: the kernel chooses an
/// address of this machine as their source.
fn is_of_this_machine(at: IpAddr) -> bool {
    let any: IpAddr = match at {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((at, 9))?;
        socket.local_addr()
    };
    at.is_loopback() || source().is_ok_and(|source| source.ip() == at)
}

/// The kernel's lists of sockets, as `/proc/net/tcp` and `/proc/net/tcp6` have them.
struct Sockets {
    four: String,
    six: String,
}

impl Sockets {
    fn read() -> io::Result<Self> {
        let four = std::fs::read_to_string("/proc/net/tcp")?;
        // A machine without IPv6 has no such list.
        let six = std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default();
        Ok(Self { four, six })
    }

    /// Users of the sockets that take connections to `at`: of those of just that address, if there
    /// are some, else of those of every address.
    fn users_at(&self, at: IpAddr, port: u16) -> Vec<u32> {
        let any = Ipv6Addr::UNSPECIFIED;
        let places = match at {
            IpAddr::V4(at) => vec![
                (&self.four, shown(&at.octets())),
                (&self.six, shown(&at.to_ipv6_mapped().octets())),
                (&self.four, shown(&Ipv4Addr::UNSPECIFIED.octets())),
                (&self.six, shown(&Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets())),
                (&self.six, shown(&any.octets())),
            ],
            IpAddr::V6(at) => {
                vec![(&self.six, shown(&at.octets())), (&self.six, shown(&any.octets()))]
            }
        };
        let mut found = places.iter().map(|(list, at)| users(list, &format!("{at}:{port:04X}")));
        found.find(|users| !users.is_empty()).unwrap_or_default()
    }
}

/// An address as the lists show it: the numbers of four bytes that it is in this machine's memory.
fn shown(octets: &[u8]) -> String {
    let number = |four: &[u8]| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
    octets.chunks_exact(4).map(|four| format!("{:08X}", number(four))).collect()
}

/// Users who listen at `local` in a list.
fn users(list: &str, local: &str) -> Vec<u32> {
    let user = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let is_there = words.next() == Some(local) && words.nth(1) == Some(LISTENS);
        words.nth(3).filter(|_| is_there)?.parse().ok()
    };
    list.lines().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::TcpListener;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
                        retrnsmt   uid  timeout inode\n";

    fn line(address: &str, state: &str, user: u32) -> String {
        format!(
            "   1: {address}:1CCA 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 \
             {user:>5}        0 814 1\n"
        )
    }

    fn local() -> String {
        shown(&[127, 0, 0, 1])
    }

    #[test]
    fn a_listener_of_ones_own_is_found_while_it_is_there() {
        let port = pvc_contracts::tcp_port::free_port();
        let users = Users::of(None);
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(users.listen_on_loopback(port));
        users.check(Ipv4Addr::LOCALHOST.into(), port).unwrap();
        drop(listener);
        assert!(!users.listen_on_loopback(port));
        let refused = users.check(Ipv4Addr::LOCALHOST.into(), port).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn another_users_listener_other_addresses_and_mere_connections_are_not_the_daemon() {
        let words = "the program that listens there is the user 1000's, who is not given the token";
        let (nobody, local) = (io::Error::from(Errno::ECONNREFUSED).to_string(), local());
        let (nobody, local) = (nobody.as_str(), local.as_str());
        for (address, state, user, problem) in [
            (local, "0A", 0, None),
            (local, "0A", 7, None),
            (local, "0A", 1000, Some(words)),
            ("00000000", "0A", 0, None),
            ("00000000", "0A", 1000, Some(words)),
            (local, "01", 0, Some(nobody)),
            ("0100000A", "0A", 0, Some(nobody)),
        ] {
            let four = format!("{HEAD}{}", line(address, state, user));
            let sockets = Sockets { four, six: String::new() };
            let outcome = Users(vec![0, 7]).own(&sockets, Ipv4Addr::LOCALHOST.into(), 7370);
            let outcome = outcome.err().map(|error| error.to_string());
            assert_eq!(outcome.as_deref(), problem, "{}", sockets.four);
        }
    }

    #[test]
    fn a_socket_of_version_six_takes_connections_of_version_four_unless_one_of_these_is_there() {
        let none = "0".repeat(32);
        for address in [none, shown(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets())] {
            let six = line(&address, "0A", 1000);
            let mut sockets = Sockets { four: HEAD.to_owned(), six };
            assert_eq!(sockets.users_at(Ipv4Addr::LOCALHOST.into(), 7370), [1000], "{address}");
            sockets.four.push_str(&line(&local(), "0A", 0));
            assert_eq!(sockets.users_at(Ipv4Addr::LOCALHOST.into(), 7370), [0], "{address}");
        }
        let six = line(&shown(&Ipv6Addr::LOCALHOST.octets()), "0A", 1000);
        let sockets = Sockets { four: String::new(), six };
        assert_eq!(sockets.users_at(Ipv6Addr::LOCALHOST.into(), 7370), [1000]);
        assert!(sockets.users_at(Ipv4Addr::LOCALHOST.into(), 7370).is_empty());
    }

    #[test]
    fn who_owns_the_file_with_the_token_is_taken_for_the_daemon() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let owner = file.as_file().metadata().unwrap().uid();
        assert_eq!(Users::of(Some(file.path())), Users(vec![0, geteuid().as_raw(), owner]));
    }

    #[test]
    fn an_address_of_another_machine_is_not_looked_at() {
        let elsewhere: IpAddr = "192.0.2.1".parse().unwrap();
        assert!(!is_of_this_machine(elsewhere));
        Users(Vec::new()).check(elsewhere, 7370).unwrap();
        assert!(is_of_this_machine("127.0.0.2".parse().unwrap()));
    }
}
