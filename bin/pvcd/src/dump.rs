//! Dumps of the records that one machine keeps by itself: taken while it runs, and gone on from
//! when the file of the records is damaged. They are what `pvc cluster backup` writes, and `pvc
//! cluster restore` reads them.

#![allow(clippy::disallowed_methods, reason = "its tests look at files of their own")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pvc_embedded::{Dump, Dumps, EmbeddedTree, OpenError};
use pvc_linux::OsRandom;
use pvc_ops::cluster;
use pvc_ports::{Clock, Tree};
use pvc_store::Store;
use tokio_util::sync::CancellationToken;

/// Interval at which a dump is taken, after that of the start.
const EVERY: Duration = Duration::from_secs(3600);

/// A dump that can be used, read and tried.
#[derive(Debug)]
struct Copy {
    dump: Dump,
    /// Every record of it by its path, as they are written.
    records: BTreeMap<String, String>,
    vms: usize,
    /// Sentences about what is otherwise than it was then.
    notes: Vec<String>,
}

/// The file of the records is damaged, and nobody has said yet what is to be done.
#[derive(Debug, thiserror::Error)]
#[error("{damage}; {what}")]
pub struct DamagedTree {
    damage: OpenError,
    what: String,
    hint: String,
}

impl DamagedTree {
    pub fn hint(&self) -> String {
        self.hint.clone()
    }
}

/// Opens the tree kept in `dir`. One that is damaged is replaced by the newest dump that can be
/// used, if `recover` says so.
pub async fn open(dir: &Path, recover: bool, clock: &dyn Clock) -> anyhow::Result<EmbeddedTree> {
    let damage = match EmbeddedTree::open(dir) {
        Err(damage @ OpenError::Corrupt { .. }) => damage,
        Err(error) => return Err(error.into()),
        Ok(tree) => {
            if recover {
                tracing::info!("the file of the records is whole: `--recover` has nothing to do");
            }
            return Ok(tree);
        }
    };
    let (found, unusable) = newest_usable(dir).await;
    let Some(copy) = found else { return Err(without_dump(damage, &unusable).into()) };
    let about = describe(&copy, clock.wall());
    if !recover {
        let hint = format!(
            "`pvc-standalone --recover` goes on from this dump and puts the damaged file aside; \
             what was changed \
             since then is lost: {}",
            "a VM that was started or stopped since is as it was then, so look at the guests first"
        );
        let what = format!("the newest dump of it that can be used is {about}");
        return Err(DamagedTree { damage, what, hint }.into());
    }
    tracing::error!("{damage}");
    let aside = EmbeddedTree::replace(dir, &copy.records)?;
    let aside = aside.map(|aside| format!("; the damaged file is `{}` now", aside.display()));
    tracing::warn!("the records were recovered from {about}{}", aside.unwrap_or_default());
    copy.notes.iter().for_each(|note| tracing::warn!("{note}"));
    Ok(EmbeddedTree::open(dir)?)
}

/// The newest dump that can be used, and what is wrong with those that are newer.
async fn newest_usable(dir: &Path) -> (Option<Copy>, Vec<String>) {
    let mut unusable = Vec::new();
    let dumps = Dumps::of(dir).list().unwrap_or_else(|error| {
        unusable.push(format!("they cannot be listed: {error}"));
        Vec::new()
    });
    for dump in dumps {
        let path = dump.path.clone();
        match try_out(dump).await {
            Ok(copy) => return (Some(copy), unusable),
            Err(error) => {
                let why = format!("`{}` cannot be used: {error:#}", path.display());
                tracing::warn!("{why}");
                unusable.push(why);
            }
        }
    }
    (None, unusable)
}

/// Writes the dump into a tree in memory: what goes there goes on disk, too.
async fn try_out(dump: Dump) -> anyhow::Result<Copy> {
    let text = dump.read()?;
    let tree = EmbeddedTree::in_memory();
    let clock: Arc<dyn Clock> = Arc::new(pvc_linux::SystemClock);
    let store = Store::open(tree.connect(), clock, Arc::new(OsRandom)).await?;
    let notes = cluster::notes(&cluster::restore(&store, &text, false).await?);
    let vms = store.fresh().await?.vms.len();
    let records = cluster::backup(&store, true).await?;
    tree.close().await;
    Ok(Copy { dump, records, vms, notes })
}

