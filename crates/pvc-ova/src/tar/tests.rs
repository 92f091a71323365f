use proptest::prelude::*;
use pvc_testkit::ova::{sealed, tar, tar_file, tar_header};

use super::*;

/// The files of an archive that comes in pieces of so many bytes, with their contents.
fn read_in(archive: &[u8], step: usize) -> Result<Vec<(String, Vec<u8>)>, TarError> {
    let mut reader = Archive::new(1 << 30);
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut is_open = false;
    for piece in archive.chunks(step) {
        let mut input = Bytes::copy_from_slice(piece);
        while let Some(part) = reader.next(&mut input)? {
            match part {
                Part::Begin(member) => {
                    assert!(!std::mem::replace(&mut is_open, true));
                    files.push((member.name, Vec::new()));
                }
                Part::Data(bytes) => {
                    assert!(is_open && !bytes.is_empty());
                    files.last_mut().unwrap().1.extend_from_slice(&bytes);
                }
                Part::End => assert!(std::mem::replace(&mut is_open, false)),
            }
        }
        assert!(input.is_empty());
    }
    reader.end()?;
    assert!(!is_open);
    Ok(files)
}

fn read(archive: &[u8]) -> Result<Vec<(String, Vec<u8>)>, TarError> {
    read_in(archive, 1 << 20)
}

#[track_caller]
fn refusal(archive: &[u8]) -> String {
    read(archive).unwrap_err().to_string()
}

fn named(archive: &[u8]) -> String {
    read(archive).unwrap().remove(0).0
}

fn file(name: &str, contents: &[u8]) -> (String, Vec<u8>) {
    (name.to_owned(), contents.to_vec())
}

/// A header that is an addition to the next one.
fn extra(kind: u8, text: &[u8]) -> Vec<u8> {
    let mut block = tar_header("././@LongLink", text.len() as u64, kind).to_vec();
    block.extend_from_slice(text);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

#[test]
fn files_come_in_their_order_and_an_end_may_be_missing() {
    let archive = tar(&[("a.ovf", b"text"), ("b", &[7; 1000]), ("./c", b"")]);
    let files = [file("a.ovf", b"text"), file("b", &[7; 1000]), file("c", b"")];
    assert_eq!(read(&archive).unwrap(), files);
    assert_eq!(read(&archive[..archive.len() - 1024]).unwrap(), files, "no end is marked");
    assert_eq!(read(&archive[..archive.len() - 512]).unwrap(), files);
    assert_eq!(read(&[archive.clone(), vec![0; 10240]].concat()).unwrap(), files);
    let folder = [tar_header("./", 0, b'5').to_vec(), archive].concat();
    assert_eq!(read(&folder).unwrap(), files, "which says nothing");
}

#[test]
fn names_and_sizes_of_pax_and_gnu_count() {
    let long = "n".repeat(200);
    let gnu = [extra(b'L', format!("{long}\0").as_bytes()), tar_file("nnn", b"x")].concat();
    assert_eq!(named(&gnu), long);
    // The length counts its own three digits.
    let record = |text: &str| format!("{} {text}\n", text.len() + 5).into_bytes();
    let path = record(&format!("path={long}"));
    assert_eq!(named(&[extra(b'x', &path), tar_file("nnn", b"x")].concat()), long);
    let mut large = tar_file("a", b"four");
    large[..512].copy_from_slice(&tar_header("a", 0, b'0'));
    let sized = [extra(b'x', b"9 size=4\n10 uid=12\n"), large.clone()].concat();
    assert_eq!(read(&sized).unwrap(), [file("a", b"four")]);
    let global = [extra(b'g', b"16 comment=hello"), tar_file("a", b"x")].concat();
    assert!(refusal(&global).contains("records of pax"), "no new line");
    let global = [extra(b'g', b"17 comment=hello\n"), tar_file("a", b"x")].concat();
    assert_eq!(named(&global), "a");
    let mut prefixed = tar_header("b", 0, b'0');
    prefixed[345..348].copy_from_slice(b"dir");
    assert!(refusal(&sealed(prefixed)).contains("`dir/b` in the archive is in a folder"));
    prefixed[257..265].copy_from_slice(b"ustar  \0");
    assert_eq!(named(&sealed(prefixed)), "b", "GNU tar has other things there");
    let mut binary = tar_header("a", 0, b'0');
    binary[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]);
    let binary = [&sealed(binary)[..], &large[512..]].concat();
    assert_eq!(read(&binary).unwrap(), [file("a", b"four")]);
}

