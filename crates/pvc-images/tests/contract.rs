//! Images as the real `qemu-img` makes them, whole and cut, and those that mean harm; and what we
//! have it make.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(clippy::disallowed_methods, reason = "these tests are about files and programs")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::process::Command;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_images::{
    Announced, Disk, GiveError, MOST_PIECE_BYTES, Places, Sent, Source, Spool, TakeError, Target,
    Wanted, give, give_within, take,
};
use pvc_model::disk_image::{Compression, DiskFormat};
use tempfile::TempDir;

struct Pieces(VecDeque<Bytes>);

/// A place for images in this folder, of which nothing is left to others: what is free on this
/// machine is no matter of these tests.
fn spool_in(folder: &TempDir) -> Spool {
    Spool { directory: folder.path().to_owned(), least_free_bytes: Some(0) }
}

/// A folder on a file system of its own.
struct Mounted(TempDir);

impl Mounted {
    /// An empty one of this size.
    fn with(size: &str) -> Mounted {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &path]);
        Mounted(folder)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run("umount", &[&self.0.path().display().to_string()]);
    }
}

fn is_empty(folder: &TempDir) -> bool {
    std::fs::read_dir(folder.path()).unwrap().next().is_none()
}

/// A disk in memory.
#[derive(Default)]
struct Memory(Vec<u8>);

#[async_trait]
impl Target for Memory {
    type Error = Infallible;

    async fn write(&mut self, at: u64, bytes: Bytes) -> Result<(), Infallible> {
        let at = usize::try_from(at).unwrap();
        assert!(at >= self.0.len() && bytes.len() <= MOST_PIECE_BYTES);
        assert!(bytes.iter().any(|byte| *byte != 0));
        self.0.resize(at, 0);
        self.0.extend_from_slice(&bytes);
        Ok(())
    }
}

#[async_trait]
impl Source for Pieces {
    type Error = Infallible;

    async fn next(&mut self) -> Result<Option<Bytes>, Infallible> {
        Ok(self.0.pop_front())
    }
}

const MOST: u64 = 64 << 20;

fn announced(format: DiskFormat, file_bytes: Option<u64>) -> Announced {
    let (sha256, has_known_end, is_meant_so) = (None, false, false);
    Announced { format, file_bytes, sha256, has_known_end, is_meant_so, most_bytes: MOST }
}

/// The disk of an image; the spool is empty after it.
async fn taken(file: &[u8], format: DiskFormat) -> Result<(Vec<u8>, Sent), String> {
    let mut source = Pieces(file.chunks(70_001).map(Bytes::copy_from_slice).collect());
    let folder = tempfile::tempdir().unwrap();
    let announced = announced(format, Some(file.len() as u64));
    let mut disk = Memory::default();
    let (spool, places) = (spool_in(&folder), Places::default());
    let taken = take(&mut source, &announced, &spool, &places, &mut disk).await;
    assert!(is_empty(&folder));
    let sent = taken.map_err(|error| error.to_string())?;
    let mut disk = disk.0;
    disk.resize(usize::try_from(sent.disk_bytes).unwrap(), 0);
    Ok((disk, sent))
}

fn run(program: &str, args: &[&str]) {
    let done = Command::new(program).args(args).output().unwrap();
    assert!(done.status.success(), "{program} {args:?}: {done:?}");
}

/// A raw disk of so many bytes: data at its begin, in its middle and at its end.
fn disk(length: usize) -> Vec<u8> {
    let mut disk = vec![0; length];
    let mut state = 1_u32;
    for at in [0, length / 2, length - length.min(100_000)] {
        for byte in disk[at..].iter_mut().take(100_000) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
    }
    disk
}

/// The image of a disk, as `qemu-img convert` makes it with these options.
fn image(disk: &[u8], format: DiskFormat, options: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("raw"), disk).unwrap();
    let (raw, made) = (path("raw"), path("image"));
    let convert = ["convert", "-f", "raw", "-O", format.as_str()];
    run("qemu-img", &[&convert[..], options, &[&raw, &made]].concat());
    std::fs::read(made).unwrap()
}

