//! Contract of every [`VolumeStreams`].

#![expect(clippy::disallowed_methods, reason = "what a real storage clears away takes real time")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{MOST_PIECE_BYTES, Storage, StorageError, Upload, VolumeStreams};
use tokio::time::Instant;

use crate::storage::StorageFixture;

/// Time in which nothing is left of what was dropped.
const SETTLED: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

/// Runs the whole suite.
///
/// # Panics
/// When the streams of the storage break the contract, or it has none.
pub async fn volume_streams_contract(fixture: &dyn StorageFixture) {
    let storage = fixture.storage();
    let pool = PoolName::parse("streams").expect("the suite's names are good");
    storage.create_pool(&pool).await.expect("a new pool can be made");
    let suite = Suite { fixture, storage, pool };
    suite.a_volume_is_seen_when_it_is_committed_and_not_before().await;
    suite.what_was_not_written_is_zeros_and_takes_no_room().await;
    suite.a_dropped_upload_leaves_nothing().await;
    suite.of_a_discarded_upload_nothing_is_listed_any_more().await;
    suite.a_name_that_is_taken_meanwhile_is_not_replaced().await;
    suite.a_piece_beyond_the_end_is_refused_and_the_upload_goes_on().await;
    suite.an_upload_is_refused_as_a_new_volume_is().await;
    suite.what_goes_in_comes_out().await;
    suite.a_volume_in_use_is_not_downloaded_and_its_snapshot_is().await;
}

struct Suite<'a> {
    fixture: &'a dyn StorageFixture,
    storage: Arc<dyn Storage>,
    pool: PoolName,
}

