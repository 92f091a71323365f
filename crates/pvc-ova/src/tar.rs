//! A tar archive, read as its bytes come: ustar, and what pax and GNU tar add to it for long names
//! and large files. What else there is (links, devices, sparse files) no OVA needs, and is refused.

use bytes::Bytes;
use pvc_model::shown;

use crate::bad_name;

/// Bytes of a block, of which an archive consists.
const BLOCK: usize = 512;

/// The most bytes of a header that is an addition to the next one: a name, or records of pax.
const MOST_EXTRA: u64 = 16 << 10;

/// The most headers of an archive.
const MOST_HEADERS: usize = 1024;

/// A file in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// In bytes.
    pub size: u64,
}

/// A part of an archive, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Begin(Member),
    /// The next bytes of the member that has begun, at least one.
    Data(Bytes),
    /// All of the member has come.
    End,
}

/// Reason why bytes are no archive, or none that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TarError {
    #[error("the file is no OVA: it does not begin like a tar archive")]
    NoArchive,
    #[error("the archive is broken: {why} at byte {at}")]
    Broken { at: u64, why: &'static str },
    #[error("the archive was cut: it ends within {within}, after {at} bytes")]
    Cut { at: u64, within: &'static str },
    #[error("`{name}` in the archive is {what}, which no OVA has")]
    Kind { name: String, what: &'static str },
    #[error("the name `{name}` in the archive {why}")]
    Name { name: String, why: &'static str },
    #[error(
        "`{name}` in the archive has {size} bytes, and at most {most} are left of what was said"
    )]
    TooLarge { name: String, size: u64, most: u64 },
    #[error("the archive has more than {MOST_HEADERS} files")]
    TooMany,
}

/// Name and size that headers give to the next one.
#[derive(Debug, Default)]
struct Extra {
    name: Option<Vec<u8>>,
    size: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExtraKind {
    /// The name of the next file, as GNU tar writes a long one.
    GnuName,
    /// Records of pax about the next file.
    Pax,
    /// Records of pax about all that follow.
    PaxGlobal,
}

#[derive(Debug)]
enum State {
    /// A header, of which so many bytes have come.
    Header(Vec<u8>),
    Extra {
        kind: ExtraKind,
        size: usize,
        kept: Vec<u8>,
    },
    Data {
        left: u64,
        size: u64,
    },
    /// Zeros behind contents, up to a whole block.
    Padding(u64),
    /// Zeros alone.
    Ended,
}

/// An archive whose bytes are given to it as they come.
#[derive(Debug)]
pub struct Archive {
    state: State,
    extra: Extra,
    headers: usize,
    /// Bytes that were taken.
    at: u64,
    most_bytes: u64,
}

impl Archive {
    /// An archive of at most so many bytes.
    pub fn new(most_bytes: u64) -> Self {
        let (state, extra) = (State::Header(Vec::new()), Extra::default());
        Archive { state, extra, headers: 0, at: 0, most_bytes }
    }

    /// Takes bytes from the beginning of `input`, up to the end of the next part; `None` if all of
    /// them are taken and more are needed.
    ///
    /// # Errors
    /// If this is no archive, or has what no OVA has. Nothing more can be read then.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Part>, TarError> {
        loop {
            if let State::Data { left: 0, size } = self.state {
                self.state = padding(size);
                return Ok(Some(Part::End));
            }
            if input.is_empty() {
                return Ok(None);
            }
            if let Some(part) = self.step(input)? {
                return Ok(Some(part));
            }
        }
    }

    /// Whether this is an end, which it is between two files as well: not all programs mark it.
    ///
    /// # Errors
    /// If the archive goes on, or there was none.
    pub fn end(&self) -> Result<(), TarError> {
        let within = match &self.state {
            State::Header(begun) if begun.is_empty() && self.extra.is_empty() => {
                return if self.headers == 0 { Err(TarError::NoArchive) } else { Ok(()) };
            }
            State::Ended | State::Padding(_) => return Ok(()),
            State::Header(_) if self.headers == 0 => return Err(TarError::NoArchive),
            State::Header(_) | State::Extra { .. } => "a header",
            State::Data { .. } => "a file",
        };
        Err(TarError::Cut { at: self.at, within })
    }

    fn take(&mut self, input: &mut Bytes, most: u64) -> Bytes {
        let count = usize::try_from(most).map_or(input.len(), |most| most.min(input.len()));
        self.at += count as u64;
        input.split_to(count)
    }

    /// Takes some bytes, of which there is one at least.
    fn step(&mut self, input: &mut Bytes) -> Result<Option<Part>, TarError> {
        match &self.state {
            State::Header(begun) => {
                let missing = BLOCK - begun.len();
                let taken = self.take(input, missing as u64);
                let State::Header(begun) = &mut self.state else { return Ok(None) };
                begun.extend_from_slice(&taken);
                if begun.len() < BLOCK {
                    return Ok(None);
                }
                let block = std::mem::take(begun);
                self.header(&block)
            }
            State::Extra { size, kept, .. } => {
                let missing = size - kept.len();
                let taken = self.take(input, missing as u64);
                let State::Extra { kind, size, kept } = &mut self.state else { return Ok(None) };
                kept.extend_from_slice(&taken);
                if kept.len() == *size {
                    let (kind, size, kept) = (*kind, *size as u64, std::mem::take(kept));
                    self.note(kind, kept)?;
                    self.state = padding(size);
                }
                Ok(None)
            }
            State::Data { left, size } => {
                let (left, size) = (*left, *size);
                let taken = self.take(input, left);
                self.state = State::Data { left: left - taken.len() as u64, size };
                Ok(Some(Part::Data(taken)))
            }
            State::Padding(left) => {
                let left = *left;
                let taken = self.take(input, left);
                self.state = match left - taken.len() as u64 {
                    0 => State::Header(Vec::new()),
                    left => State::Padding(left),
                };
                Ok(None)
            }
            State::Ended => {
                let at = self.at;
                let taken = self.take(input, u64::MAX);
                match taken.iter().all(|byte| *byte == 0) {
                    true => Ok(None),
                    false => Err(TarError::Broken { at, why: "something follows its end" }),
                }
            }
        }
    }

    fn broken<T>(&self, why: &'static str) -> Result<T, TarError> {
        match self.headers {
            0 => Err(TarError::NoArchive),
            _ => Err(TarError::Broken { at: self.at - BLOCK as u64, why }),
        }
    }

    fn header(&mut self, block: &[u8]) -> Result<Option<Part>, TarError> {
        if block.iter().all(|byte| *byte == 0) {
            if self.headers == 0 {
                return Err(TarError::NoArchive);
            }
            if !self.extra.is_empty() {
                return self.broken("an addition to a header has no header behind it");
            }
            self.state = State::Ended;
            return Ok(None);
        }
        if number(&block[148..156]) != Some(sum(block)) {
            return self.broken("a header has another checksum");
        }
        let Some(mut size) = number(&block[124..136]) else {
            return self.broken("a header has a size that is no number");
        };
        self.headers += 1;
        if self.headers > MOST_HEADERS {
            return Err(TarError::TooMany);
        }
        let kind = match block[156] {
            b'L' => Some(ExtraKind::GnuName),
            b'x' => Some(ExtraKind::Pax),
            b'g' => Some(ExtraKind::PaxGlobal),
            _ => None,
        };
        if let Some(kind) = kind {
            return self.begin_extra(kind, size).map(|()| None);
        }
        let extra = std::mem::take(&mut self.extra);
        size = extra.size.unwrap_or(size);
        let name = extra.name.unwrap_or_else(|| name_of(block));
        let name = String::from_utf8_lossy(&name).into_owned();
        match block[156] {
            b'0' | b'7' | 0 => self.begin(name, size).map(Some),
            // What is in it has its name before its own.
            b'5' if size == 0 => Ok(None).inspect(|_| self.state = State::Header(Vec::new())),
            other => {
                let (name, what) = (shown(&name), what(other));
                Err(TarError::Kind { name, what })
            }
        }
    }

    fn begin(&mut self, name: String, size: u64) -> Result<Part, TarError> {
        // As `tar` writes what it was told as `./*`.
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        if let Some(why) = bad_name(&name) {
            return Err(TarError::Name { name: shown(&name), why });
        }
        if name.contains(char::REPLACEMENT_CHARACTER) {
            let why = "is no text";
            return Err(TarError::Name { name: shown(&name), why });
        }
        let most = self.most_bytes.saturating_sub(self.at);
        if size > most {
            return Err(TarError::TooLarge { name: shown(&name), size, most });
        }
        self.state = State::Data { left: size, size };
        Ok(Part::Begin(Member { name, size }))
    }

    fn begin_extra(&mut self, kind: ExtraKind, size: u64) -> Result<(), TarError> {
        if size == 0 || size > MOST_EXTRA {
            return self.broken("an addition to a header has a size that it cannot have");
        }
        let size = usize::try_from(size).expect("it is no more than 16 KiB");
        self.state = State::Extra { kind, size, kept: Vec::with_capacity(size) };
        Ok(())
    }

    fn note(&mut self, kind: ExtraKind, kept: Vec<u8>) -> Result<(), TarError> {
        let records = match kind {
            ExtraKind::GnuName => {
                let end = kept.iter().position(|byte| *byte == 0).unwrap_or(kept.len());
                self.extra.name = Some(kept[..end].to_vec());
                return Ok(());
            }
            ExtraKind::Pax | ExtraKind::PaxGlobal => pax(&kept),
        };
        let Some(records) = records else { return self.broken("records of pax are none") };
        for (key, value) in records {
            match (key, kind) {
                (b"path" | b"size", ExtraKind::PaxGlobal) => {
                    return self.broken("all files are said to have one name or size");
                }
                (b"path", _) => self.extra.name = Some(value.to_vec()),
                (b"size", _) => match std::str::from_utf8(value).ok().and_then(decimal) {
                    Some(size) => self.extra.size = Some(size),
                    None => return self.broken("a size of pax is no number"),
                },
                _ if key.starts_with(b"GNU.sparse.") => {
                    let (name, what) = ("the next file".to_owned(), "a sparse file");
                    return Err(TarError::Kind { name, what });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.name.is_none() && self.size.is_none()
    }
}

/// The state behind contents of so many bytes.
fn padding(size: u64) -> State {
    match size % BLOCK as u64 {
        0 => State::Header(Vec::new()),
        over => State::Padding(BLOCK as u64 - over),
    }
}

fn what(kind: u8) -> &'static str {
    match kind {
        b'1' | b'2' | b'K' => "a link",
        b'3' | b'4' => "a device",
        b'5' => "a folder with contents",
        b'6' => "a pipe",
        b'S' => "a sparse file",
        _ => "of a kind that is not known",
    }
}

/// The sum of a header's bytes, in which its own place counts as spaces.
fn sum(block: &[u8]) -> u64 {
    let of = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    of(&block[..148]) + 8 * u64::from(b' ') + of(&block[156..])
}

/// A number in octal digits, or, of GNU tar, in bytes behind one of 128.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let bytes = std::iter::once(field[0] & 0x7f).chain(field[1..].iter().copied());
        return bytes
            .into_iter()
            .try_fold(0_u64, |sum, byte| sum.checked_mul(256).map(|sum| sum | u64::from(byte)));
    }
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_start_matches(' ').trim_end_matches([' ', '\0']);
    match text.bytes().all(|byte| matches!(byte, b'0'..=b'7')) {
        true if !text.is_empty() => u64::from_str_radix(text, 8).ok(),
        _ => None,
    }
}

fn decimal(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// The name in a header, with what ustar has before it.
fn name_of(block: &[u8]) -> Vec<u8> {
    fn until_nul(field: &[u8]) -> &[u8] {
        field.split(|byte| *byte == 0).next().unwrap_or_default()
    }
    let (name, prefix) = (until_nul(&block[..100]), until_nul(&block[345..500]));
    // GNU tar has other things in that place, and other spaces behind `ustar`.
    match &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

/// The records `LENGTH KEY=VALUE` of pax, each with a new line at its end.
fn pax(mut text: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !text.is_empty() {
        let space = text.iter().position(|byte| *byte == b' ')?;
        let length = decimal(std::str::from_utf8(&text[..space]).ok()?)?;
        let length = usize::try_from(length).ok().filter(|length| *length > space + 1)?;
        let record = text.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        text = &text[length..];
    }
    Some(records)
}

#[cfg(test)]
mod tests;
