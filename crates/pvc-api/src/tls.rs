//! TLS: our certificate and key, HTTP/1.1 alone.

use std::sync::Arc;

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::settings::TlsFiles;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {what} `{}` cannot be read", path.display())]
    File {
        what: &'static str,
        path: std::path::PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate file `{}` holds no certificate", path.display())]
    Empty { path: std::path::PathBuf },
    #[error("the certificate `{}` and the key `{}` cannot be \
             used", certificate.display(), key.display())]
    Unusable {
        certificate: std::path::PathBuf,
        key: std::path::PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// Reads what the files describe, ready to serve.
pub fn read(files: &TlsFiles) -> Result<RustlsConfig, TlsError> {
    server_config(files).map(|config| RustlsConfig::from_config(Arc::new(config)))
}

/// Takes over what the files describe now. New connections use it; if the files are wrong, nothing
/// changes.
pub fn reload(files: &TlsFiles, running: &RustlsConfig) -> Result<(), TlsError> {
    server_config(files).map(|config| running.reload_from_config(Arc::new(config)))
}

fn server_config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(|chain| chain.collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(|source| TlsError::File {
        what: "certificate",
        path: files.certificate.clone(),
        source,
    })?;
    if chain.is_empty() {
        return Err(TlsError::Empty { path: files.certificate.clone() });
    }
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key =
        key.map_err(|source| TlsError::File { what: "key", path: files.key.clone(), source })?;
    let unusable = |source| TlsError::Unusable {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        source,
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(unusable)?;
    // Uploads are ten times faster than over HTTP/2 with its usual windows.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
