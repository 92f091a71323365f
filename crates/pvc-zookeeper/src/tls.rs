//! ZooKeeper over TLS: the servers' `secureClientPort`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Certificates by which the servers are known, and we to them. The files are read anew for each
/// connection, so that renewed ones count without a restart; while they cannot be used, the last
/// good ones do.
#[derive(Clone)]
pub struct Tls {
    files: Arc<Files>,
    last_good: Arc<Mutex<TlsConnector>>,
    /// The reading of the files that is under way: one at a time, however long it takes.
    reading: Arc<tokio::sync::Mutex<Option<Reading>>>,
}

type Reading = JoinHandle<Result<TlsConnector, TlsError>>;

/// Time for which a connection waits for the files: a disk that hangs is no reason to have none.
const READ: Duration = Duration::from_millis(500);

struct Files {
    authorities: PathBuf,
    /// A certificate with its key.
    own: Option<(PathBuf, PathBuf)>,
}

/// Reason for which the files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{path}`: {why}")]
    File { path: String, why: String },
    #[error("`{path}` holds no certificate")]
    Empty { path: String },
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    /// Loads the files: trusts servers whose certificates, for the names by which they are reached,
    /// are signed by one of those in `authorities`; shows `own` to them, a certificate with its
    /// key. All are files in PEM.
    ///
    /// # Errors
    /// If a file cannot be read, holds nothing, or the key is of another certificate.
    pub fn load(authorities: &Path, own: Option<(&Path, &Path)>) -> Result<Tls, TlsError> {
        let own = own.map(|(certificate, key)| (certificate.to_owned(), key.to_owned()));
        let files = Files { authorities: authorities.to_owned(), own };
        let last_good = Arc::new(Mutex::new(files.read()?));
        Ok(Tls { files: Arc::new(files), last_good, reading: Arc::default() })
    }

    /// Speaks TLS with `server`, which is `host:port`, on `stream`.
    pub(crate) async fn over(
        &self,
        server: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        self.connector().await.connect(name, stream).await
    }

    async fn connector(&self) -> TlsConnector {
        let read = self.read().await;
        let mut last_good = self.last_good.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Some(Ok(Ok(connector))) => *last_good = connector,
            Some(Ok(Err(error))) => {
                tracing::warn!(%error, "the files for TLS to ZooKeeper are of no use; those read \
                                        before are used");
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "the files for TLS to ZooKeeper were not read");
            }
            None => tracing::warn!(
                "the files for TLS to ZooKeeper take long to be read; those read before are used"
            ),
        }
        last_good.clone()
    }

    /// `None` if that takes too long.
    async fn read(&self) -> Option<Result<Result<TlsConnector, TlsError>, JoinError>> {
        let mut reading = self.reading.lock().await;
        // What nobody waited for may be of long ago.
        reading.take_if(|reading| reading.is_finished());
        let files = self.files.clone();
        let task = reading.get_or_insert_with(|| spawn_blocking(move || files.read()));
        let read = timeout(READ, task).await.ok()?;
        *reading = None;
        Some(read)
    }
}

impl Files {
    fn read(&self) -> Result<TlsConnector, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authorities)? {
            roots.add(certificate)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let read =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
                builder.with_client_auth_cert(certificates(certificate)?, read)?
            }
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| unreadable(path, &error))?;
    match found.is_empty() {
        true => Err(TlsError::Empty { path: path.display().to_string() }),
        false => Ok(found),
    }
}

fn unreadable(path: &Path, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::File { path: path.display().to_string(), why: error.to_string() }
}
