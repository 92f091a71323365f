//! [`ZoneTransfers`] over TCP (AXFR, RFC 5936), with bounds on what a server may send.
//!
//! What comes is read by the crate `domain`; here is the frame of TCP, and when a zone is whole: it
//! begins and ends with its SOA record.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "an adapter works in real time")]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use async_trait::async_trait;
use domain::base::iana::{Class, Rcode};
use domain::base::{Message, MessageBuilder, Name, ParsedRecord, Rtype, ToName as _};
use domain::rdata::{A, Aaaa};
use pvc_model::guest_network::dns::{HostAddress, MOST_HOSTS};
use pvc_ports::{TransferError, ZoneTransfers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Time that a transfer may take.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The most records of all kinds that are read.
const MOST_RECORDS: usize = 2 * MOST_HOSTS;

/// The most bytes that are read.
const MOST_BYTES: usize = 4 << 20;

/// Number of each question: a connection has one.
const ID: u16 = 1;

/// Asks servers in the name of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpTransfers;

#[async_trait]
impl ZoneTransfers for TcpTransfers {
    async fn hosts(
        &self,
        server: SocketAddr,
        zone: &str,
    ) -> Result<Vec<HostAddress>, TransferError> {
        match tokio::time::timeout(LIMIT, transfer(server, zone)).await {
            Ok(done) => done,
            Err(_) => Err(TransferError::TimedOut { server, seconds: LIMIT.as_secs() }),
        }
    }
}

async fn transfer(server: SocketAddr, zone: &str) -> Result<Vec<HostAddress>, TransferError> {
    let unreachable =
        |error: std::io::Error| TransferError::Unreachable { server, why: error.to_string() };
    let malformed = |why: String| TransferError::Malformed { server, why };
    let mut transfer = Transfer::of(zone).map_err(malformed)?;
    let mut stream = TcpStream::connect(server).await.map_err(unreachable)?;
    let question = transfer.question().map_err(malformed)?;
    stream.write_all(&question).await.map_err(unreachable)?;
    let mut left = MOST_BYTES;
    loop {
        let length = usize::from(stream.read_u16().await.map_err(unreachable)?);
        left = left.checked_sub(length).ok_or(TransferError::TooLarge { server })?;
        let mut message = vec![0; length];
        stream.read_exact(&mut message).await.map_err(unreachable)?;
        match transfer.read(message) {
            Ok(false) => {}
            Ok(true) => return Ok(transfer.hosts),
            Err(Bad::Refused(why)) => return Err(TransferError::Refused { server, why }),
            Err(Bad::TooLarge) => return Err(TransferError::TooLarge { server }),
            Err(Bad::Malformed(why)) => return Err(malformed(why)),
        }
    }
}

enum Bad {
    Refused(String),
    TooLarge,
    Malformed(String),
}

fn bad(why: impl std::fmt::Display) -> Bad {
    Bad::Malformed(why.to_string())
}

/// A zone, as far as it has come.
struct Transfer {
    zone: Name<Vec<u8>>,
    hosts: Vec<HostAddress>,
    records: usize,
}

impl Transfer {
    fn of(zone: &str) -> Result<Transfer, String> {
        let zone = zone.parse().map_err(|error| format!("`{zone}` is no name of DNS: {error}"))?;
        Ok(Transfer { zone, hosts: Vec::new(), records: 0 })
    }

    /// The question, with its length in front.
    fn question(&self) -> Result<Vec<u8>, String> {
        let mut builder = MessageBuilder::new_vec();
        builder.header_mut().set_id(ID);
        let mut builder = builder.question();
        builder.push((&self.zone, Rtype::AXFR)).map_err(|error| error.to_string())?;
        let message = builder.finish();
        let length = u16::try_from(message.len()).map_err(|error| error.to_string())?;
        Ok([&length.to_be_bytes()[..], &message].concat())
    }

    /// Takes in a message. Returns whether the zone is whole.
    fn read(&mut self, message: Vec<u8>) -> Result<bool, Bad> {
        let message = Message::from_octets(message).map_err(bad)?;
        let header = message.header();
        if !header.qr() || header.id() != ID {
            return Err(bad("a message is no answer to the question"));
        }
        if header.rcode() != Rcode::NOERROR {
            return Err(Bad::Refused(header.rcode().to_string()));
        }
        if header.tc() {
            return Err(Bad::TooLarge);
        }
        let mut is_empty = true;
        for record in message.answer().map_err(bad)? {
            is_empty = false;
            let record = record.map_err(bad)?;
            self.records += 1;
            if self.records > MOST_RECORDS {
                return Err(Bad::TooLarge);
            }
            let is_edge = record.rtype() == Rtype::SOA && record.owner().name_eq(&self.zone);
            match (self.records, is_edge) {
                (1, false) => return Err(bad("it does not begin with its SOA record")),
                (1, true) => {}
                (_, true) => return Ok(true),
                (_, false) => self.take(&record)?,
            }
        }
        // dnsmasq answers nothing at all to whom it does not give a zone.
        match is_empty {
            true => Err(Bad::Refused("the answer is empty".to_owned())),
            false => Ok(false),
        }
    }

    fn take(&mut self, record: &ParsedRecord<'_, Vec<u8>>) -> Result<(), Bad> {
        if record.class() != Class::IN {
            return Ok(());
        }
        let address: Option<IpAddr> = match record.rtype() {
            Rtype::A => {
                let read = record.to_record::<A>().map_err(bad)?;
                read.map(|read| read.data().addr().into())
            }
            Rtype::AAAA => {
                let read = record.to_record::<Aaaa>().map_err(bad)?;
                read.map(|read| read.data().addr().into())
            }
            _ => None,
        };
        if let Some(address) = address {
            if self.hosts.len() == MOST_HOSTS {
                return Err(Bad::TooLarge);
            }
            self.hosts.push(HostAddress { name: record.owner().to_string(), address });
        }
        Ok(())
    }
}
