use std::collections::VecDeque;
use std::convert::Infallible;

use super::*;

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

fn announced(format: DiskFormat) -> Announced {
    let most_bytes = 64 << 20;
    Announced {
        format,
        file_bytes: None,
        sha256: None,
        has_known_end: true,
        is_meant_so: false,
        most_bytes,
    }
}

/// The bytes of a disk, too many to be printed.
#[derive(PartialEq)]
struct Disk(Vec<u8>);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a disk of {} bytes", self.0.len())
    }
}

/// The disk of a file that comes in pieces of this size, and what is said of it.
async fn taken(file: &[u8], piece: usize, announced: &Announced) -> Result<(Disk, Sent), String> {
    let mut source = Pieces(file.chunks(piece).map(Bytes::copy_from_slice).collect());
    let (mut disk, folder) = (Memory::default(), tempfile::tempdir().unwrap());
    let spool = Spool { directory: folder.path().to_owned(), least_free_bytes: Some(0) };
    let taken = take(&mut source, announced, &spool, &Places::default(), &mut disk).await;
    let sent = taken.map_err(|error| error.to_string())?;
    let mut disk = disk.0;
    disk.resize(usize::try_from(sent.disk_bytes).unwrap(), 0);
    Ok((Disk(disk), sent))
}

/// Data, a long hole, and data that ends within a sector.
fn disk() -> Vec<u8> {
    let data = |seed: u32, length: usize| {
        (0..length).scan(seed, |state, _| {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*state >> 24) as u8)
        })
    };
    data(3, 200_000).chain(std::iter::repeat_n(0, 3 << 20)).chain(data(9, 70_001)).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut encoder, &mut all).unwrap();
    all
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    liblzma::encode_all(bytes, 1).unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

#[tokio::test]
async fn a_raw_disk_comes_out_as_it_went_in_however_it_is_compressed_and_cut() {
    let disk = disk();
    for (name, file) in
        [("plain", disk.clone()), ("gzip", gzip(&disk)), ("xz", xz(&disk)), ("zstd", zstd(&disk))]
    {
        for piece in [1 << 16, 4099, file.len()] {
            let (out, sent) = taken(&file, piece, &announced(DiskFormat::Raw)).await.unwrap();
            assert!(out.0 == disk, "{name} in pieces of {piece}");
            assert_eq!(sent.file_bytes, file.len() as u64);
            assert_eq!((sent.crc32, sent.sha256), (crc32fast::hash(&file), None));
        }
    }
}

