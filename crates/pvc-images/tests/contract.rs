//! Images as the real `qemu-img` makes them, whole and cut, and those that mean harm.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
#![allow(clippy::disallowed_methods, reason = "these tests are about files and programs")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::process::Command;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_images::{Announced, MOST_PIECE_BYTES, Places, Sent, Source, Target, take};
use pvc_model::disk_image::DiskFormat;

struct Pieces(VecDeque<Bytes>);

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
    let spool = tempfile::tempdir().unwrap();
    let announced = announced(format, Some(file.len() as u64));
    let mut disk = Memory::default();
    let taken = take(&mut source, &announced, spool.path(), &Places::default(), &mut disk).await;
    assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 0);
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
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_left_to_others_where_images_are_read() {
    let file = image(&disk(3 << 20), DiskFormat::Qcow2, &[]);
    let spool = tempfile::tempdir().unwrap();
    let folder = spool.path().display().to_string();
    run("mount", &["-t", "tmpfs", "-o", "size=64M", "tmpfs", &folder]);
    let mut source = Pieces(VecDeque::from([Bytes::from(file)]));
    let announced = announced(DiskFormat::Qcow2, None);
    let (places, mut disk) = (Places::default(), Memory::default());
    let taken = take(&mut source, &announced, spool.path(), &places, &mut disk).await;
    run("umount", &[&folder]);
    let error = taken.unwrap_err().to_string();
    assert_eq!(error, "less than 512 MiB are free in the directory in which images are read");
}

/// Whether a program of this process, or of one that it has started, reads an image.
fn readers() -> usize {
    let mut count = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        count += usize::from(line.starts_with("qemu-img") && line.contains("/proc/self/fd/0"));
    }
    count
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
    let spool = tempfile::tempdir().unwrap();
    let mut source = Pieces(VecDeque::from([Bytes::from(file)]));
    let announced = announced(DiskFormat::Qcow2, None);
    let places = Places::default();
    let mut disk = Stuck;
    let taking = take(&mut source, &announced, spool.path(), &places, &mut disk);
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
    assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 0);
}
