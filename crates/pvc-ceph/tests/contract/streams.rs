//! Uploads and downloads.

use super::*;

pub(crate) async fn upload(ceph: &Ceph, volume: &VolumeId, size_bytes: u64) -> Box<dyn Upload> {
    let streams = ceph.storage.streams().unwrap();
    streams.upload(volume, size_bytes, false).await.unwrap()
}

async fn download(
    ceph: &Ceph,
    volume: &VolumeId,
    snapshot: Option<&SnapshotName>,
) -> Box<dyn Download> {
    ceph.storage.streams().unwrap().download(volume, snapshot).await.unwrap()
}

/// A volume of 32 MiB, more than what is read ahead.
async fn upload_full(ceph: &Ceph, volume: &VolumeId) {
    let mut upload = upload(ceph, volume, 32 << 20).await;
    for turn in 0..32_u8 {
        let piece = vec![turn + 1; MOST_PIECE_BYTES];
        upload.write(u64::from(turn) << 20, piece.into()).await.unwrap();
    }
    upload.commit().await.unwrap();
}

pub(crate) async fn zeros_that_are_written_over_data_count(ceph: &Ceph) {
    let disk = id("vms/zeros");
    let mut upload = upload(ceph, &disk, 8 << 20).await;
    upload.write(3, vec![1; 200_000].into()).await.unwrap();
    upload.write(70, vec![0; 100_001].into()).await.unwrap();
    upload.write(1000, Bytes::from_static(b"x")).await.unwrap();
    upload.commit().await.unwrap();
    let read = ceph.read(&disk, 0, 200_003).await;
    let mut expected = [vec![0; 3], vec![1; 200_000]].concat();
    expected[70..100_071].fill(0);
    expected[1000] = b'x';
    assert!(read == expected, "the last one counts, also of zeros");
}

/// Copies are asked as well. The common contract says nothing of it: `used_bytes` of a volume is
/// unknown here.
pub(crate) async fn what_was_not_written_has_no_objects(ceph: &Ceph) {
    let (disk, copy) = (id("vms/thin"), id("vms/thin-copy"));
    let mut upload = upload(ceph, &disk, 256 << 20).await;
    upload.write(64 << 20, Bytes::from_static(b"x")).await.unwrap();
    for mib in [0_u64, 100, 200] {
        upload.write(mib << 20, vec![0; MOST_PIECE_BYTES].into()).await.unwrap();
    }
    upload.commit().await.unwrap();
    ceph.storage.clone_volume(&disk, &copy.volume, false, &Course::default()).await.unwrap();
    for volume in [disk, copy] {
        let used = ceph.used_bytes(&volume);
        assert!((1..=8 << 20).contains(&used), "{volume}: {used} bytes");
        ceph.storage.remove(&volume).await.unwrap();
    }
}

/// The image is removed while it is filled, as by somebody who thinks that it is left over.
pub(crate) async fn an_upload_that_failed_leaves_its_name_alone(ceph: &Ceph) {
    let (disk, left) = (id("vms/lost"), id("vms/lost.0123456789abcdef.partial"));
    ceph.storage.create(&left, 1 << 20, false).await.unwrap();
    let (mut first, second) =
        (upload(ceph, &disk, 1 << 20).await, upload(ceph, &disk, 1 << 20).await);
    let names = |volumes: Vec<VolumeInfo>| {
        let names = volumes.into_iter().map(|info| info.id);
        names.filter(|id| id.volume.as_str().starts_with("lost")).collect::<Vec<_>>()
    };
    let listed = names(ceph.storage.volumes(&disk.pool).await.unwrap());
    assert!(listed.len() == 3 && listed.contains(&left), "it may be whole: {listed:?}");
    assert!(listed.iter().all(|id| id.volume.is_reserved()), "{listed:?}");
    first.write(0, Bytes::from_static(b"x")).await.unwrap();
    ceph.storage.create(&disk, 1 << 20, false).await.unwrap();
    let taken = first.commit().await;
    assert!(matches!(taken, Err(StorageError::VolumeExists { .. })), "{taken:?}");
    drop(second);
    until(async || {
        names(ceph.storage.volumes(&disk.pool).await.unwrap()) == [disk.clone(), left.clone()]
    })
    .await;
    ceph.storage.remove(&left).await.unwrap();
}