#[tokio::test]
async fn files_that_were_put_together_are_one_and_zeros_may_follow() {
    let parts = |pack: fn(&[u8]) -> Vec<u8>| [pack(b"one "), pack(b""), pack(b"two")].concat();
    for mut file in [parts(gzip), parts(xz), parts(zstd)] {
        let (out, _) = taken(&file, 7, &announced(DiskFormat::Raw)).await.unwrap();
        assert_eq!(out.0, b"one two");
        if !file.starts_with(&[0x28]) {
            file.extend([0; 512]);
            let (out, _) = taken(&file, 7, &announced(DiskFormat::Raw)).await.unwrap();
            assert_eq!(out.0, b"one two");
        }
        file.extend(b"and more");
        taken(&file, 7, &announced(DiskFormat::Raw)).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_compressed_file_that_is_cut_or_changed_is_refused() {
    let disk = disk();
    for (kind, file) in
        [("gzip", gzip(&disk)), ("xz", xz(&disk)), ("zstd", zstd_with_checksum(&disk))]
    {
        for cut in [1, 4, file.len() / 2, file.len() - 7] {
            let file = &file[..file.len() - cut];
            let refused = taken(file, 999, &announced(DiskFormat::Raw)).await;
            let error = refused.expect_err(&format!("{kind} without its last {cut} bytes"));
            assert!(error.starts_with("the file is no whole "), "{error}");
        }
        let mut changed = file.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 0x55;
        let refused = taken(&changed, 999, &announced(DiskFormat::Raw)).await;
        refused.expect_err(&format!("{kind} with a changed byte"));
    }
}

fn zstd_with_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn what_stands_for_nothing_or_for_too_much_is_refused() {
    let nothing = |pack: fn(&[u8]) -> Vec<u8>| pack(b"");
    for file in [vec![], nothing(gzip), nothing(xz), nothing(zstd)] {
        let error = taken(&file, 99, &announced(DiskFormat::Raw)).await.unwrap_err();
        assert_eq!(error, "the image describes a disk of 0 bytes");
    }
    let members = gzip(b"").repeat(300_000);
    let error = taken(&members, 1 << 16, &announced(DiskFormat::Raw)).await.unwrap_err();
    assert!(error.contains("stand for nothing"), "{error}");
    let mut small = announced(DiskFormat::Raw);
    small.most_bytes = 1000;
    for file in [vec![1; 1001], gzip(&[1; 1001]), zstd(&vec![0; 32 << 20])] {
        let error = taken(&file, 1 << 16, &small).await.unwrap_err();
        assert_eq!(error, "the image is of more than the 1000 bytes that the volume has");
    }
    assert_eq!(taken(&[1; 1000], 1 << 16, &small).await.unwrap().1.disk_bytes, 1000);
}

#[tokio::test]
async fn what_the_programs_make_at_their_best_is_taken() {
    let xz = liblzma::encode_all(&b"disk"[..], 9).unwrap();
    let zstd = zstd::encode_all(&b"disk"[..], 19).unwrap();
    for file in [xz, zstd] {
        assert_eq!(taken(&file, 99, &announced(DiskFormat::Raw)).await.unwrap().0.0, b"disk");
    }
}

#[tokio::test]
async fn a_window_larger_than_its_bound_is_refused() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    std::io::Write::write_all(&mut encoder, &vec![7; 1 << 20]).unwrap();
    let file = encoder.finish().unwrap();
    let error = taken(&file, 1 << 16, &announced(DiskFormat::Raw)).await.unwrap_err();
    assert!(error.starts_with("the file is no whole zstd file: "), "{error}");
    let options = liblzma::stream::LzmaOptions::new_preset(9).unwrap();
    let mut options = options;
    options.dict_size(128 << 20);
    let mut filters = liblzma::stream::Filters::new();
    filters.lzma2(&options);
    let check = liblzma::stream::Check::Crc64;
    let stream = liblzma::stream::Stream::new_stream_encoder(&filters, check).unwrap();
    let mut encoder = liblzma::read::XzEncoder::new_stream(&b"disk"[..], stream);
    let mut file = Vec::new();
    std::io::Read::read_to_end(&mut encoder, &mut file).unwrap();
    let error = taken(&file, 1 << 16, &announced(DiskFormat::Raw)).await.unwrap_err();
    assert!(error.starts_with("the file is no whole xz file: "), "{error}");
}

#[tokio::test]
async fn a_file_is_compared_with_what_was_announced() {
    let mut wanted = announced(DiskFormat::Raw);
    wanted.file_bytes = Some(4);
    wanted.sha256 = Some(Sha256::digest(b"disk").into());
    let (_, sent) = taken(b"disk", 3, &wanted).await.unwrap();
    assert_eq!(sent.sha256, wanted.sha256);
    let longer = taken(b"disks", 3, &wanted).await.unwrap_err();
    assert_eq!(longer, "the file has more than the 4 bytes that were announced");
    let shorter = taken(b"dis", 3, &wanted).await.unwrap_err();
    assert_eq!(shorter, "the file has 3 bytes, and 4 were announced");
    let other = taken(b"disc", 3, &wanted).await.unwrap_err();
    assert!(other.starts_with("the file has another checksum than was announced: "), "{other}");
}

#[tokio::test]
async fn a_raw_image_of_unknown_size_fills_the_volume_or_may_be_cut() {
    let most_bytes = 8;
    let piped = || Announced { has_known_end: false, most_bytes, ..announced(DiskFormat::Raw) };
    for file in [b"disk".to_vec(), gzip(b"disk"), zstd(b"disk")] {
        let error = taken(&file, 3, &piped()).await.unwrap_err();
        assert_eq!(
            error,
            "the raw image has 4 of the 8 bytes of the volume and may be cut: it was not said how \
             many it has"
        );
        let sized = Announced { file_bytes: Some(file.len() as u64), ..piped() };
        let hashed = Announced { sha256: Some(Sha256::digest(&file).into()), ..piped() };
        let meant = Announced { is_meant_so: true, ..piped() };
        for announced in [sized, hashed, meant] {
            assert_eq!(taken(&file, 3, &announced).await.unwrap().0.0, b"disk", "{announced:?}");
        }
    }
    assert_eq!(taken(b"all of i", 3, &piped()).await.unwrap().0.0, b"all of i");
}

#[tokio::test]
async fn an_image_that_is_sent_as_raw_by_mistake_is_refused() {
    let image = b"QFI\xfb\0\0\0\x03".repeat(100);
    let error = taken(&image, 3, &announced(DiskFormat::Raw)).await.unwrap_err();
    assert_eq!(error, "the image begins like one in format qcow2, and was sent as raw");
    let meant = Announced { is_meant_so: true, ..announced(DiskFormat::Raw) };
    assert_eq!(taken(&image, 3, &meant).await.unwrap().0.0, image);
}

#[tokio::test]
async fn what_a_decoder_has_made_that_died_is_no_disk() {
    let wanted = announced(DiskFormat::Raw);
    for takes_the_file in [true, false] {
        let mut source = Pieces([Bytes::from_static(b"disk")].into());
        let mut file = Counted::new(&mut source, &wanted);
        let (begin, _) = file.begin().await.ok().unwrap();
        let (input, mut taken) = tokio::sync::mpsc::channel(1);
        let (sender, output) = tokio::sync::mpsc::channel(1);
        sender.send(Ok(Part::Bytes(Bytes::from_static(b"di")))).await.unwrap();
        let dies = tokio::spawn(async move {
            while takes_the_file && taken.recv().await.is_some() {}
            drop(sender);
        });
        let mut target = Memory::default();
        let mut disk = RawDisk { announced: &wanted, target: &mut target };
        let decoder = Decoder { input, output };
        let decoded = decode::<Pieces, Memory>(&mut file, begin, decoder, &mut disk).await;
        assert_eq!(decoded.unwrap_err().to_string(), "the decoder of the file broke off");
        dies.await.unwrap();
    }
}

proptest::proptest! {
    #[test]
    fn no_file_makes_it_panic(
        magic in proptest::sample::select(vec![
            &b""[..], &[0x1f, 0x8b, 8], b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd",
        ]),
        rest in proptest::collection::vec(proptest::num::u8::ANY, 0..2000),
        piece in 1..500_usize,
    ) {
        let file = [magic, &rest].concat();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let _ = runtime.block_on(taken(&file, piece, &announced(DiskFormat::Raw)));
    }
}
