//! Telling the neighbours where an address is: the frames, and the socket that sends them.
//!
//! The frames are built whole, so that nothing of the kernel's own view (a neighbour table, an
//! address that is not confirmed yet) stands between an address that moved and the switches that
//! must learn it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike, sendto, socket,
};
use pvc_model::link::Mac;

const BROADCAST: Mac = [0xff; 6];
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The group of all nodes on a link, and its Ethernet address (RFC 2464).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

/// The frames that say that `address` is at `mac`, to be sent in this order.
pub fn frames(mac: Mac, address: IpAddr) -> Vec<Vec<u8>> {
    match address {
        // Some neighbours learn from requests only, some from replies only.
        IpAddr::V4(address) => {
            vec![gratuitous_arp(mac, address, 1), gratuitous_arp(mac, address, 2)]
        }
        IpAddr::V6(address) => vec![unsolicited_advertisement(mac, address)],
    }
}

/// ARP for one's own address (RFC 826, RFC 5227); operation 1 asks, 2 answers.
fn gratuitous_arp(mac: Mac, address: Ipv4Addr, operation: u16) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    frame.extend([0, 1]); // hardware: Ethernet
    frame.extend([8, 0]); // protocol: IPv4
    frame.extend([6, 4]); // lengths of their addresses
    frame.extend(operation.to_be_bytes());
    frame.extend(mac);
    frame.extend(address.octets());
    // In a request the target's hardware address is not known; a reply repeats the sender's.
    frame.extend(if operation == 1 { [0; 6] } else { mac });
    frame.extend(address.octets());
    // What is shorter than Ethernet's least is filled up by most drivers, and not by all.
    frame.resize(60, 0);
    frame
}

/// A neighbour advertisement that nobody asked for (RFC 4861 §4.4, §7.2.6).
fn unsolicited_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let mut advertisement = vec![136, 0, 0, 0]; // type, code, and room for the checksum
    // Flags: override what was known; from no router, to nobody's question.
    advertisement.extend([0x20, 0, 0, 0]);
    advertisement.extend(address.octets());
    advertisement.extend([2, 1]); // option: target's link-layer address, one unit of 8 bytes
    advertisement.extend(mac);
    let checksum = icmpv6_checksum(address, ALL_NODES, &advertisement);
    advertisement[2..4].copy_from_slice(&checksum.to_be_bytes());

    let mut frame = ethernet(ALL_NODES_MAC, mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]); // version 6, no class, no flow
    frame.extend(length_of(&advertisement).to_be_bytes());
    frame.extend([58, 255]); // ICMPv6; a hop limit that no router leaves at that
    frame.extend(address.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(advertisement);
    frame
}

fn ethernet(to: Mac, from: Mac, ethertype: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(96);
    frame.extend(to);
    frame.extend(from);
    frame.extend(ethertype.to_be_bytes());
    frame
}

fn length_of(payload: &[u8]) -> u16 {
    u16::try_from(payload.len()).expect("an advertisement has 32 bytes")
}

/// The internet checksum over the pseudo-header (RFC 8200 §8.1) and the message, whose own field is
/// 0.
fn icmpv6_checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let mut covered = Vec::with_capacity(40 + message.len());
    covered.extend(from.octets());
    covered.extend(to.octets());
    covered.extend(u32::from(length_of(message)).to_be_bytes());
    covered.extend([0, 0, 0, 58]);
    covered.extend(message);
    !ones_complement_sum(&covered)
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("it was folded until it fits")
}

/// Sends whole Ethernet frames on one link.
pub struct FrameSocket {
    socket: OwnedFd,
    link: LinkAddr,
}

impl FrameSocket {
    /// Opens a socket on the link with this index, of the network namespace that the calling thread
    /// is in.
    pub fn open(index: u32) -> io::Result<Self> {
        // Protocol 0: it only sends, and no frame of others is ever queued for it.
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        Ok(FrameSocket { socket, link: link_address(index)? })
    }

    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        sendto(self.socket.as_raw_fd(), frame, &self.link, MsgFlags::empty())?;
        Ok(())
    }
}

fn link_address(index: u32) -> io::Result<LinkAddr> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET.try_into().map_err(out_of_range)?,
        sll_protocol: 0,
        sll_ifindex: index.try_into().map_err(out_of_range)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let length = size_of::<libc::sockaddr_ll>().try_into().map_err(out_of_range)?;
    // SAFETY: the pointer is to a whole `sockaddr_ll` of that length, whose family says so, and it
    // is copied before this function returns.
    unsafe { LinkAddr::from_raw((&raw const address).cast(), Some(length)) }
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];

    #[test]
    fn an_ipv4_address_is_announced_by_an_arp_request_and_a_reply_for_itself() {
        let frames = frames(MAC, "10.99.0.250".parse().unwrap());
        let request = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // to everybody
            0x02, 0x11, 0x22, 0x33, 0x44, 0x55, // from here
            0x08, 0x06, // ARP
            0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01, // Ethernet, IPv4, 6, 4, request
            0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 10, 99, 0, 250, // sender
            0, 0, 0, 0, 0, 0, 10, 99, 0, 250, // target
        ];
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0][..42], request);
        assert_eq!(frames[0].len(), 60);
        assert_eq!(frames[1][20..22], [0, 2], "a reply");
        assert_eq!(frames[1][32..42], [0x02, 0x11, 0x22, 0x33, 0x44, 0x55, 10, 99, 0, 250]);
    }

    #[test]
    fn an_ipv6_address_is_announced_by_an_unsolicited_neighbour_advertisement() {
        let address: Ipv6Addr = "2001:db8::fa".parse().unwrap();
        let frames = frames(MAC, address.into());
        assert_eq!(frames.len(), 1);
        let frame = &frames[0];
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1], "all nodes");
        assert_eq!(frame[12..14], [0x86, 0xdd]);
        assert_eq!(frame[14] >> 4, 6);
        assert_eq!(frame[18..22], [0, 32, 58, 255], "32 bytes of ICMPv6, hop limit 255");
        assert_eq!(frame[22..38], address.octets());
        assert_eq!(frame[38..54], ALL_NODES.octets());
        assert_eq!(frame[54..56], [136, 0]);
        assert_eq!(frame[58..62], [0x20, 0, 0, 0], "override, not solicited, no router");
        assert_eq!(frame[62..78], address.octets());
        assert_eq!(frame[78..86], [2, 1, 0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(frame.len(), 86);
    }

    #[test]
    fn the_checksum_covers_the_message_and_the_pseudo_header() {
        let frame = unsolicited_advertisement(MAC, "fe80::1".parse().unwrap());
        let mut covered = frame[22..54].to_vec();
        covered.extend([0, 0, 0, 32, 0, 0, 0, 58]);
        covered.extend(&frame[54..]);
        assert_eq!(
            ones_complement_sum(&covered),
            0xffff,
            "a right checksum makes the sum all ones"
        );
    }

    #[test]
    fn the_internet_checksum_is_that_of_rfc_1071() {
        assert_eq!(ones_complement_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(ones_complement_sum(&[0xff]), 0xff00, "an odd byte is the upper half of a word");
    }
}
