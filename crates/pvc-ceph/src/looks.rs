//! Looks at images and at what lists them, which change nothing.
//!
//! A look goes through the connection with Ceph that is there already ([`librbd`](crate::librbd)),
//! on a thread of its own, for as long as it takes. Where that cannot be, because librbd cannot be
//! opened or too many looks hang, programs look.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{CloneName, StorageError};
use tokio::sync::{Semaphore, oneshot};

use crate::answers::{self, Snapshot};
use crate::connection::{ANSWER, Connection};
use crate::librbd;
use crate::rados::{Errno, IoContext, RadosError};
use crate::rbd::{Failure, QUICK, image_args, long, pool_arg};
use crate::storage::{RbdStorage, require_addressable, require_pool_name, with_json};
use crate::trash_answers::{self, Trashed};

const LOOKING: &str = "looking at a volume";
const LISTING: &str = "listing volumes";
const SNAPSHOTS: &str = "listing snapshots";
const HOLDER: &str = "looking who uses a volume";
const CLONES: &str = "listing clones";
const TRASH: &str = "listing the trash";

/// Looks that may be under way together, each on a thread. More are made by programs, as all are
/// while so many threads hang.
const AT_ONCE: usize = 8;

/// Looks through the connection.
pub(crate) struct Looks {
    connection: Arc<Connection>,
    places: Arc<Semaphore>,
}

impl Looks {
    pub fn new(connection: Arc<Connection>) -> Self {
        Looks { connection, places: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Has `look` look at the objects of a pool; `None` if programs are to do it.
    ///
    /// # Cancellation
    /// The look comes to its end, and nobody hears of it.
    async fn at<T: Send + 'static>(
        &self,
        pool: &PoolName,
        deadline: Duration,
        look: impl FnOnce(&IoContext<'_>) -> Result<T, RadosError> + Send + 'static,
    ) -> Option<Result<T, Failure>> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let (answer, hear) = oneshot::channel();
        let (connection, pool) = (self.connection.clone(), pool.as_str().to_owned());
        let looking = move || {
            let seen = connection.ask(|rados| look(&rados.pool(&pool)?));
            // Also this may be the last who has the connection.
            drop(connection);
            drop(place);
            // Whoever asked may have gone away meanwhile.
            let _ = answer.send(seen);
        };
        std::thread::Builder::new().name("ceph look".to_owned()).spawn(looking).ok()?;
        match tokio::time::timeout(deadline, hear).await {
            Ok(Ok(Err(RadosError::NoLibrary { .. }))) => None,
            Ok(Ok(seen)) => Some(seen.map_err(failure)),
            Ok(Err(_)) => Some(Err(Failure::Other("a look came to no end".to_owned()))),
            Err(_) => Some(Err(Failure::TimedOut { seconds: deadline.as_secs() })),
        }
    }
}

fn failure(error: RadosError) -> Failure {
    const BUSY: Errno = Errno(16);
    match error {
        RadosError::NoPool => Failure::NotFound { pool: true },
        RadosError::Refused { errno: Errno::NOT_FOUND, .. } => Failure::NotFound { pool: false },
        RadosError::Refused { errno: BUSY, .. } => Failure::Busy,
        RadosError::Refused { errno: Errno::TIMED_OUT, .. } => {
            Failure::TimedOut { seconds: QUICK.as_secs() }
        }
        RadosError::Unreachable(Errno::TIMED_OUT) => {
            Failure::TimedOut { seconds: ANSWER.as_secs() }
        }
        error => Failure::Other(error.to_string()),
    }
}

/// Identifier of an image, and its size.
pub(crate) struct Head {
    pub id: String,
    pub size: u64,
}

impl Head {
    fn of(image: &librbd::Image<'_>) -> Result<Self, RadosError> {
        Ok(Head { id: image.id()?, size: image.size_bytes()? })
    }

