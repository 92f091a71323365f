//! OSDs as their cluster knows them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use pvc_model::osd::{OsdFlag, OsdId, OsdState, Safety};
use pvc_model::{NodeName, Uuid};

use crate::OsdError;

/// OSDs of a storage cluster, as its monitors know them and change them.
///
/// Every call has a deadline of its own and may be repeated; asking for what is so already succeeds
/// without effect. Where it is not said otherwise, an OSD that the cluster does not know is
/// [`OsdError::NoOsd`].
#[async_trait]
pub trait OsdMap: Send + Sync {
    /// UUID of the cluster.
    async fn cluster_uuid(&self) -> Result<Uuid, OsdError>;

    /// Lists the numbers of the OSDs, destroyed ones among them.
    async fn osd_ids(&self) -> Result<BTreeSet<OsdId>, OsdError>;
    /// Lists the OSDs by their numbers, destroyed ones among them. A cluster without any is no
    /// error.
    async fn osd_states(&self) -> Result<Vec<OsdState>, OsdError>;

    /// Has the cluster keep data on the OSD.
    async fn osd_in(&self, id: OsdId) -> Result<(), OsdError>;
    /// Has the cluster move the OSD's data to others.
    async fn osd_out(&self, id: OsdId) -> Result<(), OsdError>;
    /// Takes the OSD for down. One that lives says after a moment that it is not.
    async fn osd_down(&self, id: OsdId) -> Result<(), OsdError>;

    /// Returns whether no data would lose a copy without the OSD. That nobody can tell is no
    /// "yes".
    async fn safe_to_destroy(&self, id: OsdId) -> Result<Safety, OsdError>;

    /// Takes the OSD's identity from it, which must not be up: its data is lost, its number is kept
    /// for the next one.
    ///
    /// # Errors
    /// [`NotSafe`](OsdError::NotSafe) without `force`, if data would lose a copy.
    async fn destroy(&self, id: OsdId, force: bool) -> Result<(), OsdError>;
    /// Has the cluster forget the OSD, which must not be up, with its number and its place. One
    /// that it does not know is forgotten already.
    ///
    /// # Errors
    /// [`NotSafe`](OsdError::NotSafe) without `force`, if data would lose a copy.
    async fn purge(&self, id: OsdId, force: bool) -> Result<(), OsdError>;

    /// Keeps a number for the next OSD, as [`destroy`](OsdMap::destroy) leaves it, also one that
    /// the cluster has forgotten. An OSD that has the number and this UUID, of which there must be
    /// no data, is destroyed for it.
    ///
    /// # Errors
    /// [`NumberTaken`](OsdError::NumberTaken), if another OSD has the number.
    async fn reserve(&self, id: OsdId, uuid: Uuid) -> Result<(), OsdError>;

    /// Gives the OSD a place below a node, with a weight: there, data is put on it. One that has
    /// its place there already gets the weight.
    async fn crush_add(&self, id: OsdId, weight: f64, host: &NodeName) -> Result<(), OsdError>;
    /// Takes the OSD's place from it. One that has none, or is not known, is where it should be.
    async fn crush_remove(&self, id: OsdId) -> Result<(), OsdError>;

    /// Lists the flags that are set, of those that can be.
    async fn flags(&self) -> Result<BTreeSet<OsdFlag>, OsdError>;
    async fn set_flag(&self, flag: OsdFlag) -> Result<(), OsdError>;
    async fn unset_flag(&self, flag: OsdFlag) -> Result<(), OsdError>;
}
