//! From a file to the same compressed, on a thread of its own.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use pvc_model::disk_image::Compression;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use crate::decode::Part;
use crate::error::{ImageError, io};

/// Levels at which a GiB takes seconds or a few minutes. That of xz decides how much memory an
/// encoder takes, too: 9 MiB.
const GZIP_LEVEL: u32 = 6;
const XZ_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 3;

/// An encoder at work. It ends with its input, or when its output is dropped.
///
/// Whatever comes out for a piece goes out with it: so something goes at least for every few MiB,
/// also of zeros, and a reader at the other end hears that it goes on.
///
/// It works for the time of one piece only while it has one of the places, so that guests keep the
/// other cores. It has none while its client does not take what came out.
pub struct Encoder {
    pub input: mpsc::Sender<Part>,
    /// Ends with [`Part::End`] once all of a file is in it that was whole.
    pub output: mpsc::Receiver<Result<Part, ImageError>>,
}

impl Encoder {
    pub fn start(compression: Compression, places: Arc<Semaphore>) -> Self {
        let (input, receiver) = mpsc::channel(1);
        let (sender, output) = mpsc::channel(1);
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            let turn = || runtime.block_on(places.acquire()).expect("it is never closed");
            if let Err(error) = run(compression, receiver, &sender, turn) {
                // Nobody is told if nobody waits.
                let _ = sender.blocking_send(Err(io("compressing the image")(error)));
            }
        });
        Encoder { input, output }
    }
}

trait Encode: Write {
    /// Output since this was asked last.
    fn made(&mut self) -> Vec<u8>;
    /// Ends the file; returns the rest of it.
    fn end(self: Box<Self>) -> io::Result<Vec<u8>>;
}

impl Encode for flate2::write::GzEncoder<Vec<u8>> {
    fn made(&mut self) -> Vec<u8> {
        std::mem::take(self.get_mut())
    }

    fn end(self: Box<Self>) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

impl Encode for liblzma::write::XzEncoder<Vec<u8>> {
    fn made(&mut self) -> Vec<u8> {
        std::mem::take(self.get_mut())
    }

    fn end(self: Box<Self>) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

impl Encode for zstd::stream::write::Encoder<'static, Vec<u8>> {
    fn made(&mut self) -> Vec<u8> {
        std::mem::take(self.get_mut())
    }

    fn end(self: Box<Self>) -> io::Result<Vec<u8>> {
        self.finish()
    }
}

fn begin(compression: Compression) -> io::Result<Box<dyn Encode>> {
    Ok(match compression {
        Compression::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            Box::new(flate2::write::GzEncoder::new(Vec::new(), level))
        }
        Compression::Xz => Box::new(liblzma::write::XzEncoder::new(Vec::new(), XZ_LEVEL)),
        Compression::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
            // As `zstd` does: the other two have a checksum anyway.
            encoder.include_checksum(true)?;
            Box::new(encoder)
        }
    })
}

/// Encodes until the end is said, until nobody takes it, or until the input just ends: that is
/// somebody who gave up, and a file that is cut must not look whole.
fn run<T>(
    compression: Compression,
    mut input: mpsc::Receiver<Part>,
    to: &mpsc::Sender<Result<Part, ImageError>>,
    turn: impl Fn() -> T,
) -> io::Result<()> {
    let mut encoder = begin(compression)?;
    loop {
        let made = match input.blocking_recv() {
            Some(Part::Bytes(bytes)) => {
                let _turn = turn();
                encoder.write_all(&bytes)?;
                encoder.made()
            }
            Some(Part::End) => break,
            None => return Ok(()),
        };
        if !made.is_empty() && to.blocking_send(Ok(Part::Bytes(made.into()))).is_err() {
            return Ok(());
        }
    }
    for part in [Part::Bytes(Bytes::from(encoder.end()?)), Part::End] {
        // Nobody is told if nobody waits.
        let _ = to.blocking_send(Ok(part));
    }
    Ok(())
}
