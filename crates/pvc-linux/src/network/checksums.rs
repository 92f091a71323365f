//! Checksums of what is sent over a link, computed by this machine (`ethtool -K LINK tx off`).

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `ETHTOOL_STXCSUM` of `linux/ethtool.h`.
const SET_TX_CHECKSUMS: u32 = 0x17;

/// `SIOCETHTOOL` of `linux/sockios.h`.
const ETHTOOL: u32 = 0x8946;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Has this machine compute them.
pub fn compute(link: &str) -> io::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut value = Value { command: SET_TX_CHECKSUMS, data: 0 };
    let mut name = [0; libc::IFNAMSIZ];
    // The last byte of a name ends it.
    if link.len() >= name.len() {
        return Err(Errno::ENODEV.into());
    }
    for (to, from) in name.iter_mut().zip(link.bytes()) {
        *to = from.cast_signed();
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut value).cast() },
    };
    // SAFETY: this request takes a whole `ifreq` whose name ends with a zero and whose data is a
    // whole `ethtool_value`, which is all that this command reads; both outlive the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL.into(), &raw mut request) };
    Errno::result(done)?;
    Ok(())
}
