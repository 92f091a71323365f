//! Ends of the certificates in a file in PEM. It may hold a private key as well, so that nothing of
//! its contents is ever repeated.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// Number of certificates in a file that are looked at: more than any chain has.
const MOST: usize = 100;

/// Reason why nobody knows when the certificates of a file end, as a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("it is broken: a section of it has no end, or is not in Base64")]
    Section,
    /// Counted from 1.
    #[error("certificate {number} in it cannot be parsed")]
    Certificate { number: usize },
    #[error("it has more than {} certificates", MOST)]
    TooMany,
}

/// Returns the moments at which the certificates in `file` end, in its order and in seconds since
/// the epoch; none if it holds none. What else stands in the file is left out of account.
pub(crate) fn ends(file: &[u8]) -> Result<Vec<u64>, Unreadable> {
    let mut ends = Vec::new();
    for section in CertificateDer::pem_slice_iter(file) {
        // Its error quotes the line, which may be that of a key.
        let certificate = section.map_err(|_| Unreadable::Section)?;
        if ends.len() == MOST {
            return Err(Unreadable::TooMany);
        }
        let number = ends.len() + 1;
        ends.push(end(&certificate).ok_or(Unreadable::Certificate { number })?);
    }
    Ok(ends)
}

/// End of a certificate in DER.
fn end(certificate: &[u8]) -> Option<u64> {
    let certificate = Certificate::from_der(certificate).ok()?;
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
        ] {
            assert_eq!(ends(&file), Ok(expected), "{}", String::from_utf8_lossy(&file));
        }
    }

    #[test]
    fn a_file_without_a_certificate_has_no_end() {
        let garbage: Vec<u8> = (0..=255).collect();
        for file in [&b""[..], KEY, &garbage, b"no certificate\n"] {
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
    fn nothing_of_a_broken_key_is_repeated() {
        // Without the newlines that belong into it.
        let file = b"-----BEGIN PRIVATE KEY-----c2VjcmV0-----END PRIVATE KEY----\n";
        let words = ends(file).map_err(|why| why.to_string());
        assert!(!format!("{words:?}").contains("c2VjcmV0"), "{words:?}");
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
