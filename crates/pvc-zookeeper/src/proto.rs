//! ZooKeeper's requests and answers, as far as the Tree needs them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use pvc_ports::{AccessList, CreateMode, Done, Entry, Op, Stat, TreeError, TreeEvent, parent_path};
use sha1::{Digest, Sha1};

use crate::wire::{Garbled, Reader, Writer};

/// The number before the body says which request an answer belongs to; these belong to none.
pub(crate) const XID_NOTIFICATION: i32 = -1;
pub(crate) const XID_PING: i32 = -2;
pub(crate) const XID_AUTH: i32 = -4;

const CREATE_IN_MULTI: i32 = 1;
const CREATE: i32 = 15; // the variant that answers with the stat, but not in a multi
const DELETE: i32 = 2;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_ACL: i32 = 6;
const SET_ACL: i32 = 7;
const GET_CHILDREN: i32 = 8;
const SYNC: i32 = 9;
const PING: i32 = 11;
const CHECK: i32 = 13;
const MULTI: i32 = 14;
const REMOVE_WATCHES: i32 = 18;
const MULTI_READ: i32 = 22;
const AUTH: i32 = 100;
const ADD_WATCH: i32 = 106;
const CLOSE_SESSION: i32 = -11;
const ERROR: i32 = -1;

const ANY_WATCH: i32 = 3;
const PERSISTENT_RECURSIVE: i32 = 1;
const ALL_PERMISSIONS: i32 = 31;

/// The scheme of ZooKeeper's access lists that means everybody.
const WORLD: &str = "world";

/// The scheme in which somebody is known by a password.
const DIGEST: &str = "digest";

/// Name under which all of PVC's clients know the password.
const MEMBER: &str = "pvc";

/// The error codes that mean something to us.
pub(crate) mod code {
    pub(crate) const OK: i32 = 0;
    pub(crate) const RUNTIME_INCONSISTENCY: i32 = -2;
    pub(crate) const CONNECTION_LOSS: i32 = -4;
    pub(crate) const UNIMPLEMENTED: i32 = -6;
    pub(crate) const BAD_ARGUMENTS: i32 = -8;
    pub(crate) const NO_NODE: i32 = -101;
    pub(crate) const NO_AUTH: i32 = -102;
    pub(crate) const BAD_VERSION: i32 = -103;
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub(crate) const NODE_EXISTS: i32 = -110;
    pub(crate) const NOT_EMPTY: i32 = -111;
    pub(crate) const SESSION_EXPIRED: i32 = -112;
    pub(crate) const SESSION_MOVED: i32 = -118;
    pub(crate) const THROTTLED: i32 = -127;
}

/// Facts that a server needs to know of a session to let us go on with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// 0 asks for a new session.
    pub(crate) id: i64,
    pub(crate) password: Bytes,
}

impl Credentials {
    pub(crate) fn none() -> Credentials {
        Credentials { id: 0, password: Bytes::from_static(&[0; 16]) }
    }
}

/// The first message on a connection. A server whose history ends before `last_zxid` hangs up.
pub(crate) fn connect(credentials: &Credentials, last_zxid: i64, timeout_ms: i32) -> Bytes {
    let mut writer = Writer::new(64);
    writer.int(0).long(last_zxid).int(timeout_ms);
    writer.long(credentials.id).bytes(&credentials.password).bool(false);
    writer.finish().freeze()
}

/// The answer to [`connect`]: the session and its timeout in milliseconds, or `None` if the session
/// has expired.
pub(crate) fn connected(answer: Bytes) -> Result<Option<(Credentials, i32)>, Garbled> {
    let mut reader = Reader::new(answer);
    let (_protocol, timeout_ms) = (reader.int()?, reader.int()?);
    let (id, password) = (reader.long()?, reader.bytes()?);
    Ok((timeout_ms > 0 && id != 0).then_some((Credentials { id, password }, timeout_ms)))
}

fn request(code: i32, capacity: usize) -> Writer {
    let mut writer = Writer::new(8 + capacity);
    writer.int(0).int(code);
    writer
}