pub(crate) async fn a_download_is_of_the_moment_it_began(ceph: &Ceph) {
    let disk = id("vms/full");
    upload_full(ceph, &disk).await;
    let mut whole = download(ceph, &disk, None).await;
    ceph.write(&disk, 31 << 20, &[99; 16]).await;
    let mut turn = 0;
    while let Some((offset, bytes)) = whole.next().await.unwrap() {
        assert_eq!((offset, bytes.len()), (u64::from(turn) << 20, MOST_PIECE_BYTES));
        turn += 1;
        assert!(bytes.iter().all(|byte| *byte == turn), "{offset} was changed");
    }
    assert_eq!(turn, 32);
    assert_eq!(ceph.storage.volume(&disk).await.unwrap().snapshots, []);

    let mut cut = download(ceph, &disk, None).await;
    assert!(cut.next().await.unwrap().is_some());
    assert_eq!(ceph.storage.volume(&disk).await.unwrap().snapshots.len(), 1);
    drop(cut);
    until(async || ceph.storage.volume(&disk).await.unwrap().snapshots.is_empty()).await;
}

/// Ceph reads it as zeros from then on, and finds nothing wrong with that.
pub(crate) async fn a_snapshot_that_is_removed_meanwhile_is_no_download(ceph: &Ceph) {
    let (disk, snapshot) = (id("vms/full"), SnapshotName::new("gone"));
    for is_made_anew in [false, true] {
        ceph.storage.snapshot(&disk, &snapshot).await.unwrap();
        let mut download = download(ceph, &disk, Some(&snapshot)).await;
        assert!(download.next().await.unwrap().is_some());
        ceph.storage.remove_snapshot(&disk, &snapshot).await.unwrap();
        if is_made_anew {
            ceph.storage.snapshot(&disk, &snapshot).await.unwrap();
        }
        let error = loop {
            match download.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it is taken for whole"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StorageError::NoSnapshot { .. }), "{error}");
        assert!(download.next().await.is_err(), "nor is it when asked again");
    }
}

pub(crate) async fn until(is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < deadline, "it does not come to be so");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Also of an image with a map of its differences, and of snapshots that others have made.
pub(crate) async fn a_snapshot_holds_what_was_there_and_is_no_more(ceph: &Ceph) {
    const OBJECT: u64 = 4 << 20;
    let plain = id("vms/held");
    ceph.storage.create(&plain, 16 * OBJECT, false).await.unwrap();
    ceph.rbd(&[
        "create",
        "--size=64M",
        "--image-feature=layering,exclusive-lock,object-map,fast-diff",
        "--pool=vms",
        "--image=mapped",
    ]);
    for (volume, written) in [(plain, 4096), (id("vms/mapped"), OBJECT)] {
        let mut guest = Guest::of(&ceph.config(), "libvirt", &volume);
        let image = format!("--image={}", volume.volume);
        let snapshot = |name: &str| {
            ceph.rbd(&["snap", "create", "--pool=vms", &image, &format!("--snap={name}")]);
        };
        let held = async || {
            let usage = ceph.storage.snapshot_usage(&volume).await.unwrap();
            let of = |usage: &SnapshotUsage| {
                (usage.name.to_string(), usage.held_bytes, usage.own_bytes.unwrap())
            };
            usage.iter().map(of).collect::<Vec<_>>()
        };
        let expected = |all: &[(&str, u64, u64)]| {
            let of = |(name, held, own): &(&str, u64, u64)| ((*name).to_owned(), *held, *own);
            all.iter().map(of).collect::<Vec<_>>()
        };
        let bytes = [1; 4096];
        assert_eq!(guest.write(0, &bytes), "ok");
        assert_eq!(guest.write(OBJECT, &bytes), "ok");
        snapshot("-s \u{1b}1");
        // What nothing was written to holds nothing, nor does what was written where nothing was.
        assert_eq!(guest.write(2 * OBJECT, &bytes), "ok");
        let first = "-s \u{1b}1";
        assert_eq!(held().await, expected(&[(first, 0, 0)]), "{volume}");
        assert_eq!(guest.write(0, &bytes), "ok");
        assert_eq!(held().await, expected(&[(first, written, written)]), "{volume}");
        snapshot("s2");
        assert_eq!(guest.write(0, &bytes), "ok");
        assert_eq!(guest.write(OBJECT, &bytes), "ok");
        // The second object is in the first snapshot as well.
        let both = expected(&[(first, written, written), ("s2", 2 * written, written)]);
        assert_eq!(held().await, both, "{volume}");
    }
}
