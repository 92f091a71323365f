//! Addresses of the servers, and how a session begins on one of them.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use pvc_ports::{Access, AccessList, NewestSeen};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, LengthDelimitedCodec};

use crate::names::Names;
use crate::proto::{self, Credentials, code};
use crate::tls::Tls;
use crate::wire::{Garbled, Reader};

const DEFAULT_PORT: u16 = 2181;

/// The largest answer taken. Requests end at 64 MiB; an answer to a read of many may be larger.
const MAX_FRAME: usize = 1 << 30;

/// The servers of one ensemble, as `host:port`, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Servers(Vec<String>);

impl Servers {
    /// Reads a comma-separated list. The port may be left out.
    pub(crate) fn parse(list: &str) -> Result<Servers, String> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let servers = entries.map(parse_one).collect::<Result<Vec<_>, _>>()?;
        if servers.is_empty() { Err("no server is named".to_owned()) } else { Ok(Servers(servers)) }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The server whose turn it is at `attempt`.
    pub(crate) fn at(&self, attempt: usize) -> &str {
        &self.0[attempt % self.0.len()]
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

fn parse_one(entry: &str) -> Result<String, String> {
    let bad = || format!("`{entry}` is not a server; write `host` or `host:port`");
    if entry.contains('/') || entry.contains(char::is_whitespace) {
        return Err(bad());
    }
    let bare_ipv6 = entry.parse::<std::net::Ipv6Addr>().is_ok();
    match entry.rsplit_once(':') {
        _ if bare_ipv6 => Ok(format!("[{entry}]:{DEFAULT_PORT}")),
        Some((host, port)) if !port.ends_with(']') => match port.parse::<u16>() {
            Ok(port) if port != 0 && !host.is_empty() => Ok(format!("{host}:{port}")),
            _ => Err(bad()),
        },
        _ => Ok(format!("{entry}:{DEFAULT_PORT}")),
    }
}

pub(crate) type Frames = FramedRead<Box<dyn AsyncRead + Send + Unpin>, LengthDelimitedCodec>;
pub(crate) type Out = Box<dyn AsyncWrite + Send + Unpin>;

/// Means to make ourselves known to a server, before anything else.
#[derive(Clone, Default)]
pub(crate) struct Identity {
    /// Certificates; without them, connections are not encrypted.
    pub(crate) tls: Option<Tls>,
    /// The tree's password, if we know one.
    pub(crate) member: Option<Member>,
    pub(crate) names: Names,
}

/// Client that knows the tree's password.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) password: Arc<str>,
    /// Name by which the server knows the client.
    pub(crate) id: Arc<str>,
}

impl Member {
    pub(crate) fn new(password: Arc<str>) -> Member {
        let id = proto::member(&password).into();
        Member { password, id }
    }
}

/// Knowledge of the tree's root, which says who may use what is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    For(Access),
    /// The root is for others than us.
    Refuses,
}

impl Root {
    /// Reads what the answer to a question for the root's access list says to `member`, or to one
    /// who knows no password.
    pub(crate) fn read(
        code: i32,
        rest: &mut Reader,
        member: Option<&Member>,
    ) -> Result<Root, Garbled> {
        match code {
            code::OK => Ok(match (proto::acl(rest, member.map(|member| &*member.id))?, member) {
                // What others may use as well is no reason to let everybody use what is new.
                (AccessList::Members | AccessList::Other, Some(_)) => Root::For(Access::Members),
                (AccessList::Anybody, _) | (_, None) => Root::For(Access::Anybody),
            }),
            code::NO_AUTH => Ok(Root::Refuses),
            _ => Err(Garbled("the root has no access list")),
        }
    }
}

/// A connection on which a session goes on.
pub(crate) struct Connection {
    pub(crate) frames: Frames,
    pub(crate) writer: Out,
    pub(crate) credentials: Credentials,
    pub(crate) session_timeout: Duration,
    pub(crate) root: Root,
}

