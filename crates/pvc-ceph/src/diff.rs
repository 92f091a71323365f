//! The format of `rbd export-diff` and `rbd import-diff`, version 1.
//!
//! ```text
//!  rbd diff v1\n
//!  't' length name            the snapshot that is exported
//!  's' size                   of the image
//!  'w' offset length data     in order of their offsets if exported
//!  'z' offset length          zeros
//!  'e'                        the end
//! ```
//!
//! Numbers are little-endian, of 64 bits, but for the length of a name, of 32.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pvc_ports::MOST_PIECE_BYTES;

const BANNER: &[u8] = b"rbd diff v1\n";

const TO_SNAPSHOT: u8 = b't';
const FROM_SNAPSHOT: u8 = b'f';
const SIZE: u8 = b's';
const DATA: u8 = b'w';
const ZEROS: u8 = b'z';
const END: u8 = b'e';

/// Begin of a difference that is written over an image of this size.
pub(crate) fn begin(size_bytes: u64) -> Bytes {
    let mut text = BytesMut::from(BANNER);
    text.put_u8(SIZE);
    text.put_u64_le(size_bytes);
    text.freeze()
}

/// Data ends a record where it reaches a multiple of this, as objects of images do: `rbd` writes
/// each record by itself.
const RECORD_BYTES: u64 = 4 << 20;

/// Data that belongs to one record, whose end may be still to come. It is not copied.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    offset: u64,
    length: u64,
    pieces: Vec<Bytes>,
}

impl Gathered {
    /// Number of bytes from an offset to where a record ends at the latest.
    pub fn room_at(offset_bytes: u64) -> u64 {
        RECORD_BYTES - offset_bytes % RECORD_BYTES
    }

    /// Adds bytes that are written at an offset, with room for all of them there; returns the
    /// records that are whole by that, in the pieces that they are made of.
    pub fn add(&mut self, offset_bytes: u64, bytes: Bytes) -> Vec<Bytes> {
        let length = bytes.len() as u64;
        if is_zeros(&bytes) {
            let mut whole = self.take();
            whole.push(head(ZEROS, offset_bytes, length));
            return whole;
        }
        let mut whole = Vec::new();
        if self.offset + self.length != offset_bytes {
            whole = self.take();
            self.offset = offset_bytes;
        }
        self.length += length;
        self.pieces.push(bytes);
        if (self.offset + self.length).is_multiple_of(RECORD_BYTES) {
            whole.extend(self.take());
        }
        whole
    }

    /// Takes the record as it is, if there is any.
    pub fn take(&mut self) -> Vec<Bytes> {
        if self.pieces.is_empty() {
            return Vec::new();
        }
        let mut record = vec![head(DATA, self.offset, self.length)];
        record.append(&mut self.pieces);
        self.offset += self.length;
        self.length = 0;
        record
    }
}

/// Begin of a record.
fn head(kind: u8, offset_bytes: u64, length: u64) -> Bytes {
    let mut head = BytesMut::with_capacity(17);
    head.put_u8(kind);
    head.put_u64_le(offset_bytes);
    head.put_u64_le(length);
    head.freeze()
}

pub(crate) fn end() -> Bytes {
    Bytes::from_static(&[END])
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Next part of a difference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// More must be read first.
    More,
    Piece(u64, Bytes),
    End,
}

/// Reader of the difference between nothing and a snapshot. Believes nothing: what does not fit in
/// the image, is out of order or is of something else is an error.
#[derive(Debug)]
pub(crate) struct Diff {
    snapshot: String,
    size_bytes: u64,
    at: At,
    /// End of the last record, as an offset in the image.
    seen: u64,
    has_size: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Begin,
    Record,
    /// In the data of a record, of which so many bytes are left.
    Data {
        offset: u64,
        left: u64,
    },
    End,
}