    /// The identifier that the image has also when it has no name.
    pub fn trash_id(&self, volume: &VolumeId, doing: &str) -> Result<TrashId, StorageError> {
        let unlikely = || {
            let why = format!("`{}` is no identifier of an image", self.id);
            Failure::Other(why).of(volume, doing)
        };
        TrashId::parse(&self.id).ok_or_else(unlikely)
    }
}

/// An image, and who stands on it, at one moment.
pub(crate) struct Whole {
    pub head: Head,
    pub snapshots: Vec<Snapshot>,
    /// Client that has it open.
    pub holder: Option<String>,
    pub clones: Vec<CloneName>,
}

impl Whole {
    fn of(image: &librbd::Image<'_>) -> Result<Self, RadosError> {
        let (head, snapshots) = (Head::of(image)?, snapshots_of(image)?);
        // Clones stand on snapshots, also on those that are only there for them.
        let (holder, clones) = (holder_of(image)?, image.clones()?);
        let clones = clones.into_iter().map(CloneName::from).collect();
        Ok(Whole { head, snapshots, holder, clones })
    }

    pub fn require_unused(&self, volume: &VolumeId) -> Result<(), StorageError> {
        require_none(volume, self.holder.clone())
    }
}

fn require_none(volume: &VolumeId, holder: Option<String>) -> Result<(), StorageError> {
    match holder {
        Some(holder) => Err(StorageError::InUse { volume: volume.clone(), holder }),
        None => Ok(()),
    }
}

fn snapshots_of(image: &librbd::Image<'_>) -> Result<Vec<Snapshot>, RadosError> {
    Ok(image.snapshots()?.into_iter().map(Snapshot::from).collect())
}

fn holder_of(image: &librbd::Image<'_>) -> Result<Option<String>, RadosError> {
    Ok(image.watchers()?.first().map(|address| answers::host_of(address)))
}

impl RbdStorage {
    /// Has the library look at an image; `None` if programs are to do it.
    async fn by_library<T: Send + 'static>(
        &self,
        volume: &VolumeId,
        look: impl FnOnce(&librbd::Image<'_>) -> Result<T, RadosError> + Send + 'static,
    ) -> Option<Result<T, Failure>> {
        let name = volume.volume.as_str().to_owned();
        let open = move |io: &IoContext<'_>| look(&librbd::Image::open(io, &name)?);
        self.looks.as_ref()?.at(&volume.pool, QUICK, open).await
    }

    async fn of_pool_by_library<T: Send + 'static>(
        &self,
        pool: &PoolName,
        look: impl FnOnce(&IoContext<'_>) -> Result<T, RadosError> + Send + 'static,
    ) -> Option<Result<T, Failure>> {
        self.looks.as_ref()?.at(pool, long(0), look).await
    }

    pub(crate) async fn image(&self, volume: &VolumeId) -> Result<Head, StorageError> {
        require_addressable(volume)?;
        if let Some(seen) = self.by_library(volume, Head::of).await {
            return seen.map_err(|failure| failure.of(volume, LOOKING));
        }
        let answers::Image { id, size, .. } = self.described(volume).await?;
        Ok(Head { id, size })
    }

    pub(crate) async fn image_and_snapshots(
        &self,
        volume: &VolumeId,
    ) -> Result<(Head, Vec<Snapshot>), StorageError> {
        require_addressable(volume)?;
        let look = |image: &librbd::Image<'_>| Ok((Head::of(image)?, snapshots_of(image)?));
        if let Some(seen) = self.by_library(volume, look).await {
            return seen.map_err(|failure| failure.of(volume, LOOKING));
        }
        Ok((self.image(volume).await?, self.snapshots(volume).await?))
    }

    pub(crate) async fn whole_image(&self, volume: &VolumeId) -> Result<Whole, StorageError> {
        require_addressable(volume)?;
        if let Some(seen) = self.by_library(volume, Whole::of).await {
            return seen.map_err(|failure| failure.of(volume, LOOKING));
        }
        let (head, holder) = (self.image(volume).await?, self.holder(volume).await?);
        let (snapshots, clones) = (self.snapshots(volume).await?, self.clones(volume).await?);
        Ok(Whole { head, snapshots, holder, clones })
    }

    pub(crate) async fn snapshots(&self, volume: &VolumeId) -> Result<Vec<Snapshot>, StorageError> {
        if let Some(seen) = self.by_library(volume, snapshots_of).await {
            return seen.map_err(|failure| failure.of(volume, SNAPSHOTS));
        }
        let args = with_json(image_args(volume));
        let text = self.programs.look(&["snap", "ls"], args, QUICK).await;
        let text = text.map_err(|failure| failure.of(volume, SNAPSHOTS))?;
        answers::snapshots(&text).map_err(|why| Failure::Other(why).of(volume, SNAPSHOTS))
    }

