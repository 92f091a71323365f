//! TLS, set up only when a connection asks for it: a provider and some hundred root certificates
//! cost more than a whole command over plain HTTP.

use std::sync::Arc;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// Where distributions keep the roots they trust; the first that exists is used.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

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
