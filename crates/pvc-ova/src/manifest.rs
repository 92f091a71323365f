//! The manifest: checksums of the files of an OVA, a line for each: `SHA256(disk.vmdk)= 1f2e…`.

use std::collections::BTreeMap;

use pvc_model::shown;
use sha1::Sha1;
use sha1::digest::DynDigest;
use sha2::{Sha256, Sha512};

/// The most files that have a checksum.
const MOST_FILES: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Sha1,
    Sha256,
    Sha512,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Sha1, Kind::Sha256, Kind::Sha512];

    fn word(self) -> &'static str {
        match self {
            Kind::Sha1 => "SHA1",
            Kind::Sha256 => "SHA256",
            Kind::Sha512 => "SHA512",
        }
    }

    fn hash(self) -> Box<dyn DynDigest + Send> {
        match self {
            Kind::Sha1 => Box::new(Sha1::default()),
            Kind::Sha256 => Box::new(Sha256::default()),
            Kind::Sha512 => Box::new(Sha512::default()),
        }
    }
}

/// Reason why a manifest, or a file by its manifest, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest is no text")]
    NoText,
    #[error("line {line} of the manifest is not `SHA256(FILE)= CHECKSUM`")]
    Line { line: usize },
    #[error("line {line} of the manifest: {word} is a kind of checksum that is not known")]
    Kind { line: usize, word: String },
    #[error("the manifest has more than {MOST_FILES} lines")]
    TooMany,
    #[error("the manifest has several checksums of `{file}`")]
    Twice { file: String },
    #[error("`{file}` has another checksum than the manifest says: {word} {is}")]
    Differs { file: String, word: &'static str, is: String },
    #[error("the manifest follows `{file}` and has a {word} checksum of it, which was not made")]
    TooLate { file: String, word: &'static str },
}

/// Checksums that files are to have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    files: BTreeMap<String, (Kind, String)>,
}

impl Manifest {
    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// If there is a line that is none of a manifest.
    pub fn parse(text: &[u8]) -> Result<Self, ManifestError> {
        let text = std::str::from_utf8(text).map_err(|_| ManifestError::NoText)?;
        let mut manifest = Manifest::default();
        for (at, line) in text.lines().enumerate() {
            let (line, number) = (line.trim(), at + 1);
            if line.is_empty() {
                continue;
            }
            let Some((word, file, sum)) = parts(line) else {
                return Err(ManifestError::Line { line: number });
            };
            let Some(kind) = Kind::ALL.into_iter().find(|kind| word == kind.word()) else {
                return Err(ManifestError::Kind { line: number, word: shown(&word) });
            };
            if manifest.files.len() >= MOST_FILES {
                return Err(ManifestError::TooMany);
            }
            let sum = sum.to_ascii_lowercase();
            if manifest.files.insert(file.to_owned(), (kind, sum)).is_some() {
                return Err(ManifestError::Twice { file: shown(file) });
            }
        }
        Ok(manifest)
    }

    /// Compares a file with its checksum, if there is one.
    ///
    /// # Errors
    /// If it has another.
    pub fn check(&self, file: &str, made: &Made) -> Result<(), ManifestError> {
        let Some((kind, wanted)) = self.files.get(file) else { return Ok(()) };
        let (file, word) = (shown(file), kind.word());
        match made.0.get(kind) {
            Some(sum) if sum == wanted => Ok(()),
            Some(sum) => Err(ManifestError::Differs { file, word, is: sum.clone() }),
            None => Err(ManifestError::TooLate { file, word }),
        }
    }
}

/// The word, the file and the checksum of a line.
fn parts(line: &str) -> Option<(String, &str, &str)> {
    let (word, rest) = line.split_once('(')?;
    let (file, sum) = rest.rsplit_once(')')?;
    let sum = sum.trim().strip_prefix('=')?.trim();
    let is_sum = !sum.is_empty() && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_sum.then(|| (word.trim().to_ascii_uppercase().replace('-', ""), file, sum))
}

/// Checksums of a file, in the making.
pub struct Sums(Vec<(Kind, Box<dyn DynDigest + Send>)>);

/// Checksums of a file, as hexadecimal digits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made(BTreeMap<Kind, String>);

impl Sums {
    /// The checksums that are to be made of a file: the one that the manifest has, or, as long as
    /// there is none, the two kinds that are usual, for the manifest may follow.
    pub fn of(file: &str, manifest: Option<&Manifest>) -> Self {
        let kinds = match manifest {
            Some(manifest) => manifest.files.get(file).map(|(kind, _)| *kind).into_iter().collect(),
            None => vec![Kind::Sha1, Kind::Sha256],
        };
        Sums(kinds.into_iter().map(|kind| (kind, kind.hash())).collect())
    }

    pub fn update(&mut self, bytes: &[u8]) {
        for (_, hash) in &mut self.0 {
            hash.update(bytes);
        }
    }

    pub fn finish(self) -> Made {
        let hexadecimal =
            |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Made(self.0.into_iter().map(|(kind, hash)| (kind, hexadecimal(&hash.finalize()))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(manifest: Option<&Manifest>) -> Made {
        let mut sums = Sums::of("a.vmdk", manifest);
        sums.update(b"di");
        sums.update(b"sk");
        sums.finish()
    }

    #[test]
    fn a_file_has_the_checksum_of_its_line_or_is_refused() {
        let all = made(None);
        for kind in [Kind::Sha1, Kind::Sha256] {
            let sum = &all.0[&kind];
            for line in [
                format!("{}(a.vmdk)= {sum}\n", kind.word()),
                format!("\r\n{} (a.vmdk) = {}\r\n", kind.word().to_lowercase(), sum.to_uppercase()),
            ] {
                let manifest = Manifest::parse(line.as_bytes()).unwrap();
                manifest.check("a.vmdk", &all).unwrap();
                let only = made(Some(&manifest));
                assert_eq!(only.0.keys().collect::<Vec<_>>(), [&kind], "no other is made");
                manifest.check("a.vmdk", &only).unwrap();
                let other = Sums::of("a.vmdk", Some(&manifest)).finish();
                let refused = manifest.check("a.vmdk", &other).unwrap_err();
                assert!(refused.to_string().starts_with("`a.vmdk` has another checksum"));
                manifest.check("b.vmdk", &other).unwrap();
            }
        }
    }

    #[test]
    fn a_kind_that_is_not_made_before_it_is_asked_for_is_refused() {
        let before = made(None);
        let manifest = Manifest::parse(b"SHA512(a.vmdk)= 00").unwrap();
        let refused = manifest.check("a.vmdk", &before).unwrap_err();
        assert!(matches!(refused, ManifestError::TooLate { .. }), "{refused}");
        let refused = manifest.check("a.vmdk", &made(Some(&manifest))).unwrap_err();
        assert!(matches!(refused, ManifestError::Differs { .. }), "{refused}");
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        for (text, why) in [
            (&b"\xff"[..], "is no text"),
            (b"a.vmdk", "line 1"),
            (b"SHA1(a)= 12\nSHA1(b) 12", "line 2"),
            (b"SHA1(a)= xy", "line 1"),
            (b"SHA1(a)=", "line 1"),
            (b"MD5(a)= 12", "MD5 is a kind"),
            (b"SHA1(a)= 12\nSHA256(a)= 12", "several checksums of `a`"),
        ] {
            let refused = Manifest::parse(text).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let many: String = (0..=MOST_FILES).map(|at| format!("SHA1(f{at})= 00\n")).collect();
        assert_eq!(Manifest::parse(many.as_bytes()), Err(ManifestError::TooMany));
    }
}
