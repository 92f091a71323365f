//! From a compressed file to what is in it, on a thread of its own; one that is not compressed is
//! only cut into pieces, and needs none.

use std::io::{self, BufRead, BufReader, Read};

use bytes::{Bytes, BytesMut};
pub use pvc_model::disk_image::Compression;
use pvc_model::shown;
use tokio::sync::mpsc;

use crate::error::ImageError;
use crate::{BLOCK_BYTES, MOST_PIECE_BYTES};

/// Memory that a decoder of xz may take, which has 65 MiB for what `xz -9` makes.
const MOST_MEMORY: u64 = 80 << 20;

/// The window of a decoder of zstd, as a power of two: 64 MiB.
const MOST_WINDOW_LOG: u32 = 26;

/// The most bytes that are read with nothing to come out: parts of a file that say nothing, without
/// end, keep a place for ever.
const MOST_WITHOUT_OUTPUT: u64 = 4 << 20;

const CUT_OFF: &str = "the upload was cut off";

/// A decoder at work. It ends with its input, or when its output is dropped.
///
/// Either way the end is said: a channel that just closes belongs to somebody who died, and what
/// came through it may be cut.
pub struct Decoder {
    pub input: mpsc::Sender<Part>,
    pub output: mpsc::Receiver<Result<Part, ImageError>>,
}

/// A message of a channel through which a file goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    Bytes(Bytes),
    /// The file is whole; nothing follows.
    End,
}

impl Decoder {
    /// Begins a decoder; of a file that is not compressed it cuts pieces.
    pub fn start(compression: Option<Compression>) -> Self {
        let (input, receiver) = mpsc::channel(1);
        let (sender, output) = mpsc::channel(1);
        match compression {
            None => drop(tokio::spawn(cut(receiver, sender))),
            Some(compression) => drop(tokio::task::spawn_blocking(move || {
                run(compression, FromChannel::new(receiver), &sender);
            })),
        }
        Decoder { input, output }
    }
}

/// The file, as a decoder reads it.
struct FromChannel {
    receiver: mpsc::Receiver<Part>,
    bytes: Bytes,
    has_ended: bool,
    /// Bytes that were read since something came out.
    unanswered: u64,
}

impl FromChannel {
    fn new(receiver: mpsc::Receiver<Part>) -> Self {
        FromChannel { receiver, bytes: Bytes::new(), has_ended: false, unanswered: 0 }
    }
}

impl Read for FromChannel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.bytes.is_empty() && !self.has_ended {
            match self.receiver.blocking_recv() {
                Some(Part::Bytes(bytes)) => self.bytes = bytes,
                Some(Part::End) => self.has_ended = true,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, CUT_OFF)),
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

type Sender = mpsc::Sender<Result<Part, ImageError>>;

/// Sends the file on in whole blocks but for the last, until nobody takes it. Blocks that come in
/// one part are not copied.
async fn cut(mut file: mpsc::Receiver<Part>, to: Sender) {
    let mut cutter = Cutter::default();
    loop {
        let part = file.recv().await;
        if let Some(Part::Bytes(bytes)) = part {
            for piece in cutter.cut(bytes) {
                if to.send(Ok(Part::Bytes(piece))).await.is_err() {
                    return;
                }
            }
            continue;
        }
        let rest = cutter.begun.freeze();
        let last = Some(rest).filter(|rest| !rest.is_empty()).map(Part::Bytes);
        let end =
            part.ok_or_else(|| ImageError::Compressed { kind: "plain", why: CUT_OFF.to_owned() });
        for part in last.map(Ok).into_iter().chain([end]) {
            // Nobody is told if nobody waits.
            let _ = to.send(part).await;
        }
        return;
    }
}

/// Cutter of a file into pieces of whole blocks.
#[derive(Default)]
struct Cutter {
    /// Begin of a block whose rest has not come.
    begun: BytesMut,
}

impl Cutter {
    /// The pieces that end in the bytes that come next.
    fn cut(&mut self, mut bytes: Bytes) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        if !self.begun.is_empty() {
            let missing = BLOCK_BYTES - self.begun.len();
            self.begun.extend_from_slice(&bytes.split_to(missing.min(bytes.len())));
            if self.begun.len() == BLOCK_BYTES {
                pieces.push(self.begun.split().freeze());
            }
        }
        while bytes.len() >= BLOCK_BYTES {
            let length = bytes.len().min(MOST_PIECE_BYTES);
            pieces.push(bytes.split_to(length - length % BLOCK_BYTES));
        }
        if !bytes.is_empty() {
            // At once for all of the block: it would be copied where it grows.
            self.begun.reserve(BLOCK_BYTES - self.begun.len());
            self.begun.extend_from_slice(&bytes);
        }
        pieces
    }
}

