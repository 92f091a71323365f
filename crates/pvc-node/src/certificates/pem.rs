//! Ends of the certificates in a file in PEM. It may hold a private key as well, so that nothing of
//! its contents is ever repeated.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode as _;

/// Number of certificates in a file that are looked at: more than the bundle of a system has.
const MOST: usize = 1000;

/// The line that a certificate begins with.
const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Reason why nobody knows when the certificates of a file end, as a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("it is broken: a certificate in it has no end, or is not in Base64")]
    Section,
    /// Counted from 1.
    #[error("certificate {number} in it cannot be parsed")]
    Certificate { number: usize },
    #[error("it has more than {} certificates", MOST)]
    TooMany,
}

/// Returns the moments at which the certificates in `file` end, in its order and in seconds since
/// the epoch; none if it holds none. What else stands in the file is left out of account, also what
/// is broken: a key that OpenSSL has encrypted is no Base64.
pub(crate) fn ends(file: &[u8]) -> Result<Vec<u64>, Unreadable> {
    let mut ends = Vec::new();
    for section in sections(file) {
        // Its error quotes the line, which may be that of a key.
        let certificate =
            CertificateDer::from_pem_slice(section).map_err(|_| Unreadable::Section)?;
        if ends.len() == MOST {
            return Err(Unreadable::TooMany);
        }
        let number = ends.len() + 1;
        ends.push(end(&certificate).ok_or(Unreadable::Certificate { number })?);
    }
    Ok(ends)
}

/// Sections of `file` that begin like certificates, each up to the next one.
fn sections(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    let begins_line = |index: usize| {
        index.checked_sub(1).is_none_or(|before| matches!(file[before], b'\n' | b'\r'))
    };
    let starts: Vec<usize> = file
        .windows(BEGIN.len())
        .enumerate()
        .filter(|(index, window)| *window == BEGIN && begins_line(*index))
        .map(|(index, _)| index)
        .collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([file.len()]).collect();
    starts.into_iter().zip(ends).map(move |(start, end)| &file[start..end])
}

/// End of a certificate in DER. Programs take some that RFC 5280 does not allow, such as one with
/// a longer serial number.
fn end(certificate: &[u8]) -> Option<u64> {
    let certificate = CertificateInner::<Raw>::from_der(certificate).ok()?;
    Some(certificate.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Certificates that OpenSSL has made as the manual says (security).
    const LEAF: &[u8] = include_bytes!("../../tests/node/certificates/leaf.pem");
    const AUTHORITY: &[u8] = include_bytes!("../../tests/node/certificates/authority.pem");

    /// 2026-12-25 12:00:00 UTC, and 2060-01-01 00:00:00 UTC, which is written in another form.
    const END_OF_LEAF: u64 = 1_798_200_000;
    const END_OF_AUTHORITY: u64 = 2_840_140_800;

    /// A section in which a key would be.
    const KEY: &[u8] = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";

    /// A key that OpenSSL has encrypted, and one without the newlines that belong into it.
    const ENCRYPTED_KEY: &[u8] =
        b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n\
          c2VjcmV0\n-----END RSA PRIVATE KEY-----\n";
    const BROKEN_KEY: &[u8] = b"-----BEGIN PRIVATE KEY-----c2VjcmV0-----END PRIVATE KEY----\n";

    fn certificate_of(contents: &str) -> Vec<u8> {
        format!("-----BEGIN CERTIFICATE-----\n{contents}\n-----END CERTIFICATE-----\n").into_bytes()
    }

    #[test]
    fn the_ends_are_those_of_the_certificates_in_their_order() {
        for (file, expected) in [
            (LEAF.to_vec(), vec![END_OF_LEAF]),
            (AUTHORITY.to_vec(), vec![END_OF_AUTHORITY]),
            ([LEAF, AUTHORITY].concat(), vec![END_OF_LEAF, END_OF_AUTHORITY]),
            ([KEY, LEAF].concat(), vec![END_OF_LEAF]),
            ([&b"subject=CN = hv1\r\n\r\n"[..], LEAF, KEY].concat(), vec![END_OF_LEAF]),
            ([ENCRYPTED_KEY, LEAF].concat(), vec![END_OF_LEAF]),
            ([LEAF, ENCRYPTED_KEY, AUTHORITY].concat(), vec![END_OF_LEAF, END_OF_AUTHORITY]),
            ([BROKEN_KEY, LEAF].concat(), vec![END_OF_LEAF]),
        ] {
            assert_eq!(ends(&file), Ok(expected), "{}", String::from_utf8_lossy(&file));
        }
    }

    #[test]
    fn a_file_without_a_certificate_has_no_end() {
        let garbage: Vec<u8> = (0..=255).collect();
        for file in [&b""[..], KEY, ENCRYPTED_KEY, BROKEN_KEY, &garbage, b"no certificate\n"] {
            assert_eq!(ends(file), Ok(Vec::new()), "{}", String::from_utf8_lossy(file));
        }
    }

    #[test]
    fn what_begins_like_a_certificate_and_is_none_is_reported() {
        let cut = &LEAF[..LEAF.len() / 2];
        let (first, second) =
            (Unreadable::Certificate { number: 1 }, Unreadable::Certificate { number: 2 });
        for (file, expected) in [
            (cut.to_vec(), Unreadable::Section),
            (certificate_of("*"), Unreadable::Section),
            (certificate_of(""), first),
            (certificate_of("c2VjcmV0"), first),
            ([LEAF, &certificate_of("MAA=")].concat(), second),
            (LEAF.repeat(MOST + 1), Unreadable::TooMany),
        ] {
            assert_eq!(ends(&file), Err(expected), "{}", String::from_utf8_lossy(&file));
        }
        assert_eq!(ends(&LEAF.repeat(MOST)).map(|ends| ends.len()), Ok(MOST));
    }

    #[test]
    fn a_serial_number_that_is_too_long_is_left_out_of_account() {
        // One of 2 bytes becomes one of 26, and the lengths around it follow.
        let leaf = CertificateDer::from_pem_slice(LEAF).unwrap();
        let (outer, inner, serial) = (4, 8, 13);
        assert_eq!((leaf[1], leaf[5], leaf[serial]), (0x82, 0x82, 0x02), "a form that is known");
        let mut long = leaf.to_vec();
        long[serial + 1] += 24;
        long.splice(serial + 3..serial + 3, [0x55; 24]);
        for end_of_length in [outer, inner] {
            let at = end_of_length - 2;
            let length = u16::from_be_bytes([long[at], long[at + 1]]) + 24;
            long[at..end_of_length].copy_from_slice(&length.to_be_bytes());
        }
        assert_eq!(end(&long), Some(END_OF_LEAF));
    }

    #[test]
    fn a_damaged_certificate_is_no_panic() {
        let read = CertificateDer::from_pem_slice(LEAF).unwrap();
        for length in 0..read.len() {
            assert_eq!(end(&read[..length]), None, "{length} bytes of it");
        }
        for index in 0..read.len() {
            for bit in 0..8 {
                let mut damaged = read.to_vec();
                damaged[index] ^= 1 << bit;
                // Most of it says nothing about the end.
                let _ = end(&damaged);
            }
        }
    }
}