/// Numbers a finished request.
pub(crate) fn set_xid(frame: &mut BytesMut, xid: i32) {
    frame[4..8].copy_from_slice(&xid.to_be_bytes());
}

pub(crate) fn ping() -> Bytes {
    let mut frame = request(PING, 0).finish();
    set_xid(&mut frame, XID_PING);
    frame.freeze()
}

/// Says that this client knows the password.
pub(crate) fn auth(password: &str) -> Bytes {
    let mut writer = request(AUTH, 32 + password.len());
    writer.int(0).text(DIGEST).bytes(format!("{MEMBER}:{password}").as_bytes());
    let mut frame = writer.finish();
    set_xid(&mut frame, XID_AUTH);
    frame.freeze()
}

pub(crate) fn get_acl(path: &str) -> BytesMut {
    of_path(GET_ACL, path, |_| ())
}

pub(crate) fn set_acl(path: &str, users: Users<'_>) -> BytesMut {
    of_path(SET_ACL, path, |writer| {
        write_acl(writer, users);
        writer.int(-1);
    })
}

/// Clients that alone may use a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Users<'a> {
    Anybody,
    /// Clients that know the password, by the name that the server [knows](member). Not the scheme
    /// `auth`: in its place the server puts every identity that it knows the client by, and over
    /// TLS that is its certificate as well.
    Member(&'a str),
}

/// Name by which the server knows a client that has said this password.
pub(crate) fn member(password: &str) -> String {
    format!("{MEMBER}:{}", STANDARD.encode(Sha1::digest(format!("{MEMBER}:{password}"))))
}

fn write_acl(writer: &mut Writer, users: Users<'_>) {
    let (scheme, id) = match users {
        Users::Anybody => (WORLD, "anyone"),
        Users::Member(id) => (DIGEST, id),
    };
    writer.int(1).int(ALL_PERMISSIONS).text(scheme).text(id);
}

/// Reads who may use a node, as the answer to [`get_acl`] says to one who is `member`, or knows no
/// password.
pub(crate) fn acl(reader: &mut Reader, member: Option<&str>) -> Result<AccessList, Garbled> {
    let (mut others, mut anybody) = (false, false);
    let entries = reader.int()?.max(0);
    for _ in 0..entries {
        let (permissions, scheme, id) = (reader.int()?, reader.text()?, reader.text()?);
        anybody |= scheme == WORLD;
        others |=
            !(scheme == DIGEST && Some(id.as_str()) == member && permissions == ALL_PERMISSIONS);
    }
    Ok(match (anybody, others || entries == 0) {
        (true, _) => AccessList::Anybody,
        (false, true) => AccessList::Other,
        (false, false) => AccessList::Members,
    })
}

pub(crate) fn close_session() -> BytesMut {
    request(CLOSE_SESSION, 0).finish()
}

fn of_path(code: i32, path: &str, finish: impl FnOnce(&mut Writer)) -> BytesMut {
    let mut writer = request(code, path.len() + 8);
    writer.text(path);
    finish(&mut writer);
    writer.finish()
}

pub(crate) fn get_data(path: &str) -> BytesMut {
    of_path(GET_DATA, path, |writer| {
        writer.bool(false);
    })
}

pub(crate) fn get_children(path: &str) -> BytesMut {
    of_path(GET_CHILDREN, path, |writer| {
        writer.bool(false);
    })
}

pub(crate) fn sync() -> BytesMut {
    of_path(SYNC, "/", |_| ())
}

pub(crate) fn add_watch(root: &str) -> BytesMut {
    of_path(ADD_WATCH, root, |writer| {
        writer.int(PERSISTENT_RECURSIVE);
    })
}

pub(crate) fn remove_watch(root: &str) -> BytesMut {
    of_path(REMOVE_WATCHES, root, |writer| {
        writer.int(ANY_WATCH);
    })
}

pub(crate) fn create(path: &str, data: &[u8], mode: CreateMode, users: Users<'_>) -> BytesMut {
    let mut writer = request(CREATE, path.len() + data.len() + 64);
    create_body(&mut writer, path, data, mode, users);
    writer.finish()
}