fn run(compression: Compression, file: FromChannel, to: &Sender) {
    let begun = begin(compression, file);
    let done = begun.and_then(|mut decoder| send_all(decoder.as_mut(), to));
    if let Err(error) = done {
        let kind = compression.as_str();
        let why = shown(&error.to_string());
        // Nobody is told if nobody waits.
        let _ = to.blocking_send(Err(ImageError::Compressed { kind, why }));
    }
}

fn begin(compression: Compression, file: FromChannel) -> io::Result<Box<dyn Decode>> {
    Ok(match compression {
        Compression::Gzip => {
            let member = Some(flate2::bufread::GzDecoder::new(BufReader::new(file)));
            Box::new(Gzip { member })
        }
        Compression::Xz => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(MOST_MEMORY, flags)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(BufReader::new(file), stream))
        }
        Compression::Zstd => {
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
        if length > 0 && to.blocking_send(Ok(Part::Bytes(piece.into()))).is_err() {
            return Ok(());
        }
        if is_last {
            // Nobody is told if nobody waits.
            let _ = to.blocking_send(Ok(Part::End));
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of a decoder for these parts, after which nothing more comes.
    async fn decoded(
        compression: Option<Compression>,
        parts: Vec<Part>,
    ) -> (Vec<u8>, Option<Result<Part, ImageError>>) {
        let Decoder { input, mut output } = Decoder::start(compression);
        for part in parts {
            // A decoder that has seen enough takes no more.
            let _ = input.send(part).await;
        }
        drop(input);
        let mut bytes = Vec::new();
        loop {
            match output.recv().await {
                Some(Ok(Part::Bytes(piece))) => bytes.extend_from_slice(&piece),
                other => return (bytes, other),
            }
        }
    }

    fn part(bytes: &[u8]) -> Part {
        Part::Bytes(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn a_file_is_cut_at_blocks_and_only_what_lies_across_parts_is_copied() {
        let file: Vec<u8> = (0..5 * MOST_PIECE_BYTES).map(|at| (at / 7) as u8).collect();
        let file = Bytes::from(file);
        for part in [1021, 4099, BLOCK_BYTES - 1, BLOCK_BYTES, 400_000, 3 * MOST_PIECE_BYTES] {
            let (mut cutter, mut all, mut copied) = (Cutter::default(), Vec::new(), 0);
            let mut rest = file.clone();
            while !rest.is_empty() {
                for piece in cutter.cut(rest.split_to(part.min(rest.len()))) {
                    assert_eq!(piece.len() % BLOCK_BYTES, 0);
                    assert!(!piece.is_empty() && piece.len() <= MOST_PIECE_BYTES);
                    let is_slice = file.as_ptr_range().contains(&piece.as_ptr());
                    copied += if is_slice { 0 } else { piece.len() };
                    all.extend_from_slice(&piece);
                }
            }
            all.extend_from_slice(&cutter.begun);
            assert!(all == file, "in parts of {part}");
            assert!(copied <= (file.len() / part + 1) * BLOCK_BYTES, "{copied} of parts of {part}");
        }
    }

    #[tokio::test]
    async fn a_file_whose_sender_is_gone_before_it_said_the_end_is_cut() {
        // Two whole files: each could be all of it.
        let gzip = {
            let mut encoder = flate2::read::GzEncoder::new(&b"disk"[..], Default::default());
            let mut all = Vec::new();
            encoder.read_to_end(&mut all).unwrap();
            all
        };
        for (compression, file) in [
            (None, b"disk".to_vec()),
            (Some(Compression::Gzip), gzip),
            (Some(Compression::Xz), liblzma::encode_all(&b"disk"[..], 1).unwrap()),
            (Some(Compression::Zstd), zstd::encode_all(&b"disk"[..], 1).unwrap()),
        ] {
            let (bytes, end) = decoded(compression, vec![part(&file), Part::End]).await;
            assert_eq!((&bytes[..], end.unwrap().unwrap()), (&b"disk"[..], Part::End));
            for parts in [vec![part(&file)], vec![part(&file), part(b"")], vec![]] {
                let (_, end) = decoded(compression, parts).await;
                let error = end.expect("it says how it ended").unwrap_err().to_string();
                assert!(error.ends_with("the upload was cut off"), "{compression:?}: {error}");
            }
        }
    }
}
