//! Certificates of this node and of what runs on it: a fault says so before one ends.
//!
//! What is looked at are the files. Whether a program has read a renewed one yet is not seen.

mod pem;

use std::path::Path;
use std::time::Duration;

use pvc_model::certificate::{CertificateFile, Gravity, fault};
use pvc_ports::{Files, FilesError};
use pvc_role::{Alarm, Context, REFRESH, Trouble};
use tokio_util::sync::CancellationToken;

use crate::settings::WatchedCertificates;

const FAULT: &str = "CERTIFICATE";

/// Time between two looks. While there is a fault it is looked as often as that is renewed, so that
/// it goes soon after the mend.
const EVERY: Duration = Duration::from_secs(3600);

/// Time until a second look at files of which one cannot be read: it may just be replaced.
const AGAIN: Duration = Duration::from_secs(10);

/// Time that the disk may take for all of them.
const DEADLINE: Duration = Duration::from_secs(30);

/// Most that is read of a file. A certificate has some 2 KB.
const MOST_BYTES: u64 = 64 << 10;

/// Works until `end`.
pub(crate) async fn run(
    context: Context,
    watched: Vec<WatchedCertificates>,
    end: CancellationToken,
) {
    let (mut alarm, mut pause) = (Alarm::default(), EVERY);
    let mut logged: Option<Gravity> = None;
    let mut turns = context.turns(&end);
    while turns.next(pause).await {
        let mut found = look(&context, &watched).await;
        if found.iter().flatten().any(|file| file.ends.is_err()) {
            if !context.rest(AGAIN, &end).await {
                return;
            }
            found = look(&context, &watched).await;
        }
        let Some(files) = found else {
            tracing::warn!(
                "the files with certificates could not be read within {} s",
                DEADLINE.as_secs()
            );
            pause = EVERY;
            continue;
        };
        let found = fault(context.name(), context.ports.clock.wall().as_secs(), &files);
        pause = if found.is_some() { REFRESH } else { EVERY };
        let gravity = found.as_ref().map(|fault| fault.gravity);
        let trouble =
            found.map(|fault| Trouble { delta: fault.gravity.delta(), message: fault.message });
        if let Some(trouble) = trouble.as_ref().filter(|_| gravity > logged) {
            tracing::warn!("{}", trouble.message);
        }
        logged = gravity;
        context.alarm_own(FAULT, &mut alarm, trouble).await;
    }
}

/// Looks at all files; `None` if the disk does not answer.
async fn look(context: &Context, watched: &[WatchedCertificates]) -> Option<Vec<CertificateFile>> {
    let all = async {
        let mut found = Vec::new();
        for file in watched {
            found.extend(look_at(context.ports.files.as_ref(), file).await);
        }
        found
    };
    context.within(DEADLINE, all).await
}

/// Looks at one file; `None` if it is not there and need not be.
async fn look_at(files: &dyn Files, watched: &WatchedCertificates) -> Option<CertificateFile> {
    let WatchedCertificates { path, used_by, is_named } = watched;
    let ends = match read(files, path).await {
        Err(FilesError::Missing { .. }) if !is_named => return None,
        Err(error) => Err(in_words(&error)),
        Ok(bytes) => pem::ends(&bytes).map_err(|error| error.to_string()),
    };
    Some(CertificateFile { path: path.display().to_string(), used_by: *used_by, ends })
}

/// Reads a file that may be a link: operators link certificates elsewhere by custom.
async fn read(files: &dyn Files, path: &Path) -> Result<Vec<u8>, FilesError> {
    let path = files.follow(path).await?;
    files.read(&path, MOST_BYTES).await
}

/// The error as a clause about a file that was named before.
fn in_words(error: &FilesError) -> String {
    match error {
        FilesError::Missing { .. } => "it does not exist".to_owned(),
        FilesError::TooLarge { most_bytes, .. } => format!("it has more than {most_bytes} bytes"),
        FilesError::Failed { done, source, .. } => format!("it could not be {done}: {source}"),
        other => other.to_string(),
    }
}