impl Diff {
    pub fn of(snapshot: &str, size_bytes: u64) -> Self {
        let snapshot = snapshot.to_owned();
        Diff { snapshot, size_bytes, at: At::Begin, seen: 0, has_size: false }
    }

    /// Takes the next piece from what was read, or as much as there is before it. Never needs more
    /// than [`MOST_PIECE_BYTES`] to go on.
    pub fn next(&mut self, read: &mut BytesMut) -> Result<Next, String> {
        loop {
            let is_on = match self.at {
                At::Begin => self.begin(read)?,
                At::Record => self.record(read)?,
                At::Data { left: 0, .. } => {
                    self.at = At::Record;
                    true
                }
                At::Data { offset, left } => {
                    let most = left.min(MOST_PIECE_BYTES as u64);
                    let length = usize::try_from(most).unwrap_or(MOST_PIECE_BYTES);
                    if read.len() < length {
                        return Ok(Next::More);
                    }
                    let piece = read.split_to(length).freeze();
                    self.at = At::Data { offset: offset + most, left: left - most };
                    if !is_zeros(&piece) {
                        return Ok(Next::Piece(offset, piece));
                    }
                    true
                }
                At::End if read.is_empty() => return Ok(Next::End),
                At::End => return Err("there is something behind its end".to_owned()),
            };
            if !is_on {
                return Ok(Next::More);
            }
        }
    }

    fn begin(&mut self, read: &mut BytesMut) -> Result<bool, String> {
        let there = read.len().min(BANNER.len());
        if read[..there] != BANNER[..there] {
            return Err("it does not begin as a difference of images".to_owned());
        }
        if there < BANNER.len() {
            return Ok(false);
        }
        read.advance(BANNER.len());
        self.at = At::Record;
        Ok(true)
    }

    /// Reads what stands before the data of a record, if it is there as a whole.
    fn record(&mut self, read: &mut BytesMut) -> Result<bool, String> {
        let mut rest = &read[..];
        let Some(tag) = rest.try_get_u8().ok() else { return Ok(false) };
        match tag {
            END if self.has_size => self.at = At::End,
            END => return Err("it has no size".to_owned()),
            TO_SNAPSHOT => {
                let Ok(length) = rest.try_get_u32_le() else { return Ok(false) };
                let name = self.snapshot.as_bytes();
                if usize::try_from(length) != Ok(name.len()) {
                    return Err("it is of another snapshot".to_owned());
                }
                let Some(found) = rest.get(..name.len()) else { return Ok(false) };
                if found != name {
                    return Err("it is of another snapshot".to_owned());
                }
                rest.advance(name.len());
            }
            SIZE => {
                let Ok(size) = rest.try_get_u64_le() else { return Ok(false) };
                if size != self.size_bytes {
                    return Err(format!(
                        "it is of an image of {size} bytes instead of {}",
                        self.size_bytes
                    ));
                }
                self.has_size = true;
            }
            DATA | ZEROS => {
                let (Ok(offset), Ok(length)) = (rest.try_get_u64_le(), rest.try_get_u64_le())
                else {
                    return Ok(false);
                };
                self.tell(offset, length)?;
                self.at = match tag {
                    DATA => At::Data { offset, left: length },
                    _ => At::Record,
                };
            }
            FROM_SNAPSHOT => return Err("it begins at another snapshot".to_owned()),
            other => return Err(format!("it has a record of the unknown kind {other:#04x}")),
        }
        let length = read.len() - rest.len();
        read.advance(length);
        Ok(true)
    }

