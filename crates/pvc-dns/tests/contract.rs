//! Transfers from servers of the tests' own, good ones and others.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::net::SocketAddr;
use std::sync::Arc;

use domain::base::iana::Rcode;
use domain::base::{Message, MessageBuilder, Name, Serial, Ttl};
use domain::rdata::{A, Aaaa, Soa};
use pvc_contracts::zone_transfers::{ZONE, ZoneTransfersFixture, hosts, zone_transfers_contract};
use pvc_dns::TcpTransfers;
use pvc_model::guest_network::dns::{HostAddress, MOST_HOSTS};
use pvc_ports::{TransferError, ZoneTransfers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Messages with which a server answers the question.
type Answer = fn(&Message<Vec<u8>>) -> Vec<Vec<u8>>;

/// A server that sends these messages to whoever asks, and then nothing.
async fn server(answer: Answer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, answer));
        }
    });
    address
}

async fn serve(mut stream: TcpStream, answer: Answer) {
    let length = stream.read_u16().await.unwrap();
    let mut question = vec![0; length.into()];
    stream.read_exact(&mut question).await.unwrap();
    for message in answer(&Message::from_octets(question).unwrap()) {
        let length = u16::try_from(message.len()).unwrap();
        // Whoever has had enough goes.
        let _ = stream.write_u16(length).await;
        let _ = stream.write_all(&message).await;
    }
    std::future::pending::<()>().await;
}

/// A record of an answer.
enum Part {
    Edge,
    Host(HostAddress),
}

fn message(question: &Message<Vec<u8>>, parts: &[Part]) -> Vec<u8> {
    let apex: Name<Vec<u8>> = ZONE.parse().unwrap();
    let mut answer = MessageBuilder::new_vec().start_answer(question, Rcode::NOERROR).unwrap();
    for part in parts {
        match part {
            Part::Edge => {
                let ttl = Ttl::from_secs(600);
                let soa = Soa::new(apex.clone(), apex.clone(), Serial(7), ttl, ttl, ttl, ttl);
                answer.push((&apex, ttl, soa)).unwrap();
            }
            Part::Host(HostAddress { name, address }) => {
                let name: Name<Vec<u8>> = name.parse().unwrap();
                match address {
                    std::net::IpAddr::V4(ip) => answer.push((name, 600, A::new(*ip))).unwrap(),
                    std::net::IpAddr::V6(ip) => answer.push((name, 600, Aaaa::new(*ip))).unwrap(),
                }
            }
        }
    }
    answer.finish()
}

fn host(number: usize) -> Part {
    let address = std::net::Ipv4Addr::from_bits(u32::try_from(number).unwrap()).into();
    Part::Host(HostAddress { name: format!("h{number}.{ZONE}"), address })
}

async fn error_of(answer: Answer) -> TransferError {
    TcpTransfers.hosts(server(answer).await, ZONE).await.unwrap_err()
}

#[tokio::test]
async fn transfers_over_tcp_keep_the_contract() {
    let good: Answer = |question| {
        let hosts = hosts().into_iter().map(Part::Host).collect::<Vec<_>>();
        let mut messages = vec![message(question, &[Part::Edge])];
        messages.push(message(question, &hosts));
        messages.push(message(question, &[Part::Edge]));
        messages
    };
    let refusing: Answer = |question| {
        vec![MessageBuilder::new_vec().start_answer(question, Rcode::REFUSED).unwrap().finish()]
    };
    let fixture = ZoneTransfersFixture {
        transfers: Arc::new(TcpTransfers),
        good: server(good).await,
        refusing: server(refusing).await,
        silent: server(|_| Vec::new()).await,
        absent: "127.0.0.1:1".parse().unwrap(),
    };
    zone_transfers_contract(fixture).await;
}

#[tokio::test]
async fn a_zone_that_does_not_end_is_too_large() {
    let endless: Answer = |question| {
        let mut messages = vec![message(question, &[Part::Edge])];
        for thousand in 0..=MOST_HOSTS / 1000 {
            let hosts: Vec<Part> = (0..1000).map(|at| host(1000 * thousand + at)).collect();
            messages.push(message(question, &hosts));
        }
        messages
    };
    let error = error_of(endless).await;
    assert!(matches!(error, TransferError::TooLarge { .. }), "{error}");
    let truncated: Answer = |question| {
        let mut message = message(question, &[Part::Edge]);
        message[2] |= 2;
        vec![message]
    };
    let error = error_of(truncated).await;
    assert!(matches!(error, TransferError::TooLarge { .. }), "{error}");
    let bytes: Answer = |question| {
        let first = message(question, &[Part::Edge]);
        let mut padded = message(question, &[host(1)]);
        padded.resize(60_000, 0);
        std::iter::once(first).chain(std::iter::repeat_n(padded, 100)).collect()
    };
    let error = error_of(bytes).await;
    assert!(matches!(error, TransferError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn junk_is_no_zone() {
    let answers: [Answer; 6] = [
        |_| vec![vec![0; 3]],
        |_| vec![vec![0xff; 300]],
        // The question itself.
        |question| vec![question.as_slice().to_vec()],
        |question| vec![message(question, &[host(1), Part::Edge])],
        |question| {
            let mut message = message(question, &[Part::Edge, host(1), Part::Edge]);
            message.truncate(message.len() - 5);
            vec![message]
        },
        |question| {
            let mut other = message(question, &[Part::Edge, Part::Edge]);
            other[0] ^= 1;
            vec![other]
        },
    ];
    for (at, answer) in answers.into_iter().enumerate() {
        let error = error_of(answer).await;
        assert!(matches!(error, TransferError::Malformed { .. }), "{at}: {error}");
    }
    let empty = error_of(|question| vec![message(question, &[])]).await;
    assert!(matches!(empty, TransferError::Refused { .. }), "{empty}");
}