const KINDS: [(DiskFormat, &[&str]); 10] = [
    (DiskFormat::Qcow2, &[]),
    (DiskFormat::Qcow2, &["-c"]),
    (DiskFormat::Qcow2, &["-o", "compat=0.10,cluster_size=512"]),
    (DiskFormat::Qed, &[]),
    (DiskFormat::Vmdk, &[]),
    (DiskFormat::Vmdk, &["-o", "subformat=streamOptimized"]),
    (DiskFormat::Vdi, &[]),
    (DiskFormat::Vpc, &["-o", "force_size=on"]),
    (DiskFormat::Vpc, &["-o", "subformat=fixed,force_size=on"]),
    (DiskFormat::Vhdx, &[]),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_format_comes_out_as_the_disk_that_it_was_made_of() {
    for length in [3 << 20, (5 << 20) + 37 * 512] {
        let disk = disk(length);
        for (format, options) in KINDS {
            let file = image(&disk, format, options);
            let taken = taken(&file, format).await;
            let (out, _) = taken.unwrap_or_else(|error| panic!("{format} {options:?}: {error}"));
            assert!(out.len() - disk.len() < 1 << 20, "{format}: a disk may be rounded up");
            assert!(out.starts_with(&disk), "{format} {options:?} of {length} bytes");
            assert!(out[disk.len()..].iter().all(|byte| *byte == 0), "{format} {options:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_image_is_taken_as_well() {
    let disk = disk(3 << 20);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("image"), image(&disk, DiskFormat::Qcow2, &[])).unwrap();
    for (program, end) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        run(program, &["-q", "-k", &path("image")]);
        let file = std::fs::read(path(&format!("image.{end}"))).unwrap();
        assert!(taken(&file, DiskFormat::Qcow2).await.unwrap().0 == disk, "{program}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_disk_is_a_disk() {
    for (format, options) in KINDS {
        let file = image(&vec![0; 3 << 20], format, options);
        let (out, _) = taken(&file, format).await.unwrap_or_else(|error| {
            panic!("{format} {options:?} of {} bytes: {error}", file.len())
        });
        assert!(out.len() >= 3 << 20 && out.iter().all(|byte| *byte == 0), "{format} {options:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_cut_is_refused_or_lacks_nothing_of_the_disk() {
    let disk = disk((5 << 20) + 37 * 512);
    for (format, options) in KINDS {
        let file = image(&disk, format, options);
        for cut in [1, 512, 4096, file.len() / 2] {
            // The end of a file may be none of the disk's.
            if let Ok((out, _)) = taken(&file[..file.len() - cut], format).await {
                assert!(out.starts_with(&disk), "{format} {options:?} without its last {cut}");
            }
        }
    }
}

fn made(make: impl FnOnce(&str)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image").display().to_string();
    make(&path);
    std::fs::read(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_names_other_files_is_refused() {
    let backed = |format: &'static str| {
        made(|path| {
            let backing = ["-b", "/etc/shadow", "-F", "raw"];
            run("qemu-img", &[&["create", "-f", format][..], &backing, &[path, "1M"]].concat());
        })
    };
    let beside = tempfile::tempdir().unwrap();
    let data = beside.path().join("data").display().to_string();
    let external = made(|path| {
        let options = format!("data_file={data},data_file_raw=on");
        run("qemu-img", &["create", "-f", "qcow2", "-o", &options, path, "1M"]);
    });
    let secret = "secret,id=key,data=abc";
    let encrypted = made(|path| {
        let options = "encrypt.format=luks,encrypt.key-secret=key,encrypt.iter-time=10";
        let create = ["create", "--object", secret, "-f", "qcow2", "-o", options, path, "1M"];
        run("qemu-img", &create);
    });
    let text = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\n\
                createType=\"monolithicFlat\"\nRW 1 FLAT \"/etc/shadow\" 0\n";
    for (format, file, why) in [
        (DiskFormat::Qcow2, backed("qcow2"), "backing file"),
        (DiskFormat::Qed, backed("qed"), "backing file"),
        (DiskFormat::Qcow2, external, "another file"),
        (DiskFormat::Qcow2, encrypted, "encrypted"),
        (DiskFormat::Vmdk, text.as_bytes().to_vec(), "other files"),
    ] {
        let error = taken(&file, format).await.unwrap_err();
        assert!(error.contains(why), "{format}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_absurd_numbers_is_refused() {
    let good = image(&disk(1 << 20), DiskFormat::Qcow2, &[]);
    let with = |at: usize, number: u64| {
        let mut bad = good.clone();
        bad[at..at + 8].copy_from_slice(&number.to_be_bytes());
        bad
    };
    // Size of the disk, offsets of the tables of mappings and of references.
    for bad in [with(24, 1 << 60), with(24, 0), with(40, 1 << 50), with(48, 3), with(48, 1 << 50)] {
        taken(&bad, DiskFormat::Qcow2).await.unwrap_err();
    }
    let large = made(|path| run("qemu-img", &["create", "-f", "qcow2", path, "65M"]));
    let error = taken(&large, DiskFormat::Qcow2).await.unwrap_err();
    let words = "the image is of a disk of 68157440 bytes, and the volume has 67108864";
    assert_eq!(error, words);
    // Whoever looks through its tables does so for five minutes.
    let huge = made(|path| run("qemu-img", &["create", "-f", "qcow2", path, "1P"]));
    let error = taken(&huge, DiskFormat::Qcow2).await.unwrap_err();
    let words = "the image is of a disk of 1125899906842624 bytes, and the volume has 67108864";
    assert_eq!(error, words);
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_left_to_others_where_images_are_read() {
    let file = image(&disk(3 << 20), DiskFormat::Qcow2, &[]);
    let folder = Mounted::with("64M");
    let spool = Spool { least_free_bytes: None, ..spool_in(&folder.0) };
    let mut source = Pieces(VecDeque::from([Bytes::from(file)]));
    let announced = announced(DiskFormat::Qcow2, None);
    let (places, mut disk) = (Places::default(), Memory::default());
    let taken = take(&mut source, &announced, &spool, &places, &mut disk).await;
    let error = taken.unwrap_err().to_string();
    assert_eq!(error, "less than 512 MiB are free in the directory in which images are read");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_image_is_blamed_for_a_full_directory() {
    // Little as a file, and more than the directory as a disk.
    let file = image(&vec![7; 16 << 20], DiskFormat::Qcow2, &["-c"]);
    let folder = Mounted::with("8M");
    let mut source = Pieces(VecDeque::from([Bytes::from(file)]));
    let announced = announced(DiskFormat::Qcow2, None);
    let (places, mut disk) = (Places::default(), Memory::default());
    let taken = take(&mut source, &announced, &spool_in(&folder.0), &places, &mut disk).await;
    let Err(TakeError::Image(error)) = taken else { panic!("it has no room") };
    assert!(!error.is_of_the_image(), "{error}");
    // Before anything of the disk is written: it would be within a second, and others write there.
    let words = "the image needs up to 16777216 bytes of room here";
    assert!(error.to_string().starts_with(words), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("api.images.directory"), "{hint}");
}

/// Number of programs that this process has started and whose command line says this.
fn programs(word: &str) -> usize {
    let own = std::process::id().to_string();
    let mut count = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name| std::fs::read(process.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let status = read("stat");
        // What follows the name: state and parent.
        let status = String::from_utf8_lossy(&status);
        let parent = status.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        let is_ours = parent == Some(&own);
        count += usize::from(is_ours && line.starts_with("qemu-img") && line.contains(word));
    }
    count
}

/// Programs that read an image.
fn readers() -> usize {
    programs("/proc/self/fd/0")
}

/// Programs that make an image.
fn writers() -> usize {
    programs("-O vmdk")
}

/// A disk that takes nothing.
struct Stuck;

#[async_trait]
impl Target for Stuck {
    type Error = Infallible;

    async fn write(&mut self, _: u64, _: Bytes) -> Result<(), Infallible> {
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_leaves_no_program_and_no_file() {
    let file = image(&disk(48 << 20), DiskFormat::Qcow2, &["-c"]);
    let folder = tempfile::tempdir().unwrap();
    let mut source = Pieces(VecDeque::from([Bytes::from(file)]));
    let announced = announced(DiskFormat::Qcow2, None);
    let places = Places::default();
    let mut disk = Stuck;
    let spool = spool_in(&folder);
    let taking = take(&mut source, &announced, &spool, &places, &mut disk);
    let begun = async {
        while readers() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = taking => panic!("nobody takes its pieces"),
        () = begun => {}
    }
    while readers() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(is_empty(&folder));
}

/// A disk that is read from memory.
struct OfMemory {
    disk: Vec<u8>,
    at: usize,
}

#[async_trait]
impl Disk for OfMemory {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.disk.len() as u64
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, Infallible> {
        while self.at < self.disk.len() {
            let at = self.at;
            self.at = self.disk.len().min(at + MOST_PIECE_BYTES);
            let piece = &self.disk[at..self.at];
            if piece.iter().any(|byte| *byte != 0) {
                return Ok(Some((at as u64, Bytes::copy_from_slice(piece))));
            }
        }
        Ok(None)
    }
}

/// The file of an image of the disk; the spool is empty after it.
async fn given(
    disk: &[u8],
    format: DiskFormat,
    compression: Option<Compression>,
) -> Result<Vec<u8>, GiveError<Infallible>> {
    let folder = tempfile::tempdir().unwrap();
    let disk = OfMemory { disk: disk.to_vec(), at: 0 };
    let turn = Places::default().turn(Wanted { format, compression }).await;
    let mut given = give(disk, turn, &spool_in(&folder)).await?;
    let announced = given.size_bytes();
    assert_eq!(announced.is_none(), compression.is_some());
    let mut file = Vec::new();
    while let Some(piece) = given.next().await? {
        assert!(piece.len() <= 2 * MOST_PIECE_BYTES);
        file.extend_from_slice(&piece);
    }
    assert!(announced.is_none_or(|size| size == file.len() as u64));
    assert!(is_empty(&folder));
    Ok(file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_comes_back_from_every_format_and_every_compression() {
    let ways = Compression::ALL.map(Some);
    for length in [3 << 20, (5 << 20) + 37 * 512] {
        let disk = disk(length);
        for format in DiskFormat::ALL {
            for compression in [None].into_iter().chain(ways) {
                let file = given(&disk, format, compression).await.unwrap();
                assert_eq!(Compression::of_beginning(&file), compression, "{format}");
                let (back, _) = taken(&file, format).await.unwrap();
                assert!(back == disk, "{format} {compression:?} of {length} bytes");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_takes_as_little_room_as_its_disk_and_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image").display().to_string();
    let data = disk(40 << 20);
    for (disk, least) in [(&data, 300_000), (&vec![0; 40 << 20], 0)] {
        for format in DiskFormat::ALL.into_iter().filter(|format| *format != DiskFormat::Raw) {
            let file = given(disk, format, None).await.unwrap();
            // Formats round what is written up to their blocks: VHDX has the largest, of 8 MiB.
            assert!(file.len() > least && file.len() < 33 << 20, "{format}: {}", file.len());
            std::fs::write(&path, file).unwrap();
            if matches!(format, DiskFormat::Qcow2 | DiskFormat::Qed | DiskFormat::Vdi) {
                run("qemu-img", &["check", "-q", "-f", format.as_str(), &path]);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_of_no_whole_sectors_is_filled_up_with_zeros() {
    let disk = disk((3 << 20) + 100);
    for format in [DiskFormat::Qcow2, DiskFormat::Vpc] {
        let file = given(&disk, format, None).await.unwrap();
        let (back, _) = taken(&file, format).await.unwrap();
        assert_eq!(back.len(), (3 << 20) + 512, "{format}");
        assert!(back.starts_with(&disk) && back[disk.len()..].iter().all(|byte| *byte == 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_looks_like_an_image_is_taken_for_what_it_is() {
    let mut disk = made(|path| {
        let backing = ["-b", "/etc/shadow", "-F", "raw"];
        run("qemu-img", &[&["create", "-f", "qcow2"][..], &backing, &[path, "1M"]].concat());
    });
    disk.resize(disk.len().next_multiple_of(512), 0);
    for format in [DiskFormat::Qcow2, DiskFormat::Vmdk, DiskFormat::Vhdx] {
        let file = given(&disk, format, None).await.unwrap();
        let (back, _) = taken(&file, format).await.unwrap();
        assert!(back == disk, "{format}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_left_to_others_where_images_are_made() {
    let folder = Mounted::with("64M");
    let spool = Spool { least_free_bytes: None, ..spool_in(&folder.0) };
    let disk = OfMemory { disk: disk(3 << 20), at: 0 };
    let wanted = Wanted { format: DiskFormat::Qcow2, compression: None };
    let turn = Places::default().turn(wanted).await;
    let given = give(disk, turn, &spool).await;
    let error = given.err().unwrap().to_string();
    assert_eq!(error, "less than 512 MiB are free in the directory in which images are read");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_grows_beyond_its_bound_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    for format in [DiskFormat::Qcow2, DiskFormat::Vmdk, DiskFormat::Vhdx] {
        for (most_bytes, is_made) in [(100_000, false), (80 << 20, true)] {
            let disk = OfMemory { disk: disk(3 << 20), at: 0 };
            let turn = Places::default().turn(Wanted { format, compression: None }).await;
            let given = give_within(disk, turn, most_bytes, &spool_in(&folder)).await;
            match given {
                Ok(_) => assert!(is_made, "{format} in {most_bytes} bytes"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!is_made && error.contains("File too large"), "{error}");
                    let words = format!("no image in format {format} could be made: ");
                    assert!(error.starts_with(&words), "{error}");
                }
            }
        }
    }
    assert!(is_empty(&folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_an_image_in_the_making_leaves_no_program_and_no_file() {
    let folder = tempfile::tempdir().unwrap();
    // Enough for the program to be seen.
    let disk = OfMemory { disk: vec![7; 256 << 20], at: 0 };
    let wanted = Wanted { format: DiskFormat::Vmdk, compression: None };
    let places = Places::default();
    let spool = spool_in(&folder);
    let giving = give(disk, places.turn(wanted).await, &spool);
    let begun = async {
        while writers() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = begun => {}
        given = giving => panic!("it was made before anybody saw that: {}", given.is_ok()),
    }
    while writers() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(is_empty(&folder));
    let disk = OfMemory { disk: vec![7; 1 << 20], at: 0 };
    let again = give(disk, places.turn(wanted).await, &spool).await;
    assert!(again.is_ok(), "its place is free again");
}