/// Reason for which there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// A server hangs up when it has no quorum, and when it knows less than we have seen.
    #[error("the server hung up")]
    HungUp,
    #[error("the session has expired")]
    Expired,
    #[error("it does not take our password")]
    Password,
    /// The server lets us in, and what it holds is an old copy.
    #[error(
        "it holds an older state than this process has seen: `{path}` was written there for the \
         last time before that"
    )]
    OldCopy { path: String },
    #[error(transparent)]
    Garbled(#[from] Garbled),
}

/// Request of a session that is to go on.
#[derive(Clone)]
pub(crate) struct SessionRequest {
    pub(crate) identity: Identity,
    pub(crate) credentials: Credentials,
    pub(crate) last_zxid: i64,
    pub(crate) session_timeout: Duration,
    /// Time that one server may take.
    pub(crate) time_limit: Duration,
    /// Whether the ensemble has one server alone, which decides for all.
    pub(crate) is_of_one: bool,
    pub(crate) seen: Seen,
}

/// Changes that this process has seen, whichever session they were read in.
pub(crate) type Seen = Arc<Mutex<NewestSeen>>;

impl SessionRequest {
    /// Request of a new session, by a client that has seen changes up to this number.
    pub(crate) fn anew(&self, last_zxid: i64) -> SessionRequest {
        SessionRequest { credentials: Credentials::none(), last_zxid, ..self.clone() }
    }
}

/// Goes on with a session on `server`, or begins one.
pub(crate) async fn connect(
    server: &str,
    request: &SessionRequest,
) -> Result<Connection, ConnectError> {
    match timeout(request.time_limit, shake_hands(server, request)).await {
        Ok(connected) => connected,
        Err(_) => Err(ConnectError::Silent(request.time_limit)),
    }
}

type Stream = (Box<dyn AsyncRead + Send + Unpin>, Out);

async fn dial(server: &str, identity: &Identity) -> io::Result<Stream> {
    let addresses = identity.names.of(server).await?;
    let stream = TcpStream::connect(&addresses[..]).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &identity.tls else {
        let (reader, writer) = stream.into_split();
        return Ok((Box::new(reader), Box::new(writer)));
    };
    let (reader, writer) = tokio::io::split(tls.over(server, stream).await?);
    Ok((Box::new(reader), Box::new(writer)))
}

async fn shake_hands(server: &str, request: &SessionRequest) -> Result<Connection, ConnectError> {
    let (reader, mut writer) = dial(server, &request.identity).await?;
    let codec = LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME).new_codec();
    let mut frames = FramedRead::new(reader, codec);
    let timeout_ms = i32::try_from(request.session_timeout.as_millis()).unwrap_or(i32::MAX);
    let begin = proto::connect(&request.credentials, request.last_zxid, timeout_ms);
    let answer = exchange(&mut frames, &mut writer, &begin).await?;
    let (credentials, timeout_ms) = proto::connected(answer)?.ok_or(ConnectError::Expired)?;
    let session_timeout = Duration::from_millis(timeout_ms.unsigned_abs().into());
    let mut ask = async |request: &[u8]| -> Result<(i32, Reader), ConnectError> {
        let mut answer = Reader::new(exchange(&mut frames, &mut writer, request).await?);
        let code = proto::header(&mut answer)?.code;
        Ok((code, answer))
    };
    let member = request.identity.member.as_ref();
    if let Some(member) = member
        && ask(&proto::auth(&member.password)).await?.0 != code::OK
    {
        return Err(ConnectError::Password);
    }
    let (code, mut rest) = ask(&proto::get_acl("/")).await?;
    let root = Root::read(code, &mut rest, member)?;
    let seen = request.seen.lock().expect("nobody panics with it").clone();
    let paths = seen.paths();
    if !paths.is_empty() {
        if request.last_zxid == 0 {
            // The server may lag behind the others, which have what it has not.
            ask(&proto::sync()).await?;
        }
        let (code, mut rest) = ask(&proto::multi_get_data(&paths)).await?;
        let now = match code {
            code::OK => proto::many(&mut rest, proto::entry)?,
            _ => return Err(Garbled("what was seen before cannot be read").into()),
        };
        // What is gone, or is for others now, says nothing.
        let now: Vec<_> = now.into_iter().map(|entry| entry.ok().map(|it| it.stat)).collect();
        if let Some(path) = seen.lost(&now, request.last_zxid > 0) {
            // It keeps no session that nobody uses; if it is silent, it ends by itself.
            let _ = ask(&proto::close_session()).await;
            return Err(ConnectError::OldCopy { path: path.to_owned() });
        }
    }
    Ok(Connection { frames, writer, credentials, session_timeout, root })
}