fn without_dump(damage: OpenError, unusable: &[String]) -> DamagedTree {
    let what = match unusable {
        [] => "there is no dump of it".to_owned(),
        why => format!("no dump of it can be used: {}", why.join("; ")),
    };
    let hint = damage.hint();
    DamagedTree { damage, what, hint }
}

fn describe(copy: &Copy, now: Duration) -> String {
    let Dump { path, taken, .. } = &copy.dump;
    let time =
        i64::try_from(taken.as_secs()).ok().and_then(|at| jiff::Timestamp::from_second(at).ok());
    let time = time.map_or_else(|| "an unknown time".to_owned(), |time| time.to_string());
    let (records, vms) = (copy.records.len(), copy.vms);
    let age = age(*taken, now);
    format!(
        "`{}` of {time} ({age}), with {records} records and {vms} VMs among them",
        path.display()
    )
}

fn age(taken: Duration, now: Duration) -> String {
    let Some(age) = now.checked_sub(taken) else {
        return "later than this machine's clock says it is".to_owned();
    };
    match age.as_secs() {
        seconds @ ..120 => format!("{seconds} seconds old"),
        seconds @ 120..7_200 => format!("{} minutes old", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} hours old", seconds / 3_600),
        seconds => format!("{} days old", seconds / 86_400),
    }
}

/// Takes a dump now, or as soon as the store holds a cluster, and then each hour until `stop`. One
/// that fails is told in the log and is no reason to end.
pub async fn keep(store: Store, clock: Arc<dyn Clock>, dumps: Dumps, stop: CancellationToken) {
    let each_hour = async {
        until_initialized(&store).await;
        loop {
            match take(&store, clock.wall(), dumps.clone()).await {
                Ok(path) => {
                    tracing::debug!(file = %path.display(), "a dump of the records was written")
                }
                Err(error) => tracing::warn!("no dump of the records could be written: {error:#}"),
            }
            clock.sleep(EVERY).await;
        }
    };
    let _: Option<std::convert::Infallible> = stop.run_until_cancelled(each_hour).await;
}

async fn until_initialized(store: &Store) {
    let mut changes = store.changed();
    while store.view().config.schema.is_none() {
        if changes.changed().await.is_err() {
            return std::future::pending().await; // the view has ended, and with it this program
        }
    }
}