impl Suite<'_> {
    fn volume(&self, name: &str) -> VolumeId {
        VolumeId { pool: self.pool.clone(), volume: VolumeName::new(name) }
    }

    fn streams(&self) -> &dyn VolumeStreams {
        self.storage.streams().expect("this storage has streams")
    }

    async fn upload(&self, volume: &VolumeId, size_bytes: u64) -> Box<dyn Upload> {
        self.streams().upload(volume, size_bytes, false).await.expect("there is room")
    }

    async fn is_absent(&self, volume: &VolumeId) {
        let error = self.storage.volume(volume).await.expect_err("nobody sees it");
        assert!(matches!(error, StorageError::NoVolume { .. }), "{error}");
        let listed = self.storage.volumes(&self.pool).await.expect("volumes are listed");
        assert!(listed.iter().all(|info| info.id != *volume), "{listed:?}");
    }

    async fn free_bytes(&self) -> u64 {
        self.storage.pool(&self.pool).await.expect("it is there").free_bytes
    }

    /// Bytes that are stored, and the names of all that is in the pool.
    async fn state(&self) -> (u64, Vec<String>) {
        let stored = self.storage.pool(&self.pool).await.expect("it is there").stored_bytes;
        let listed = self.storage.volumes(&self.pool).await.expect("volumes are listed");
        (stored, listed.iter().map(|info| info.id.to_string()).collect())
    }

    /// Every piece, as offsets and bytes.
    async fn download(&self, volume: &VolumeId, snapshot: Option<&str>) -> Vec<(u64, Bytes)> {
        let snapshot = snapshot.map(SnapshotName::new);
        let begun = self.streams().download(volume, snapshot.as_ref()).await;
        let mut download = begun.expect("it can be downloaded");
        let mut pieces = Vec::new();
        let mut end = 0;
        while let Some((offset, bytes)) = download.next().await.expect("it can be read") {
            assert!(offset >= end, "{offset} comes after {end}");
            assert!(!bytes.is_empty() && bytes.len() <= MOST_PIECE_BYTES, "{}", bytes.len());
            end = offset + bytes.len() as u64;
            assert!(end <= download.size_bytes());
            pieces.push((offset, bytes));
        }
        let after = download.next().await.expect("it can be read");
        assert!(after.is_none(), "nothing comes after the end");
        pieces
    }

    async fn a_volume_is_seen_when_it_is_committed_and_not_before(&self) {
        let id = self.volume("seen");
        let mut upload = self.upload(&id, 10_000_019).await;
        write(&mut upload, 0, b"begin").await;
        self.is_absent(&id).await;
        // In any order, and the last one counts.
        write(&mut upload, 10_000_016, b"end").await;
        write(&mut upload, 5_000_000, b"wrong").await;
        write(&mut upload, 5_000_000, b"right").await;
        upload.commit().await.expect("nobody was faster");
        assert_eq!(self.storage.volume(&id).await.expect("it is there").size_bytes, 10_000_019);
        for (offset, expected) in
            [(0, &b"begin\0"[..]), (5_000_000, b"right\0"), (10_000_016, b"end")]
        {
            assert_eq!(self.fixture.read(&id, offset, expected.len()).await, expected);
        }
    }

    async fn what_was_not_written_is_zeros_and_takes_no_room(&self) {
        let id = self.volume("sparse");
        let mut upload = self.upload(&id, 1 << 30).await;
        write(&mut upload, 1 << 29, b"x").await;
        // Zeros that somebody wrote take no room, either.
        write(&mut upload, 1 << 28, &vec![0; MOST_PIECE_BYTES]).await;
        upload.commit().await.expect("nobody was faster");
        assert_eq!(self.fixture.read(&id, 1 << 28, 4).await, [0; 4]);
        let used = self.storage.volume(&id).await.expect("it is there").used_bytes;
        assert!(used.is_none_or(|used| used < MOST_PIECE_BYTES as u64), "{used:?}");
        let pieces = self.download(&id, None).await;
        let bytes: usize = pieces.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes <= MOST_PIECE_BYTES, "{bytes} bytes of 1 GiB");
        self.storage.remove(&id).await.expect("it can be removed");
    }

    async fn a_dropped_upload_leaves_nothing(&self) {
        let id = self.volume("dropped");
        let (stored, names) = self.state().await;
        let mut upload = self.upload(&id, 1 << 20).await;
        write(&mut upload, 0, &[1; 100_000]).await;
        drop(upload);
        self.is_absent(&id).await;
        // A storage may need a moment, and its figures may be of before it, too: also those of the
        // beginning, which may lack what was stored then.
        let begun = Instant::now();
        loop {
            let (stored_now, names_now) = self.state().await;
            if stored_now < stored + 100_000 && names_now == names {
                break;
            }
            assert!(begun.elapsed() < SETTLED, "{stored_now} bytes after {stored}; {names_now:?}");
            tokio::time::sleep(POLL).await;
        }
        self.upload(&id, 1 << 20).await.commit().await.expect("the name is free");
        self.storage.remove(&id).await.expect("it can be removed");
    }

    async fn of_a_discarded_upload_nothing_is_listed_any_more(&self) {
        let id = self.volume("discarded");
        let (_, names) = self.state().await;
        let mut upload = self.upload(&id, 1 << 20).await;
        write(&mut upload, 0, &[1; 100_000]).await;
        upload.discard().await;
        assert_eq!(self.state().await.1, names);
    }

    async fn a_name_that_is_taken_meanwhile_is_not_replaced(&self) {
        let id = self.volume("taken");
        let (mut first, mut second) = (self.upload(&id, 4096).await, self.upload(&id, 8192).await);
        write(&mut first, 0, b"first").await;
        write(&mut second, 0, b"second").await;
        first.commit().await.expect("nobody was faster");
        let error = second.commit().await.expect_err("somebody was faster");
        assert!(
            matches!(&error, StorageError::VolumeExists { volume } if *volume == id),
            "{error}"
        );
        assert_eq!(self.fixture.read(&id, 0, 6).await, b"first\0");
        assert_eq!(self.storage.volume(&id).await.expect("it is there").size_bytes, 4096);
    }

    async fn a_piece_beyond_the_end_is_refused_and_the_upload_goes_on(&self) {
        let id = self.volume("beyond");
        let mut upload = self.upload(&id, 4096).await;
        for (offset, bytes) in [(4096, &b"x"[..]), (4090, b"1234567"), (u64::MAX, b"x")] {
            let error = upload.write(offset, Bytes::copy_from_slice(bytes)).await;
            let error = error.expect_err("it would not fit");
            assert!(matches!(error, StorageError::BeyondEnd { size_bytes: 4096, .. }), "{error}");
        }
        write(&mut upload, 4090, b"123456").await;
        for _ in 0..2 {
            upload.finish().await.expect("also when it is ended already");
        }
        upload.commit().await.expect("nobody was faster");
        assert_eq!(self.fixture.read(&id, 4090, 6).await, b"123456");
    }

    async fn an_upload_is_refused_as_a_new_volume_is(&self) {
        let streams = self.streams();
        let refused = async |id: &VolumeId, size_bytes| {
            let begun = streams.upload(id, size_bytes, false).await;
            begun.err().unwrap_or_else(|| panic!("`{id}` of {size_bytes} bytes is taken"))
        };
        let bad = refused(&self.volume("../x"), 4096).await;
        assert!(matches!(bad, StorageError::BadName(_)), "{bad}");
        let large = refused(&self.volume("large"), 1 << 60).await;
        let is_full =
            matches!(large, StorageError::NoRoom { .. } | StorageError::BeyondSafe { .. });
        assert!(is_full, "{large}");
        let (id, free) = (self.volume("beyond-safe"), self.free_bytes().await);
        let beyond = refused(&id, free / 10 * 9).await;
        assert!(matches!(beyond, StorageError::BeyondSafe { .. }), "{beyond}");
        let forced = streams.upload(&id, free / 10 * 9, true).await;
        forced.expect("force goes beyond the safe mark").discard().await;
        self.is_absent(&id).await;
        let nowhere = VolumeId { pool: PoolName::new("nowhere"), volume: VolumeName::new("x") };
        let nowhere = refused(&nowhere, 4096).await;
        assert!(matches!(nowhere, StorageError::NoPool { .. }), "{nowhere}");
    }

    async fn what_goes_in_comes_out(&self) {
        let (id, copy) = (self.volume("in"), self.volume("out"));
        let mut upload = self.upload(&id, 40 << 20).await;
        for turn in 0..20_u8 {
            let bytes = vec![turn + 1; MOST_PIECE_BYTES];
            write(&mut upload, u64::from(turn) * (2 << 20) + 7, &bytes[..1_000_003]).await;
        }
        upload.commit().await.expect("nobody was faster");
        let pieces = self.download(&id, None).await;
        let mut upload = self.upload(&copy, 40 << 20).await;
        for (offset, bytes) in pieces {
            upload.write(offset, bytes).await.expect("it fits");
        }
        upload.commit().await.expect("nobody was faster");
        for offset in (0..40 << 20).step_by(MOST_PIECE_BYTES) {
            let (one, other) = (
                self.fixture.read(&id, offset, MOST_PIECE_BYTES).await,
                self.fixture.read(&copy, offset, MOST_PIECE_BYTES).await,
            );
            assert!(one == other, "they differ between {offset} and the next MiB");
        }
    }

    async fn a_volume_in_use_is_not_downloaded_and_its_snapshot_is(&self) {
        let id = self.volume("in");
        let name = SnapshotName::new("before");
        self.storage.snapshot(&id, &name).await.expect("it can be snapshotted");
        let held = self.fixture.hold(&id).await;
        let error = self.streams().download(&id, None).await.err().expect("somebody has it");
        assert!(matches!(error, StorageError::InUse { .. }), "{error}");
        self.fixture.write(&id, 7, b"changed").await;
        let pieces = self.download(&id, Some("before")).await;
        let at_seven = pieces.iter().find_map(|(offset, bytes)| {
            let at = usize::try_from(7_u64.checked_sub(*offset)?).ok()?;
            bytes.get(at..at + 7)
        });
        assert_eq!(at_seven, Some(&[1; 7][..]));
        drop(held);
        let none = SnapshotName::new("none");
        let error = self.streams().download(&id, Some(&none)).await.err().expect("there is none");
        assert!(matches!(error, StorageError::NoSnapshot { .. }), "{error}");
        let absent = self.volume("absent");
        let error = self.streams().download(&absent, None).await.err().expect("there is none");
        assert!(matches!(error, StorageError::NoVolume { .. }), "{error}");
    }
}

async fn write(upload: &mut Box<dyn Upload>, offset_bytes: u64, bytes: &[u8]) {
    upload.write(offset_bytes, Bytes::copy_from_slice(bytes)).await.expect("it fits");
}
