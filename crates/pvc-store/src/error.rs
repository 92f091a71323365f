//! The errors of the store.

use pvc_ports::TreeError;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the cluster's store failed")]
    Tree(#[from] TreeError),
    #[error("the store holds a cluster already")]
    AlreadyInitialized,
    #[error("the store holds no cluster, but remains of one")]
    Remains,
    #[error("the store holds no cluster")]
    NotInitialized,
    #[error(
        "the connection broke in the middle of the change, and others have written there since: it \
         may have been made"
    )]
    Unclear,
    #[error("the decision rests on `{path}`, which the store does not have")]
    NothingToExpect { path: String },
    #[error("the store has layout {found}, and this program knows none after {known}")]
    LayoutTooNew { found: u32, known: u32 },
    #[error("the lock `{path}` could not be had within {seconds} s")]
    LockTimeout { path: String, seconds: f64 },
    #[error("this process knows no password of the tree")]
    NoPassword,
    #[error("somebody else changes who may use the records at the same time")]
    AccessChanged,
    #[error("the root of the tree is for others, too, than those who know the password")]
    AccessUnknown,
    #[error("keys that are still for others: \
             {keys}{}", such.as_ref().map(|path| format!(", among them \
                                                          `{path}`")).unwrap_or_default())]
    AccessDiffers {
        keys: usize,
        /// A key that is for others alone, or for them as well: those who know an earlier password.
        such: Option<String>,
    },
    #[error("the record is larger than the store takes: {size} bytes, at most {limit} are allowed")]
    TooLarge { size: usize, limit: usize },
}

impl StoreError {
    /// Returns advice on what to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            StoreError::NotInitialized => Some(
                "if this is a new cluster, create it with `pvc cluster init`; if it is not, \
                 ZooKeeper has lost its data: \
                 stop, and restore it from a member that still has it or with `pvc cluster restore`"
                    .to_owned(),
            ),
            StoreError::Unclear => Some("look at the present state before you repeat \
                                         it".to_owned()),
            StoreError::LayoutTooNew { .. } => {
                Some("install the version of PVC that the other nodes run".to_owned())
            }
            StoreError::Remains => Some(
                "`pvc cluster restore` makes it whole from a backup, `pvc cluster init \
                 --overwrite` destroys it; \
                 on one machine alone, move the directory `tree` in the state directory away"
                    .to_owned(),
            ),
            StoreError::AlreadyInitialized => Some("say `--overwrite` to destroy it".to_owned()),
            StoreError::Tree(
                TreeError::Unreachable { .. }
                | TreeError::SessionExpired
                | TreeError::OutcomeUnknown,
            ) => Some("is a majority of the coordinators' ZooKeeper servers running?".to_owned()),
            StoreError::NoPassword => Some(
                "set `database.zookeeper.password` in the configuration of every node, and restart \
                 PVC's daemons there; \
                 on one machine alone there is no ZooKeeper, and the records are files of root's"
                    .to_owned(),
            ),
            StoreError::AccessChanged => Some("look at `pvc cluster store show`, and say once more \
                                               what is wanted".to_owned()),
            StoreError::AccessUnknown => Some(
                "somebody has set the access list of `/` by other means than PVC; `pvc cluster \
                 store close` or `open` sets it anew"
                    .to_owned(),
            ),
            StoreError::AccessDiffers { such: None, .. } => {
                Some("repeat it; until it succeeds, leave the password as it is".to_owned())
            }
            StoreError::AccessDiffers { such: Some(_), .. } => Some(
                "keys that are for those who know an earlier password are opened with that one, or \
                 with ZooKeeper's                  `superDigest`; leave the password as it is \
                 until then"
                    .to_owned(),
            ),
            StoreError::Tree(TreeError::NotAllowed { .. }) => Some(
                "the records are closed to who does not know their password: is \
                 `database.zookeeper.password` that of \
                 the other nodes?"
                    .to_owned(),
            ),
            StoreError::Tree(TreeError::DiskFull) => Some("free some space on the disk that holds \
                                                           the store".to_owned()),
            _ => None,
        }
    }
}

/// Reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    /// The decision itself said no.
    #[error(transparent)]
    Refused(E),
    /// Somebody else kept changing the same records.
    #[error("the records were changed by somebody else {tries} times in a row")]
    Conflict { tries: u32 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<E> ChangeError<E> {
    /// The same error with another refusal in the place of this one.
    pub fn map_refused<F>(self, map: impl FnOnce(E) -> F) -> ChangeError<F> {
        match self {
            ChangeError::Refused(why) => ChangeError::Refused(map(why)),
            ChangeError::Conflict { tries } => ChangeError::Conflict { tries },
            ChangeError::Store(error) => ChangeError::Store(error),
        }
    }
}

impl<E> From<TreeError> for ChangeError<E> {
    fn from(error: TreeError) -> Self {
        ChangeError::Store(StoreError::Tree(error))
    }
}

/// Reason why a dump was not restored. Nothing was written unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the dump is of schema version `{found}`, this cluster has version {expected}")]
    Schema { found: String, expected: u32 },
    #[error("the dump has no schema version")]
    NoSchema,
    #[error("the dump has the key `{}`, which is not a path of the tree", beginning(.key))]
    BadKey { key: String },
    #[error("`{key}` of the dump has {size} bytes, at most {limit} are allowed")]
    TooLarge { key: String, size: usize, limit: usize },
    #[error("the restore stopped after {written} of {total} keys")]
    Stopped {
        written: usize,
        total: usize,
        #[source]
        source: StoreError,
    },
}

impl RestoreError {
    pub fn hint(&self) -> Option<String> {
        match self {
            RestoreError::Stopped { .. } => Some(
                "repeat the restore: keys that are as in the dump already do no harm".to_owned(),
            ),
            _ => None,
        }
    }
}

/// Returns as much of a key as can be shown.
fn beginning(key: &str) -> &str {
    &key[..key.floor_char_boundary(200)]
}
