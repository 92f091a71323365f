//! The contents of a volume as the body of a reply: a few pieces in memory, whatever the size.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use pvc_images::{Disk, Given};
use pvc_model::with_causes;
use pvc_ports::{Clock, Download, StorageError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::pace::{Pace, SILENCE, TooSlow};
use crate::slots::Slot;
use crate::under_way::Reading;

type Piece = io::Result<Bytes>;

/// Time that a download may take in all. After a day the primary takes its snapshot for something
/// that was left behind, and removes it.
pub const MOST_TIME: Duration = Duration::from_secs(23 * 3600);

/// The contents of a volume, as an image is made of them.
pub struct DiskOf {
    download: Box<dyn Download>,
    /// Dropped behind the download: until then nobody else may be able to open the volume.
    _reading: Option<Reading>,
}

impl DiskOf {
    pub fn new(download: Box<dyn Download>, reading: Option<Reading>) -> Self {
        DiskOf { download, _reading: reading }
    }
}

#[async_trait]
impl Disk for DiskOf {
    type Error = StorageError;

    fn size_bytes(&self) -> u64 {
        self.download.size_bytes()
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
        self.download.next().await
    }
}

/// A body of the whole file. Ends short, which breaks the connection, if the storage fails, the
/// client is [too slow](crate::pace), it takes more than [`MOST_TIME`], or the daemon stops.
pub fn body(
    file: Given<DiskOf>,
    clock: Arc<dyn Clock>,
    stopping: CancellationToken,
    slot: Slot,
) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let failed = tokio::select! {
            biased;
            () = stopping.cancelled() => {
                Some(io::Error::other("it was cancelled, or the daemon stops"))
            }
            // Not at its next piece: that may be long in coming, and keeps others from the volume.
            () = sender.closed() => Some(client_is_gone()),
            sent = send(file, &sender, clock.as_ref()) => sent.err(),
            () = clock.sleep(MOST_TIME) => {
                let hours = MOST_TIME.as_secs() / 3600;
                Some(io::Error::other(format!("it takes longer than {hours} hours")))
            }
        };
        if let Some(error) = failed {
            tracing::info!(%error, "a download did not come to its end");
            // Nobody may be there to be told.
            tokio::select! {
                biased;
                _ = sender.send(Err(error)) => {}
                () = clock.sleep(SILENCE) => {}
            }
        }
        drop(slot);
    });
    Body::from_stream(stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece: Piece| (piece, receiver))
    }))
}

/// Sends the whole file. The last bytes are held back until the storage has said that it was all:
/// a client that has got as many as were announced takes them for right.
async fn send(
    mut file: Given<DiskOf>,
    to: &mpsc::Sender<Piece>,
    clock: &dyn Clock,
) -> io::Result<()> {
    let mut pieces = Sender { to, clock, pace: Pace::default(), held: None };
    let failed = |error| io::Error::other(with_causes(&error));
    while let Some(piece) = file.next().await.map_err(failed)? {
        pieces.send(piece).await?;
    }
    pieces.finish().await
}

fn client_is_gone() -> io::Error {
    io::Error::other("the client is gone")
}

struct Sender<'a> {
    to: &'a mpsc::Sender<Piece>,
    clock: &'a dyn Clock,
    pace: Pace,
    held: Option<Bytes>,
}

impl Sender<'_> {
    /// Sends the piece before this one.
    async fn send(&mut self, piece: Bytes) -> io::Result<()> {
        match self.held.replace(piece) {
            Some(before) => self.give(before).await,
            None => Ok(()),
        }
    }

    async fn finish(mut self) -> io::Result<()> {
        match self.held.take() {
            Some(last) => self.give(last).await,
            None => Ok(()),
        }
    }

    async fn give(&mut self, piece: Bytes) -> io::Result<()> {
        let too_slow = |slow: TooSlow| io::Error::new(io::ErrorKind::TimedOut, slow);
        let length = piece.len();
        let sent = self.pace.wait(self.clock, self.to.send(Ok(piece))).await.map_err(too_slow)?;
        sent.map_err(|_| client_is_gone())?;
        self.pace.count(length).map_err(too_slow)
    }
}

#[cfg(test)]
mod tests {
    use pvc_images::{Places, Spool, Wanted};
    use pvc_model::disk_image::{Compression, DiskFormat};
    use pvc_testkit::TokioClock;
    use std::collections::VecDeque;

    use super::*;
    use crate::slots::Slots;

    struct Scripted {
        size: u64,
        pieces: VecDeque<(u64, &'static [u8])>,
        /// Whether it turns out at the end that the contents were not all there.
        is_lost: bool,
    }

    #[async_trait]
    impl Download for Scripted {
        fn size_bytes(&self) -> u64 {
            self.size
        }

        async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
            match self.pieces.pop_front() {
                Some((offset, bytes)) => Ok(Some((offset, Bytes::from_static(bytes)))),
                None if self.is_lost => {
                    Err(StorageError::TimedOut { doing: "reading it".to_owned(), seconds: 30 })
                }
                None => Ok(None),
            }
        }
    }

    /// A volume without end, of pieces of four KiB. Whether somebody reads it is counted.
    struct Endless {
        at: u64,
        _is_read: Arc<()>,
    }

    #[async_trait]
    impl Download for Endless {
        fn size_bytes(&self) -> u64 {
            1 << 50
        }