    fn tell(&mut self, offset: u64, length: u64) -> Result<(), String> {
        if !self.has_size {
            return Err("it has data before its size".to_owned());
        }
        if offset < self.seen {
            return Err(format!("its data at {offset} come after those up to {}", self.seen));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes => {
                self.seen = end;
                Ok(())
            }
            _ => Err(format!("it has {length} bytes at {offset}, beyond the end of the image")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE_BYTES: u64 = 3 << 20;

    fn record(tag: u8, numbers: &[u64], rest: &[u8]) -> Vec<u8> {
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        [tag].into_iter().chain(numbers).chain(rest.iter().copied()).collect()
    }

    fn named(tag: u8, name: &str) -> Vec<u8> {
        let length = u32::try_from(name.len()).unwrap().to_le_bytes();
        [&[tag][..], &length, name.as_bytes()].concat()
    }

    fn head() -> Vec<u8> {
        [BANNER.to_vec(), named(TO_SNAPSHOT, "s"), record(SIZE, &[SIZE_BYTES], b"")].concat()
    }

    type Pieces = Vec<(u64, Bytes)>;

    /// All pieces of a text that arrives in parts of `part` bytes; `None` if it has no end.
    fn read(text: &[u8], part: usize) -> Result<Option<Pieces>, String> {
        let (mut diff, mut buffer) = (Diff::of("s", SIZE_BYTES), BytesMut::new());
        let (mut pieces, mut parts) = (Vec::new(), text.chunks(part));
        let mut is_whole = false;
        loop {
            match diff.next(&mut buffer)? {
                Next::Piece(offset, bytes) => pieces.push((offset, bytes)),
                Next::More | Next::End if is_whole => return Ok(None),
                step => match parts.next() {
                    Some(part) => buffer.put_slice(part),
                    None if step == Next::End => return Ok(Some(pieces)),
                    None => is_whole = true,
                },
            }
            assert!(buffer.len() <= MOST_PIECE_BYTES + part, "more is kept than a piece");
        }
    }

    fn refused(records: &[Vec<u8>]) -> String {
        read(&[head(), records.concat()].concat(), 4096).unwrap_err()
    }

    #[test]
    fn a_difference_is_read_however_it_is_cut() {
        let data: Vec<u8> = (0..2000_u32).map(|n| n.to_le_bytes()[0] | 1).collect();
        let text = [
            head(),
            record(DATA, &[10, 2000], &data),
            record(ZEROS, &[2010, 5000], b""),
            record(DATA, &[8000, 16], &[0; 16]),
            record(DATA, &[9000, 0], b""),
            record(DATA, &[SIZE_BYTES - 1, 1], b"x"),
            record(END, &[], b""),
        ]
        .concat();
        let expected = vec![(10, Bytes::from(data)), (SIZE_BYTES - 1, Bytes::from_static(b"x"))];
        for part in [1, 2, 3, 7, 16, 17, 1000, text.len()] {
            assert_eq!(read(&text, part), Ok(Some(expected.clone())), "{part}");
        }
        for length in 0..text.len() {
            assert_eq!(read(&text[..length], 512), Ok(None), "cut at {length}");
        }
    }

    #[test]
    fn a_long_record_comes_in_pieces_without_those_of_zeros() {
        let mut data = vec![0; usize::try_from(SIZE_BYTES).unwrap()];
        data[5] = 1;
        data[MOST_PIECE_BYTES * 2] = 2;
        let text = [head(), record(DATA, &[0, SIZE_BYTES], &data), vec![END]].concat();
        let pieces = read(&text, 60_000).unwrap().unwrap();
        let shape: Vec<_> = pieces.iter().map(|(offset, bytes)| (*offset, bytes.len())).collect();
        assert_eq!(shape, [(0, MOST_PIECE_BYTES), (2 << 20, MOST_PIECE_BYTES)]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (offset, length) in [
            (0, SIZE_BYTES + 1),
            (SIZE_BYTES, 1),
            (u64::MAX, 1),
            (1, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            for tag in [DATA, ZEROS] {
                let why = refused(&[record(tag, &[offset, length], b"")]);
                assert!(why.contains("beyond the end"), "{why}");
            }
        }
        let first = record(DATA, &[100, 10], &[1; 10]);
        for other in [record(DATA, &[109, 1], b"x"), record(ZEROS, &[0, 1], b"")] {
            let why = refused(&[first.clone(), other]);
            assert!(why.contains("come after those up to 110"), "{why}");
        }
        assert!(refused(&[named(FROM_SNAPSHOT, "r")]).contains("begins at another"));
        assert!(refused(&[named(TO_SNAPSHOT, "t")]).contains("of another snapshot"));
        let endless = [&[TO_SNAPSHOT][..], &u32::MAX.to_le_bytes()].concat();
        assert!(refused(&[endless]).contains("of another snapshot"));
        assert!(refused(&[record(SIZE, &[1], b"")]).contains("of an image of 1 bytes"));
        assert!(refused(&[vec![0]]).contains("unknown kind 0x00"));
        assert!(refused(&[vec![END, b'x']]).contains("behind its end"));
        assert!(read(b"rbd diff v2\n", 1).unwrap_err().contains("does not begin"));
        assert!(read(&[BANNER, b"e"].concat(), 1).unwrap_err().contains("no size"));
        let early = [BANNER.to_vec(), record(DATA, &[0, 1], b"x")].concat();
        assert!(read(&early, 1).unwrap_err().contains("before its size"));
    }

    /// A byte that is wrong never makes more of a text than it has: at worst other contents, or an
    /// error.
    #[test]
    fn a_byte_that_is_wrong_does_no_harm() {
        let text = [
            head(),
            record(DATA, &[10, 40], &[7; 40]),
            record(ZEROS, &[60, 5000], b""),
            record(DATA, &[8000, 3], b"abc"),
            vec![END],
        ]
        .concat();
        for place in 0..text.len() {
            for wrong in 0..=u8::MAX {
                let mut text = text.clone();
                text[place] = wrong;
                if let Ok(Some(pieces)) = read(&text, 64) {
                    let ends = pieces.iter().map(|(offset, bytes)| offset + bytes.len() as u64);
                    assert!(ends.is_sorted() && pieces.len() <= 2);
                }
            }
        }
    }

    /// The text of all that is written, in this order.
    fn written(pieces: impl IntoIterator<Item = (u64, Bytes)>) -> Vec<u8> {
        let mut gathered = Gathered::default();
        let mut text = begin(SIZE_BYTES).to_vec();
        for (offset, bytes) in pieces {
            assert!(bytes.len() as u64 <= Gathered::room_at(offset));
            text.extend(gathered.add(offset, bytes).concat());
        }
        text.extend(gathered.take().concat());
        assert!(gathered.take().is_empty());
        text.extend(end());
        text
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let pieces = [(3, Bytes::from_static(b"abc")), (1 << 20, Bytes::from_static(b"x"))];
        let zeros = (100, Bytes::from(vec![0; 1000]));
        let text = written([pieces[0].clone(), zeros, pieces[1].clone()]);
        assert_eq!(read(&text, 10), Ok(Some(pieces.to_vec())));
        assert!(text.len() < 200, "zeros take no room");
    }

    #[test]
    fn pieces_that_touch_are_a_record_up_to_the_end_of_their_object() {
        let piece = |offset: u64| (offset, Bytes::from(vec![1; 256 << 10]));
        let touching = (1..=40).map(|nth| piece(nth * (256 << 10)));
        let mut gathered = Gathered::default();
        let mut lengths = Vec::new();
        for (offset, bytes) in touching {
            let whole = gathered.add(offset, bytes);
            lengths.extend(whole.first().map(|_| whole.concat().len() - 17));
        }
        lengths.push(gathered.take().concat().len() - 17);
        assert_eq!(lengths, [15 << 18, 4 << 20, 9 << 18]);
        let apart = written([piece(0), piece(512 << 10), piece(0)]);
        assert_eq!(
            apart.iter().filter(|letter| **letter == DATA).count(),
            3,
            "the last one counts"
        );
    }
}