fn create_body(writer: &mut Writer, path: &str, data: &[u8], mode: CreateMode, users: Users<'_>) {
    let flags = match mode {
        CreateMode::Persistent => 0,
        CreateMode::Ephemeral => 1,
        CreateMode::EphemeralSequential => 3,
    };
    writer.text(path).bytes(data);
    write_acl(writer, users);
    writer.int(flags);
}

pub(crate) fn multi(ops: &[Op], users: Users<'_>) -> BytesMut {
    let mut writer = request(MULTI, ops.iter().map(Op::request_bytes).sum());
    for op in ops {
        multi_header(&mut writer, op_code(op));
        match op {
            Op::Create { path, data, mode } => create_body(&mut writer, path, data, *mode, users),
            Op::Set { path, data, version } => {
                writer.text(path).bytes(data).int(version.unwrap_or(-1));
            }
            Op::Delete { path, version } => {
                writer.text(path).int(version.unwrap_or(-1));
            }
            Op::Check { path, version } => {
                writer.text(path).int(*version);
            }
        }
    }
    multi_end(&mut writer);
    writer.finish()
}

fn op_code(op: &Op) -> i32 {
    match op {
        Op::Create { .. } => CREATE_IN_MULTI,
        Op::Set { .. } => SET_DATA,
        Op::Delete { .. } => DELETE,
        Op::Check { .. } => CHECK,
    }
}

pub(crate) fn multi_get_data(paths: &[String]) -> BytesMut {
    multi_read(GET_DATA, paths)
}

pub(crate) fn multi_get_children(paths: &[String]) -> BytesMut {
    multi_read(GET_CHILDREN, paths)
}

fn multi_read(code: i32, paths: &[String]) -> BytesMut {
    let mut writer = request(MULTI_READ, paths.iter().map(|path| path.len() + 16).sum());
    for path in paths {
        multi_header(&mut writer, code);
        writer.text(path).bool(false);
    }
    multi_end(&mut writer);
    writer.finish()
}

fn multi_header(writer: &mut Writer, code: i32) {
    writer.int(code).bool(false).int(-1);
}

fn multi_end(writer: &mut Writer) {
    writer.int(ERROR).bool(true).int(-1);
}

/// The part of an answer that all have.
pub(crate) struct Header {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    pub(crate) code: i32,
}

pub(crate) fn header(reader: &mut Reader) -> Result<Header, Garbled> {
    Ok(Header { xid: reader.int()?, zxid: reader.long()?, code: reader.int()? })
}

/// `None` for kinds that a recursive watch does not have.
pub(crate) fn notification(reader: &mut Reader) -> Result<Option<TreeEvent>, Garbled> {
    let (kind, _state, path) = (reader.int()?, reader.int()?, reader.text()?);
    Ok(match kind {
        1 | 3 => Some(TreeEvent::Changed { path }),
        2 => Some(TreeEvent::Deleted { path }),
        _ => None,
    })
}

pub(crate) fn entry(reader: &mut Reader) -> Result<Entry, Garbled> {
    // The data is copied out of the message, which holds many values and would live as long as the
    // last of them.
    let data = Bytes::copy_from_slice(&reader.bytes()?);
    Ok(Entry { data, stat: reader.stat()? })
}

pub(crate) fn children(reader: &mut Reader) -> Result<Vec<String>, Garbled> {
    reader.texts()
}

pub(crate) fn created(reader: &mut Reader) -> Result<(String, Stat), Garbled> {
    Ok((reader.text()?, reader.stat()?))
}

/// The results of a read of many, each a value or an error code.
pub(crate) fn many<T>(
    reader: &mut Reader,
    one: fn(&mut Reader) -> Result<T, Garbled>,
) -> Result<Vec<Result<T, i32>>, Garbled> {
    let mut results = Vec::new();
    loop {
        let (code, done, _) = (reader.int()?, reader.bool()?, reader.int()?);
        match code {
            _ if done => return Ok(results),
            ERROR => results.push(Err(reader.int()?)),
            _ => results.push(Ok(one(reader)?)),
        }
    }
}