/// Sends what nothing else may come before, and takes the answer.
async fn exchange(
    frames: &mut Frames,
    writer: &mut Out,
    request: &[u8],
) -> Result<Bytes, ConnectError> {
    writer.write_all(request).await?;
    writer.flush().await?;
    match frames.next().await {
        Some(Ok(answer)) => Ok(answer.freeze()),
        Some(Err(error)) if error.kind() != io::ErrorKind::ConnectionReset => Err(error.into()),
        Some(Err(_)) | None => Err(ConnectError::HungUp),
    }
}

/// Whether `server` decides for its ensemble and its history ends before what `request` has seen:
/// it was restarted empty, or from an old copy, and will never let that session go on.
pub(crate) async fn history_is_gone(server: &str, request: &SessionRequest) -> bool {
    let ask = async {
        let (reader, mut writer) = dial(server, &request.identity).await?;
        writer.write_all(b"srvr").await?;
        writer.flush().await?;
        let mut answer = Vec::new();
        reader.take(1 << 16).read_to_end(&mut answer).await?;
        io::Result::Ok(Bytes::from(answer))
    };
    match timeout(request.time_limit, ask).await {
        Ok(Ok(answer)) => {
            let answer = String::from_utf8_lossy(&answer);
            decides_below(&answer, request.last_zxid, request.is_of_one)
        }
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Whether this is the answer of a server that decides. One that stands alone and is to be one of
/// several has not found the others, and decides nothing.
fn decides_below(srvr: &str, zxid: i64, is_of_one: bool) -> bool {
    let field = |name: &str| srvr.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let decides = match field("Mode:") {
        Some("leader") => true,
        Some("standalone") => is_of_one,
        _ => false,
    };
    let last = field("Zxid: 0x").and_then(|digits| i64::from_str_radix(digits, 16).ok());
    decides && last.is_some_and(|last| last < zxid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_servers_may_leave_out_the_port() {
        let servers = Servers::parse("hv1, hv2:2182,[fd00::1]:2183,fd00::2,[fd00::3]").unwrap();
        let expected = "hv1:2181,hv2:2182,[fd00::1]:2183,[fd00::2]:2181,[fd00::3]:2181";
        assert_eq!(servers.to_string(), expected);
        for bad in ["", " , ", "hv1:x", "hv1:0", "hv1:99999", ":2181", "hv1/chroot", "a b"] {
            assert!(Servers::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_a_server_that_decides_can_have_lost_the_history() {
        let answer = |mode: &str| format!("Zookeeper version: 3.8.0\nZxid: 0x1f\nMode: {mode}\n");
        assert!(decides_below(&answer("standalone"), 0x20, true));
        assert!(!decides_below(&answer("standalone"), 0x20, false), "it has not found the others");
        for of_one in [true, false] {
            assert!(decides_below(&answer("leader"), 0x20, of_one));
            assert!(!decides_below(&answer("follower"), 0x20, of_one));
            assert!(!decides_below(&answer("standalone"), 0x1f, of_one));
            let none = "This ZooKeeper instance is not currently serving requests";
            assert!(!decides_below(none, 1, of_one));
        }
    }
}