#[test]
fn what_is_no_archive_of_an_ova_is_refused() {
    let whole = tar(&[("a", &[1; 600])]);
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    let mut second = tar(&[("a", b"x"), ("b", b"y")]);
    second[1024 + 150] = b'7';
    let mut odd = tar_header("a", 0, b'0');
    odd[124..136].copy_from_slice(b"00000000009\0");
    let mut huge = tar_header("a", 0, b'0');
    huge[124..136].copy_from_slice(&[0xff; 12]);
    let many: Vec<u8> = (0..1025).flat_map(|at| tar_file(&format!("f{at}"), b"")).collect();
    let no_archive = TarError::NoArchive.to_string();
    for (archive, why) in [
        (vec![], &*no_archive),
        (vec![0; 1024], &no_archive),
        (b"\x1f\x8b\x08 zipped".repeat(100), &no_archive),
        (whole[..300].to_vec(), &no_archive),
        (flipped, &no_archive),
        (whole[..900].to_vec(), "ends within a file, after 900 bytes"),
        (whole[..1000].to_vec(), "ends within a file"),
        (second, "a header has another checksum at byte 1024"),
        ([tar_file("a", b"x"), vec![9; 100]].concat(), "ends within a header"),
        ([whole.clone(), b"more".to_vec()].concat(), "something follows its end"),
        (sealed(odd).to_vec(), &no_archive),
        (sealed(huge).to_vec(), &no_archive),
        (tar_header("a", 1 << 31, b'0').to_vec(), "has 2147483648 bytes"),
        (tar_header("a", 0, b'1').to_vec(), "`a` in the archive is a link"),
        (tar_header("a", 0, b'2').to_vec(), "is a link"),
        (tar_header("a", 0, b'3').to_vec(), "is a device"),
        (tar_header("a", 0, b'6').to_vec(), "is a pipe"),
        (tar_header("a", 512, b'S').to_vec(), "is a sparse file"),
        (tar_header("a", 512, b'M').to_vec(), "of a kind that is not known"),
        (tar_header("a", 512, b'5').to_vec(), "a folder with contents"),
        (tar_header("../a", 0, b'0').to_vec(), "is in a folder"),
        (tar_header("..", 0, b'0').to_vec(), "is a folder"),
        (tar_header("/etc/shadow", 0, b'0').to_vec(), "is in a folder"),
        (tar_header("", 0, b'0').to_vec(), "is empty"),
        (tar_header("a\tb", 0, b'0').to_vec(), "control characters"),
        (many, "more than 1024 files"),
        (extra(b'x', b"22 GNU.sparse.major=1\n"), "a sparse file"),
        (extra(b'x', b"9 size=x\n"), "no number"),
        (extra(b'x', b"9999 path=x\n"), "records of pax are none"),
        (extra(b'g', b"9 size=4\n"), "one name or size"),
        (extra(b'L', b"a"), "ends within a header"),
        ([extra(b'L', b"a"), vec![0; 512]].concat(), "has no header behind it"),
        ([extra(b'L', b"../a"), tar_file("a", b"")].concat(), "is in a folder"),
        (tar_header("l", 1 << 20, b'L').to_vec(), "a size that it cannot have"),
    ] {
        let said = refusal(&archive);
        assert!(said.contains(why), "{why}: {said}");
    }
}

#[test]
fn an_archive_has_no_more_bytes_than_was_said() {
    let mut reader = Archive::new(1000);
    let mut input = Bytes::from(tar_header("a", 489, b'0').to_vec());
    let refused = reader.next(&mut input).unwrap_err();
    assert!(matches!(refused, TarError::TooLarge { size: 489, most: 488, .. }), "{refused}");
}

fn files() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let contents = prop::collection::vec(any::<u8>(), 0..2000);
    prop::collection::vec(("[a-z]{1,90}", contents), 1..5)
}

proptest! {
    #[test]
    fn an_archive_is_the_same_in_pieces_of_any_size(files in files(), step in 1_usize..3000) {
        let of: Vec<(&str, &[u8])> =
            files.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())).collect();
        prop_assert_eq!(read_in(&tar(&of), step).unwrap(), files);
    }

    #[test]
    fn bytes_that_were_changed_do_not_bring_the_reader_down(
        files in files(), step in 1_usize..3000, at in any::<prop::sample::Index>(),
        kind in any::<u8>(), byte in any::<u8>(),
    ) {
        let of: Vec<(&str, &[u8])> =
            files.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())).collect();
        let mut archive = tar(&of);
        let at = at.index(archive.len());
        archive[at] = byte;
        let _ = read_in(&archive, step);
        // With a header that is right in itself, whatever is in it.
        let mut header: [u8; 512] = archive[..512].try_into().unwrap();
        header[at % 512] = byte;
        header[156] = kind;
        archive[..512].copy_from_slice(&sealed(header));
        let _ = read_in(&archive, step);
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        let _ = read_in(&bytes, 700);
    }
}