async fn take(store: &Store, now: Duration, dumps: Dumps) -> anyhow::Result<PathBuf> {
    let records = cluster::backup(store, true).await?;
    // Writing to a slow disk is not to hold up the roles.
    let written =
        tokio::task::spawn_blocking(move || dumps.write(&cluster::dump_text(&records), now)).await;
    written.context("the thread that writes it failed")?.context("the disk refused it")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pvc_linux::SystemClock;
    use pvc_ops::cluster::set_maintenance;
    use pvc_testkit::{TokioClock, eventually};
    use tempfile::TempDir;

    use super::*;

    /// A tree in `dir` with a cluster, and its store.
    async fn begin(dir: &Path) -> (EmbeddedTree, Store) {
        let tree = EmbeddedTree::open(dir).unwrap();
        let store = open_store(&tree).await;
        if !store.is_initialized() {
            store.initialize(false).await.unwrap();
        }
        (tree, store)
    }

    async fn open_store(tree: &EmbeddedTree) -> Store {
        Store::open(tree.connect(), Arc::new(SystemClock), Arc::new(OsRandom)).await.unwrap()
    }

    /// A tree with two dumps: in the older one the cluster is in maintenance, in the newer one it
    /// is not. In the tree itself, which was changed since, it is again.
    async fn with_two_dumps() -> TempDir {
        let dir = TempDir::new().unwrap();
        let (tree, store) = begin(dir.path()).await;
        let now = SystemClock.wall();
        for (maintenance, ago) in [(true, 7_300), (false, 600)] {
            set_maintenance(&store, maintenance).await.unwrap();
            take(&store, now - Duration::from_secs(ago), Dumps::of(dir.path())).await.unwrap();
        }
        set_maintenance(&store, true).await.unwrap();
        drop(store);
        tree.close().await;
        drop(tree);
        until_free(dir.path()).await;
        dir
    }

    /// Waits until nobody has the tree: what reads for a store may hold it a moment longer.
    async fn until_free(dir: &Path) {
        let free = async {
            while let Err(error) = EmbeddedTree::open(dir) {
                assert!(matches!(error, OpenError::InUse { .. }), "{error}");
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), free).await.unwrap();
    }

    fn file(dir: &TempDir) -> PathBuf {
        dir.path().join("tree.redb")
    }

    async fn is_in_maintenance(tree: &EmbeddedTree) -> bool {
        open_store(tree).await.view().config.maintenance
    }

    async fn refused(dir: &TempDir, recover: bool) -> DamagedTree {
        let refused = open(dir.path(), recover, &SystemClock).await.err().expect("it is refused");
        refused.downcast::<DamagedTree>().expect("because it is damaged")
    }

    #[tokio::test]
    async fn a_damaged_tree_is_recovered_from_the_newest_dump_when_that_is_asked_for() {
        let dir = with_two_dumps().await;
        let good = fs::read(file(&dir)).unwrap();
        let damages: [(&str, Vec<u8>); 5] = [
            ("at the head", [vec![0xaa; 512], good[512..].to_vec()].concat()),
            (
                "in the middle",
                [&good[..4096], &vec![0xaa; good.len() - 8192], &good[good.len() - 4096..]]
                    .concat(),
            ),
            ("cut", good[..good.len() / 2].to_vec()),
            ("empty", Vec::new()),
            ("of a foreign format", b"SQLite format 3\0".repeat(1_000)),
        ];
        for (damage, bytes) in damages {
            fs::write(file(&dir), &bytes).unwrap();
            let said = refused(&dir, false).await;
            let text = said.to_string();
            assert!(
                text.contains("damaged") && text.contains("(10 minutes old), with "),
                "{damage}: {text}"
            );
            assert!(text.contains(" records and 0 VMs among them"), "{damage}: {text}");
            assert!(said.hint().contains("--recover"), "{damage}");
            let again = refused(&dir, false).await.to_string();
            assert_eq!(again, text, "{damage}: asking changes nothing");
            let damaged = fs::read(file(&dir)).unwrap();

            let tree = open(dir.path(), true, &SystemClock).await.unwrap();
            assert!(!is_in_maintenance(&tree).await, "{damage}: as in the newest dump");
            let asides = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
            let mut asides = asides.filter(|path| path.to_string_lossy().contains(".damaged-"));
            assert!(asides.any(|path| fs::read(path).unwrap() == damaged), "{damage}: put aside");
            tree.close().await;
            drop(tree);
            until_free(dir.path()).await;
        }
    }

    #[tokio::test]
    async fn if_the_newest_dump_is_damaged_the_one_before_is_taken() {
        let dir = with_two_dumps().await;
        let newest = Dumps::of(dir.path()).list().unwrap().remove(0);
        fs::write(file(&dir), "").unwrap();
        fs::write(&newest.path, "{}").unwrap();
        let said = refused(&dir, false).await.to_string();
        assert!(said.contains("(2 hours old)"), "{said}");
        let tree = open(dir.path(), true, &SystemClock).await.unwrap();
        assert!(is_in_maintenance(&tree).await, "as in the older dump");
    }

    #[tokio::test]
    async fn a_dump_that_is_whole_and_no_backup_is_passed_over() {
        let dir = with_two_dumps().await;
        let dumps = Dumps::of(dir.path());
        for text in [
            "no JSON",
            "{}",
            r#"{"/schema/version": "14"}"#,
            r#"{"/schema/version": "15", "x": ""}"#,
        ] {
            dumps.write(text, SystemClock.wall()).unwrap();
        }
        fs::write(file(&dir), "").unwrap();
        let said = refused(&dir, false).await.to_string();
        assert!(said.contains("(10 minutes old)"), "{said}");
    }

    #[tokio::test]
    async fn without_a_dump_that_can_be_used_nothing_is_changed() {
        let dir = with_two_dumps().await;
        fs::write(file(&dir), "").unwrap();
        for dump in Dumps::of(dir.path()).list().unwrap() {
            fs::write(&dump.path, "{").unwrap();
        }
        let said = refused(&dir, true).await.to_string();
        assert_eq!(said.matches("its checksum is another").count(), 2, "{said}");
        fs::remove_dir_all(dir.path().join("dumps")).unwrap();
        let said = refused(&dir, true).await;
        assert!(said.to_string().ends_with("there is no dump of it"), "{said}");
        assert!(
            said.hint().contains("put a backup of the directory in its place"),
            "{}",
            said.hint()
        );
        assert_eq!(fs::read(file(&dir)).unwrap(), b"", "the file is left alone");
    }

    #[tokio::test]
    async fn a_whole_tree_is_taken_as_it_is() {
        let dir = with_two_dumps().await;
        let tree = open(dir.path(), true, &SystemClock).await.unwrap();
        assert!(is_in_maintenance(&tree).await, "what was changed since the dumps is there");
    }

    #[tokio::test]
    async fn a_dump_is_taken_as_soon_as_there_is_a_cluster() {
        let dir = TempDir::new().unwrap();
        let tree = EmbeddedTree::open(dir.path()).unwrap();
        let (store, dumps, stop) =
            (open_store(&tree).await, Dumps::of(dir.path()), CancellationToken::new());
        let keeper =
            tokio::spawn(keep(store.clone(), Arc::new(SystemClock), dumps.clone(), stop.clone()));
        store.initialize(false).await.unwrap();
        let taken = async {
            loop {
                match dumps.list().unwrap().first() {
                    Some(dump) => return dump.read().unwrap(),
                    None => tokio::task::yield_now().await,
                }
            }
        };
        let text = tokio::time::timeout(Duration::from_secs(60), taken).await.unwrap();
        assert!(text.contains(r#""/schema/version":"15""#), "{text}");
        stop.cancel();
        keeper.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn another_dump_is_taken_each_hour_with_what_was_changed_since() {
        let dir = TempDir::new().unwrap();
        let (clock, dumps) = (Arc::new(TokioClock::new()), Dumps::of(dir.path()));
        let tree = EmbeddedTree::in_memory();
        let store = Store::open(tree.connect(), clock.clone(), Arc::new(OsRandom)).await.unwrap();
        store.initialize(false).await.unwrap();
        let stop = CancellationToken::new();
        let keeper = tokio::spawn(keep(store.clone(), clock.clone(), dumps.clone(), stop.clone()));
        let taken = || dumps.list().unwrap();
        eventually("the dump of the start", EVERY / 2, || taken().len() == 1).await;
        set_maintenance(&store, true).await.unwrap();
        clock.sleep(EVERY - Duration::from_secs(5)).await;
        assert_eq!(taken().len(), 1, "not before the hour is over");
        eventually("that of an hour later", Duration::from_secs(60), || taken().len() == 2).await;
        let (newest, first) = (&taken()[0], &taken()[1]);
        let apart = newest.taken - first.taken;
        assert!((EVERY..EVERY + Duration::from_secs(5)).contains(&apart), "{apart:?}");
        let says = |dump: &Dump| dump.read().unwrap().contains(r#""/config/maintenance":"true""#);
        assert_eq!((says(first), says(newest)), (false, true), "{}", newest.read().unwrap());
        stop.cancel();
        keeper.await.unwrap();
    }

    #[test]
    fn an_age_is_reported_in_one_unit() {
        let shown = |seconds: u64| {
            age(Duration::from_secs(1_000_000 - seconds), Duration::from_secs(1_000_000))
        };
        assert_eq!(
            [shown(5), shown(300), shown(9_000), shown(200_000)].join(", "),
            "5 seconds old, 5 minutes old, 2 hours old, 2 days old"
        );
        let of_later = age(Duration::from_secs(2), Duration::from_secs(1));
        assert_eq!(of_later, "later than this machine's clock says it is");
    }
}