/// Metadata of a node right after it was created in the change `zxid`.
fn newborn(zxid: i64) -> Stat {
    Stat { czxid: zxid, mzxid: zxid, pzxid: zxid, ..Stat::default() }
}

/// The results of a multi that had the number `zxid`, or the index and code of the operation that
/// decided against it. Who owns an ephemeral node is not said, and left open.
pub(crate) fn multi_done(
    reader: &mut Reader,
    zxid: i64,
) -> Result<Result<Vec<Done>, (usize, i32)>, Garbled> {
    let mut done = Vec::new();
    let mut refused = None;
    for index in 0.. {
        let (kind, last, _) = (reader.int()?, reader.bool()?, reader.int()?);
        if last {
            break;
        }
        match kind {
            CREATE_IN_MULTI => {
                let _path = reader.text()?;
                done.push(Done::Created(newborn(zxid)));
            }
            SET_DATA => done.push(Done::Set(reader.stat()?)),
            DELETE => done.push(Done::Deleted),
            CHECK => done.push(Done::Checked),
            // Operations before the one that decided say OK here, those after it "inconsistent".
            ERROR => match reader.int()? {
                code::OK => {}
                found if refused.is_none_or(|(_, known)| known == code::RUNTIME_INCONSISTENCY) => {
                    refused = Some((index, found));
                }
                _ => {}
            },
            _ => return Err(Garbled("an unknown kind of result")),
        }
    }
    Ok(refused.map_or(Ok(done), Err))
}

/// Meaning of an error code about the operation on `path`. `creating`: a missing node is the
/// parent.
pub(crate) fn refusal(found: i32, path: &str, creating: bool) -> TreeError {
    let path = path.to_owned();
    match found {
        code::NO_NODE if creating => {
            TreeError::NoNode { path: parent_path(&path).unwrap_or("/").to_owned() }
        }
        code::NO_NODE => TreeError::NoNode { path },
        code::NODE_EXISTS => TreeError::NodeExists { path },
        code::BAD_VERSION => TreeError::BadVersion { path },
        code::NOT_EMPTY => TreeError::NotEmpty { path },
        code::NO_CHILDREN_FOR_EPHEMERALS => TreeError::NoChildrenForEphemerals { path },
        code::NO_AUTH => TreeError::NotAllowed { path },
        code::BAD_ARGUMENTS => TreeError::BadPath { path },
        code::SESSION_EXPIRED => TreeError::SessionExpired,
        code::CONNECTION_LOSS => TreeError::OutcomeUnknown,
        other => TreeError::Unreachable { why: describe(other) },
    }
}

fn describe(found: i32) -> String {
    match found {
        code::UNIMPLEMENTED => "the server is older than ZooKeeper 3.6".to_owned(),
        code::SESSION_MOVED => "the session was taken over by another connection".to_owned(),
        code::THROTTLED => "the server is overloaded".to_owned(),
        other => format!("the server answered with error {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(of: &[(i32, Option<i32>)]) -> Reader {
        let mut writer = Writer::new(0);
        for (kind, code) in of {
            multi_header(&mut writer, *kind);
            if let Some(code) = code {
                writer.int(*code);
            }
        }
        multi_end(&mut writer);
        Reader::new(writer.finish().freeze().slice(4..))
    }

    #[test]
    fn the_operation_that_decided_is_found_among_the_others() {
        let mut answer = results(&[
            (ERROR, Some(code::OK)),
            (ERROR, Some(code::BAD_VERSION)),
            (ERROR, Some(code::RUNTIME_INCONSISTENCY)),
        ]);
        assert_eq!(multi_done(&mut answer, 7).unwrap(), Err((1, code::BAD_VERSION)));
        let mut answer = results(&[(DELETE, None), (CHECK, None)]);
        assert_eq!(multi_done(&mut answer, 7).unwrap(), Ok(vec![Done::Deleted, Done::Checked]));
    }

    #[test]
    fn a_missing_node_is_the_parent_when_something_was_to_be_created() {
        let refused = refusal(code::NO_NODE, "/a/b", true);
        assert_eq!(refused.to_string(), "`/a` does not exist in the tree");
    }
}
