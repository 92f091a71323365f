//! ZooKeeper's encoding: big-endian numbers, and bytes and texts with their length before them.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pvc_ports::Stat;

/// A message that makes no sense. The connection it came on is of no more use.
#[derive(Debug, thiserror::Error)]
#[error("the server sent something that cannot be understood: {0}")]
pub(crate) struct Garbled(pub(crate) &'static str);

/// Writes one message. The length before it is filled in by [`finish`](Writer::finish).
#[derive(Debug)]
pub(crate) struct Writer(BytesMut);

impl Writer {
    pub(crate) fn new(capacity: usize) -> Writer {
        let mut buffer = BytesMut::with_capacity(4 + capacity);
        buffer.put_i32(0);
        Writer(buffer)
    }

    pub(crate) fn int(&mut self, value: i32) -> &mut Writer {
        self.0.put_i32(value);
        self
    }

    pub(crate) fn long(&mut self, value: i64) -> &mut Writer {
        self.0.put_i64(value);
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Writer {
        self.0.put_u8(value.into());
        self
    }

    /// # Panics
    /// If there are 2 GiB or more of it; requests are checked for their size before.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Writer {
        self.int(i32::try_from(value.len()).expect("a request is smaller than 2 GiB"));
        self.0.put_slice(value);
        self
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Writer {
        self.bytes(value.as_bytes())
    }

    pub(crate) fn finish(mut self) -> BytesMut {
        let length = i32::try_from(self.0.len() - 4).expect("a request is smaller than 2 GiB");
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// Reads one message, without its length.
#[derive(Debug)]
pub(crate) struct Reader(Bytes);

impl Reader {
    pub(crate) fn new(message: Bytes) -> Reader {
        Reader(message)
    }

    pub(crate) fn rest(self) -> Bytes {
        self.0
    }

    pub(crate) fn int(&mut self) -> Result<i32, Garbled> {
        self.0.try_get_i32().map_err(|_| Garbled("a number is cut short"))
    }

    pub(crate) fn long(&mut self) -> Result<i64, Garbled> {
        self.0.try_get_i64().map_err(|_| Garbled("a number is cut short"))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Garbled> {
        self.0.try_get_u8().map(|byte| byte != 0).map_err(|_| Garbled("a flag is missing"))
    }

    /// Shares the memory of the message. A length of -1 (no value) reads as empty.
    pub(crate) fn bytes(&mut self) -> Result<Bytes, Garbled> {
        let length = self.int()?;
        let Ok(length) = usize::try_from(length) else { return Ok(Bytes::new()) };
        if length > self.0.len() {
            return Err(Garbled("a value is cut short"));
        }
        Ok(self.0.split_to(length))
    }

    pub(crate) fn text(&mut self) -> Result<String, Garbled> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.into()).map_err(|_| Garbled("a text is not UTF-8"))
    }

    pub(crate) fn texts(&mut self) -> Result<Vec<String>, Garbled> {
        let count = self.int()?;
        (0..count).map(|_| self.text()).collect()
    }

    pub(crate) fn stat(&mut self) -> Result<Stat, Garbled> {
        let (czxid, mzxid) = (self.long()?, self.long()?);
        let (_ctime, _mtime) = (self.long()?, self.long()?);
        let (version, cversion, _aversion) = (self.int()?, self.int()?, self.int()?);
        let ephemeral_owner = self.long()?;
        let (_data_length, num_children) = (self.int()?, self.int()?);
        let pzxid = self.long()?;
        Ok(Stat { version, cversion, czxid, mzxid, pzxid, ephemeral_owner, num_children })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::new(0);
        writer.int(-7).long(1 << 40).bool(true).bytes(b"\0\xff").text("ü");
        let message = writer.finish().freeze();
        assert_eq!(
            message.len() - 4,
            i32::from_be_bytes(message[..4].try_into().unwrap()) as usize
        );
        let mut reader = Reader::new(message.slice(4..));
        assert_eq!(reader.int().unwrap(), -7);
        assert_eq!(reader.long().unwrap(), 1 << 40);
        assert!(reader.bool().unwrap());
        assert_eq!(reader.bytes().unwrap(), b"\0\xff"[..]);
        assert_eq!(reader.text().unwrap(), "ü");
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn a_message_that_lies_about_its_length_is_an_error() {
        let mut reader = Reader::new(Bytes::from_static(&[0, 0, 0, 9, b'x']));
        assert!(reader.bytes().is_err());
        let mut reader = Reader::new(Bytes::from_static(&[0x7f, 0xff, 0xff, 0xff]));
        assert!(reader.texts().is_err());
    }
}