    /// Client that has the volume open, if any has. Ceph notices within half a minute that a client
    /// died.
    pub(crate) async fn holder(&self, volume: &VolumeId) -> Result<Option<String>, StorageError> {
        require_addressable(volume)?;
        if let Some(seen) = self.by_library(volume, holder_of).await {
            return seen.map_err(|failure| failure.of(volume, HOLDER));
        }
        let args = with_json(image_args(volume));
        let text = self.programs.look(&["status"], args, QUICK).await;
        let text = text.map_err(|failure| failure.of(volume, HOLDER))?;
        let watchers =
            answers::watchers(&text).map_err(|why| Failure::Other(why).of(volume, HOLDER))?;
        Ok(watchers.into_iter().next())
    }

    pub(crate) async fn require_unused(&self, volume: &VolumeId) -> Result<(), StorageError> {
        require_none(volume, self.holder(volume).await?)
    }

    /// Volumes that are clones of this one.
    async fn clones(&self, volume: &VolumeId) -> Result<Vec<CloneName>, StorageError> {
        self.clones_by_program(volume, None).await
    }

    /// Volumes that are clones of this one, of one of its snapshots or of any.
    pub(crate) async fn clones_by_program(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Vec<CloneName>, StorageError> {
        let snapshot = snapshot.map(|name| format!("--snap={name}"));
        let more = [Some("--all".to_owned()), snapshot].into_iter().flatten().collect();
        let args = with_json([image_args(volume), more].concat());
        let listed = self.programs.look(&["children"], args, QUICK).await;
        let text = listed.map_err(|failure| failure.of(volume, CLONES))?;
        trash_answers::children(&text).map_err(|why| Failure::Other(why).of(volume, CLONES))
    }

    /// The names of the volumes in a pool, as its directory has them.
    ///
    /// `rbd rename` makes an object for the new name, moves the entry of the directory, and removes
    /// the object of the old name. Cut between, the volume *opens* by both names and *has* the one
    /// that the directory says: whatever is not to be undone asks this.
    pub(crate) async fn volume_names(
        &self,
        pool: &PoolName,
    ) -> Result<BTreeSet<VolumeName>, StorageError> {
        let failed = |failure: Failure| failure.of_pool(pool, LISTING);
        let names = match self.of_pool_by_library(pool, librbd::names).await {
            Some(names) => names.map_err(failed)?,
            None => {
                let args = with_json(vec![pool_arg(pool)]);
                let text = self.programs.look(&["ls"], args, long(0)).await.map_err(failed)?;
                answers::json(&text).map_err(|why| failed(Failure::Other(why)))?
            }
        };
        Ok(names.into_iter().map(VolumeName::new).collect())
    }

    /// Everything in the trash of a pool, whoever moved it there.
    pub(crate) async fn all_trashed(&self, pool: &PoolName) -> Result<Vec<Trashed>, StorageError> {
        require_pool_name(pool)?;
        let failed = |failure: Failure| failure.of_pool(pool, TRASH);
        if let Some(found) = self.of_pool_by_library(pool, librbd::trash).await {
            return Ok(found.map_err(failed)?.into_iter().map(Trashed::from).collect());
        }
        let args = ["--all", "--long"].map(str::to_owned).to_vec();
        let args = with_json([args, vec![pool_arg(pool)]].concat());
        let listed = self.programs.look_in_utc(&["trash", "ls"], args, long(0)).await;
        trash_answers::trashed(&listed.map_err(failed)?).map_err(|why| failed(Failure::Other(why)))
    }

    /// The keys of an object, one a line.
    pub(crate) async fn keys_of(
        &self,
        pool: &PoolName,
        object: &'static str,
    ) -> Result<Vec<u8>, Failure> {
        let look = |io: &IoContext<'_>| io.keys(object);
        let keys = match self.of_pool_by_library(pool, look).await {
            Some(keys) => keys.map(|keys| keys.join(&b'\n')),
            None => self.programs.look_at_object(pool, &["listomapkeys", object]).await,
        };
        match keys {
            // Nothing was ever in it.
            Err(Failure::NotFound { pool: false }) => Ok(Vec::new()),
            keys => keys,
        }
    }
}