        async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
            let at = self.at;
            self.at += 4096;
            Ok(Some((at, Bytes::from_static(&[b'x'; 4096]))))
        }
    }

    async fn raw(download: Box<dyn Download>, compression: Option<Compression>) -> Given<DiskOf> {
        let wanted = Wanted { format: DiskFormat::Raw, compression };
        let nowhere = Spool { directory: "/nonexistent".into(), least_free_bytes: Some(0) };
        let turn = Places::default().turn(wanted).await;
        let disk = DiskOf::new(download, None);
        pvc_images::give(disk, turn, &nowhere).await.unwrap()
    }

    /// Time after which nobody reads the volume any more whose client takes so many bytes at a
    /// time, and then nothing for a while.
    async fn ended(takes: usize, pause: Duration) -> Duration {
        let (is_read, slots) = (Arc::new(()), Slots::new(2));
        let download = Endless { at: 0, _is_read: is_read.clone() };
        let clock = Arc::new(TokioClock::new());
        let slot = slots.take("a", "downloads").unwrap();
        let file = raw(Box::new(download), None).await;
        let body = body(file, clock.clone(), CancellationToken::new(), slot);
        let mut stream = body.into_data_stream();
        let begun = clock.monotonic();
        loop {
            let mut left = takes;
            while left > 0 {
                match futures::StreamExt::next(&mut stream).await {
                    Some(Ok(piece)) => left = left.saturating_sub(piece.len()),
                    other => {
                        assert!(other.is_none_or(|piece| piece.is_err()), "it never looks whole");
                        assert_eq!(Arc::strong_count(&is_read), 1);
                        tokio::task::yield_now().await;
                        slots.take("a", "downloads").expect("the slot is free again");
                        return clock.monotonic() - begun;
                    }
                }
            }
            clock.sleep(pause).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_too_little_is_given_up_and_the_volume_is_free() {
        for (takes, seconds) in [(1, 50), (4096, 119), (100_000, 60), (4096, 3600)] {
            let ended = ended(takes, Duration::from_secs(seconds)).await;
            assert!(ended <= Duration::from_secs(2 * 3600), "{takes} in {seconds} s: {ended:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_download_ends_before_what_it_reads_passes_for_something_left_behind() {
        let ended = ended(1 << 20, Duration::from_secs(60)).await;
        assert!(ended > Duration::from_secs(22 * 3600), "it is fast enough: {ended:?}");
        assert!(ended < Duration::from_secs(24 * 3600), "{ended:?}");
    }

    /// A volume whose second piece never comes. Whether somebody reads it is counted.
    struct Hanging {
        is_asked: bool,
        _is_read: Arc<()>,
    }

    #[async_trait]
    impl Download for Hanging {
        fn size_bytes(&self) -> u64 {
            1 << 30
        }

        async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
            match std::mem::replace(&mut self.is_asked, true) {
                false => Ok(Some((0, Bytes::from_static(b"first")))),
                true => std::future::pending().await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_free_as_soon_as_its_client_is_gone_however_long_its_next_piece_takes() {
        let (is_read, clock) = (Arc::new(()), Arc::new(TokioClock::new()));
        let download = Hanging { is_asked: false, _is_read: is_read.clone() };
        let slot = Slots::new(2).take("a", "downloads").unwrap();
        let file = raw(Box::new(download), None).await;
        let body = body(file, clock.clone(), CancellationToken::new(), slot);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&is_read), 2, "it is read");
        let gone = clock.monotonic();
        drop(body);
        while Arc::strong_count(&is_read) > 1 {
            assert_eq!(clock.monotonic(), gone, "nothing is waited for");
            tokio::task::yield_now().await;
        }
    }

    async fn read(
        size: u64,
        pieces: &[(u64, &'static [u8])],
        is_lost: bool,
        compression: Option<Compression>,
    ) -> (usize, bool) {
        let download = Scripted { size, pieces: pieces.iter().copied().collect(), is_lost };
        let slot = Slots::new(2).take("a", "downloads").unwrap();
        let clock = Arc::new(TokioClock::new());
        let file = raw(Box::new(download), compression).await;
        let body = body(file, clock, CancellationToken::new(), slot);
        let mut stream = body.into_data_stream();
        let mut count = 0;
        while let Some(piece) = futures::StreamExt::next(&mut stream).await {
            match piece {
                Ok(bytes) => count += bytes.len(),
                Err(_) => return (count, false),
            }
        }
        (count, true)
    }

    #[tokio::test]
    async fn all_of_a_file_is_sent() {
        assert_eq!(read(5 << 20, &[(1 << 20, b"middle")], false, None).await, (5 << 20, true));
        assert_eq!(read(6, &[(0, b"all"), (3, b"of")], false, None).await, (6, true));
        assert_eq!(read(0, &[], false, None).await, (0, true));
        for compression in Compression::ALL {
            let (count, is_whole) = read(5 << 20, &[(9, b"data")], false, Some(compression)).await;
            assert!(is_whole && count > 0 && count < 100_000, "{compression:?}: {count}");
        }
    }

    #[tokio::test]
    async fn a_download_that_fails_at_its_end_never_looks_whole() {
        for pieces in [&[(0, &b"all"[..]), (3, b"of")][..], &[(2, b"end")], &[]] {
            let (count, is_whole) = read(5, pieces, true, None).await;
            assert!(!is_whole && count < 5, "{pieces:?}: {count}");
            for compression in Compression::ALL {
                let (_, is_whole) = read(5, pieces, true, Some(compression)).await;
                assert!(!is_whole, "{compression:?} of {pieces:?}");
            }
        }
    }

    #[tokio::test]
    async fn pieces_that_do_not_fit_end_it() {
        for pieces in [&[(4, &b"xy"[..])][..], &[(2, b"b"), (0, b"a")], &[(u64::MAX, b"x")]] {
            assert!(!read(5, pieces, false, None).await.1, "{pieces:?}");
        }
    }
}
