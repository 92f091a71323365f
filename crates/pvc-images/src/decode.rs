//! From a compressed file to what is in it, on a thread of its own.

use std::io::{self, BufRead, BufReader, Read};

use bytes::Bytes;
pub use pvc_model::disk_image::Compression;
use tokio::sync::mpsc;

use crate::MOST_PIECE_BYTES;
use crate::error::ImageError;

/// Memory that a decoder of xz may take, which has 65 MiB for what `xz -9` makes.
const MOST_MEMORY: u64 = 80 << 20;

/// The window of a decoder of zstd, as a power of two: 64 MiB.
const MOST_WINDOW_LOG: u32 = 26;

/// The most bytes that are read with nothing to come out: parts of a file that say nothing, without
/// end, keep a place for ever.
const MOST_WITHOUT_OUTPUT: u64 = 4 << 20;

/// A decoder at work. It ends with its input, or when its output is dropped.
pub struct Decoder {
    pub input: mpsc::Sender<Bytes>,
    pub output: mpsc::Receiver<Result<Bytes, ImageError>>,
}

impl Decoder {
    /// Begins a decoder; of a file that is not compressed it cuts pieces.
    pub fn start(compression: Option<Compression>) -> Self {
        let (input, receiver) = mpsc::channel(1);
        let (sender, output) = mpsc::channel(1);
        tokio::task::spawn_blocking(move || {
            let file = FromChannel { receiver, bytes: Bytes::new(), unanswered: 0 };
            run(compression, file, &sender);
        });
        Decoder { input, output }
    }
}

/// The file, as a decoder reads it.
struct FromChannel {
    receiver: mpsc::Receiver<Bytes>,
    bytes: Bytes,
    /// Bytes that were read since something came out.
    unanswered: u64,
}

impl Read for FromChannel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            match self.receiver.blocking_recv() {
                Some(bytes) => self.bytes = bytes,
                None => return Ok(0),
            }
        }
        let length = into.len().min(self.bytes.len());
        into[..length].copy_from_slice(&self.bytes.split_to(length));
        self.unanswered += length as u64;
        if self.unanswered > MOST_WITHOUT_OUTPUT {
            return Err(io::Error::other("more than 4 MiB of it stand for nothing"));
        }
        Ok(length)
    }
}

/// A decoder whose file can be told that something came out.
trait Decode: Read {
    fn file(&mut self) -> &mut FromChannel;
}

impl Decode for FromChannel {
    fn file(&mut self) -> &mut FromChannel {
        self
    }
}

impl Decode for liblzma::bufread::XzDecoder<BufReader<FromChannel>> {
    fn file(&mut self) -> &mut FromChannel {
        self.get_mut().get_mut()
    }
}

impl Decode for zstd::stream::read::Decoder<'static, BufReader<FromChannel>> {
    fn file(&mut self) -> &mut FromChannel {
        self.get_mut().get_mut()
    }
}

/// The members of a gzip file, one after the other, and zeros after the last.
struct Gzip {
    /// The present member; nothing between two.
    member: Option<flate2::bufread::GzDecoder<BufReader<FromChannel>>>,
}

impl Read for Gzip {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let member = self.member.as_mut().expect("there is one, but within this");
            let length = member.read(into)?;
            if length > 0 {
                return Ok(length);
            }
            let mut rest = self.member.take().expect("it was read this moment").into_inner();
            let goes_on = next_member(&mut rest)?;
            self.member = Some(flate2::bufread::GzDecoder::new(rest));
            if !goes_on {
                return Ok(0);
            }
        }
    }
}

/// Skips zeros; whether another member follows.
fn next_member(file: &mut BufReader<FromChannel>) -> io::Result<bool> {
    loop {
        let bytes = file.fill_buf()?;
        match bytes.iter().position(|byte| *byte != 0) {
            _ if bytes.is_empty() => return Ok(false),
            Some(0) if bytes[0] == 0x1f => return Ok(true),
            Some(_) => return Err(io::Error::other("something else follows after its end")),
            None => {
                let length = bytes.len();
                file.consume(length);
            }
        }
    }
}

impl Decode for Gzip {
    fn file(&mut self) -> &mut FromChannel {
        self.member.as_mut().expect("there is one, but within a read").get_mut().get_mut()
    }
}

type Sender = mpsc::Sender<Result<Bytes, ImageError>>;

fn run(compression: Option<Compression>, file: FromChannel, to: &Sender) {
    let begun = begin(compression, file);
    let done = begun.and_then(|mut decoder| send_all(decoder.as_mut(), to));
    if let Err(error) = done {
        let kind = match compression {
            None => "plain",
            Some(Compression::Gzip) => "gzip",
            Some(Compression::Xz) => "xz",
            Some(Compression::Zstd) => "zstd",
        };
        let why = shown(&error);
        // Nobody is told if nobody waits.
        let _ = to.blocking_send(Err(ImageError::Compressed { kind, why }));
    }
}

fn shown(error: &io::Error) -> String {
    error.to_string().chars().filter(|c| !c.is_control()).take(200).collect()
}

fn begin(compression: Option<Compression>, file: FromChannel) -> io::Result<Box<dyn Decode>> {
    Ok(match compression {
        None => Box::new(file),
        Some(Compression::Gzip) => {
            let member = Some(flate2::bufread::GzDecoder::new(BufReader::new(file)));
            Box::new(Gzip { member })
        }
        Some(Compression::Xz) => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(MOST_MEMORY, flags)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(BufReader::new(file), stream))
        }
        Some(Compression::Zstd) => {
            let mut decoder = zstd::stream::read::Decoder::new(file)?;
            decoder.window_log_max(MOST_WINDOW_LOG)?;
            Box::new(decoder)
        }
    })
}

/// Sends what comes out, in whole pieces but for the last, until nobody takes it.
fn send_all(decoder: &mut dyn Decode, to: &Sender) -> io::Result<()> {
    loop {
        let mut piece = vec![0; MOST_PIECE_BYTES];
        let mut length = 0;
        while length < piece.len() {
            match decoder.read(&mut piece[length..]) {
                Ok(0) => break,
                Ok(read) => {
                    length += read;
                    decoder.file().unanswered = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let is_last = length < piece.len();
        piece.truncate(length);
        if length > 0 && to.blocking_send(Ok(piece.into())).is_err() || is_last {
            return Ok(());
        }
    }
}
