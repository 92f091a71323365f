//! Certificates of this node and of what runs on it: a fault says so before one ends.
//!
//! What is looked at are the files. Whether a program has read a renewed one yet is not seen.

mod pem;

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use pvc_model::certificate::{CertificateFile, Severity, fault};
use pvc_model::fault::fault_id;
use pvc_ports::{FileKind, Files, FilesError};
use pvc_role::{Alarm, Context, FaultReport, REFRESH};
use tokio_util::sync::CancellationToken;

use crate::settings::WatchedCertificates;

const FAULT: &str = "CERTIFICATE";

/// Time between two looks. While there is a fault it is looked as often as that is renewed, so that
/// it goes soon after the mend.
const EVERY: Duration = Duration::from_secs(3600);

/// Time until a second look at files of which one cannot be read: it may just be replaced.
const AGAIN: Duration = Duration::from_secs(10);

/// Time that the disk may take for one of them.
const DEADLINE: Duration = Duration::from_secs(10);

/// Most that is read of a file. A certificate has some 2 KB, the bundle of a system 200.
const MOST_BYTES: u64 = 1 << 20;

/// Works until `end`; without files no longer than until a fault of a former life is taken back.
pub(crate) async fn run(
    context: Context,
    watched: Vec<WatchedCertificates>,
    end: CancellationToken,
) {
    let (mut alarm, mut pause) = (Alarm::default(), EVERY);
    if watched.is_empty() {
        context.alarm_own(FAULT, &mut alarm, None::<FaultReport>).await;
        return;
    }
    let id = fault_id(FAULT, context.name().as_str());
    let mut logged: BTreeMap<String, Severity> = BTreeMap::new();
    let mut recorded = Recorded::default();
    let files = context.ports.files.as_ref();
    let mut looks: Vec<Look<'_>> =
        watched.iter().map(|watched| Look { watched, files, hangs: None }).collect();
    let mut turns = context.turns(&end);
    while turns.next(pause).await {
        let Some(mut found) = end.run_until_cancelled(look(&context, &mut looks)).await else {
            return;
        };
        if found.iter().any(|file| file.ends.is_err()) {
            if !context.rest(AGAIN, &end).await {
                return;
            }
            match end.run_until_cancelled(look(&context, &mut looks)).await {
                Some(again) => found = again,
                None => return,
            }
        }
        let nodes = context.store.view().nodes.len();
        let found = fault(context.name(), context.ports.clock.wall().as_secs(), &found);
        pause = if found.is_some() { REFRESH } else { EVERY };
        let Some(found) = found else {
            (logged, recorded) = (BTreeMap::new(), Recorded::default());
            context.alarm_own(FAULT, &mut alarm, None::<FaultReport>).await;
            continue;
        };
        if found.is_worse_than(&logged) {
            tracing::warn!("{}", found.message);
        }
        recorded.take_in(context.store.view().faults.get(&id).map(|fault| fault.message.as_str()));
        let is_news = recorded.files.as_ref().is_some_and(|before| found.is_worse_than(before));
        let report = FaultReport {
            delta: found.severity.delta(nodes),
            message: found.message.clone(),
            is_news,
        };
        if context.alarm_own(FAULT, &mut alarm, Some(report)).await {
            recorded.raised = Some((found.message, found.files.clone()));
        }
        logged = found.files;
    }
}

/// Memory of what operators were told: an acknowledged fault is news when a file is worse than
/// then.
#[derive(Debug, Default)]
struct Recorded {
    /// Severities that are recorded; `None` until this life of the daemon has recorded some.
    files: Option<BTreeMap<String, Severity>>,
    /// The message that was raised last and its severities. In maintenance, or without the store,
    /// it is recorded nowhere.
    raised: Option<(String, BTreeMap<String, Severity>)>,
}

impl Recorded {
    /// Takes in the message of the fault that is recorded.
    fn take_in(&mut self, recorded: Option<&str>) {
        if let Some((message, files)) = self.raised.take()
            && recorded == Some(message.as_str())
        {
            self.files = Some(files);
        }
    }
}

/// A look at a file that may hang: it is waited for again then, and no second one is begun beside
/// it.
struct Look<'a> {
    watched: &'a WatchedCertificates,
    files: &'a dyn Files,
    hangs: Option<Looking<'a>>,
}

type Looking<'a> = Pin<Box<dyn Future<Output = Option<CertificateFile>> + Send + 'a>>;

impl<'a> Look<'a> {
    /// Looks at the file; `None` if it is not there and need not be.
    async fn file(&mut self, context: &Context) -> Option<CertificateFile> {
        let (files, watched) = (self.files, self.watched);
        let mut look: Looking<'a> = match self.hangs.take() {
            Some(look) => look,
            None => Box::pin(look_at(files, watched)),
        };
        if let Some(found) = context.within(DEADLINE, &mut look).await {
            return found;
        }
        self.hangs = Some(look);
        let why = format!("it could not be read within {} s", DEADLINE.as_secs());
        Some(of(watched, Err(why)))
    }
}

/// Looks at all files.
async fn look(context: &Context, looks: &mut [Look<'_>]) -> Vec<CertificateFile> {
    let mut found = Vec::new();
    for look in looks {
        found.extend(look.file(context).await);
    }
    found
}

/// Looks at one file; `None` if it is not there and need not be, or another is used.
async fn look_at(files: &dyn Files, watched: &WatchedCertificates) -> Option<CertificateFile> {
    if let Some(other) = &watched.unless
        && files.follow(other).await.is_ok()
    {
        return None;
    }
    let ends = match read(files, &watched.path).await {
        Err(FilesError::Missing { .. }) if is_link(files, &watched.path).await => {
            Err("it is a link that leads nowhere".to_owned())
        }
        Err(FilesError::Missing { .. }) if !watched.is_named => return None,
        Err(error) => Err(in_words(&error)),
        Ok(bytes) => pem::ends(&bytes).map_err(|error| error.to_string()),
    };
    Some(of(watched, ends))
}

fn of(watched: &WatchedCertificates, ends: Result<Vec<u64>, String>) -> CertificateFile {
    let WatchedCertificates { path, used_by, .. } = watched;
    CertificateFile { path: path.display().to_string(), used_by: *used_by, ends }
}

/// Reads a file that may be a link: operators link certificates elsewhere by custom.
async fn read(files: &dyn Files, path: &Path) -> Result<Vec<u8>, FilesError> {
    let path = files.follow(path).await?;
    files.read(&path, MOST_BYTES).await
}

async fn is_link(files: &dyn Files, path: &Path) -> bool {
    let found = files.look(path).await;
    matches!(found, Ok(Some(info)) if info.kind == FileKind::SymbolicLink)
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
