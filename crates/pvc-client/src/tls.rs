//! TLS, set up only when a connection asks for it: a provider and some hundred root certificates
//! cost more than a whole command over plain HTTP.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Files in which distributions keep the roots they trust; the first that exists is used.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Time that a server may take to show that it speaks TLS; it has just answered something else.
const GREETING: Duration = Duration::from_secs(1);

/// Whether a TLS handshake failed because what came back is no TLS at all.
pub fn is_plain_answer(error: &ureq::Error) -> bool {
    let is_it = |error: &rustls::Error| {
        matches!(error, rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType))
    };
    match error {
        ureq::Error::Rustls(error) => is_it(error),
        ureq::Error::Io(error) => {
            error.get_ref().and_then(|error| error.downcast_ref()).is_some_and(is_it)
        }
        _ => false,
    }
}

/// Whether the server of a base that begins with `http:` answers a TLS greeting with TLS. For a
/// server whose answer was no HTTP.
pub fn is_spoken_at(base: &str) -> bool {
    let Some(rest) = base.strip_prefix("http://") else { return false };
    greeted(rest.split('/').next().unwrap_or(rest)).unwrap_or(false)
}

fn greeted(authority: &str) -> std::io::Result<bool> {
    let with_port = |authority: &str| authority.to_socket_addrs();
    let address = with_port(authority).or_else(|_| with_port(&format!("{authority}:80")))?.next();
    let Some(address) = address else { return Ok(false) };
    let mut stream = TcpStream::connect_timeout(&address, GREETING)?;
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(GREETING))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::from(address.ip());
    let mut greeting = Vec::new();
    rustls::ClientConnection::new(Arc::new(config), name)
        .map_err(std::io::Error::other)?
        .write_tls(&mut greeting)?;
    stream.write_all(&greeting)?;
    let mut record = [0; 2];
    stream.read_exact(&mut record)?;
    // A handshake or an alert, of any version of TLS.
    Ok(matches!(record, [0x15 | 0x16, 0x03]))
}

/// The TLS settings of a connection; `verify` off accepts any certificate.
pub fn config(verify: bool) -> TlsConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .disable_verification(!verify)
        .root_certs(if verify { system_roots() } else { no_roots() })
        .build()
}

/// The certificates this machine trusts, or those of `SSL_CERT_FILE`.
fn system_roots() -> RootCerts {
    let chosen = std::env::var("SSL_CERT_FILE").ok();
    let files = chosen.iter().map(String::as_str).chain(BUNDLES);
    let Some(bundle) = files.into_iter().find_map(|file| std::fs::read(file).ok()) else {
        return no_roots();
    };
    let certificates: Vec<Certificate<'static>> = parse_pem(&bundle)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    RootCerts::Specific(Arc::new(certificates))
}

fn no_roots() -> RootCerts {
    RootCerts::Specific(Arc::new(Vec::new()))
}
