//! SR-IOV cards of this machine, and their functions.

use async_trait::async_trait;
use pvc_model::sriov::plan::CardSeen;
use pvc_model::sriov::settings::VfSetting;

use crate::NetworkError;

/// The cards of this machine that divide themselves into functions. MTUs, and whether a link is
/// on, are a matter of [`Network`](crate::Network), for functions as well while no guest has them.
#[async_trait]
pub trait Sriov: Send + Sync {
    /// The card behind a network interface: its functions with those that guests have, and the
    /// settings that the card tells. `None` if there is no such interface; one of no such card has
    /// no functions and can have none.
    async fn card(&self, card: &str) -> Result<Option<CardSeen>, NetworkError>;

    /// Has the card make so many functions. One that has as many is left alone.
    ///
    /// # Errors
    /// [`Refused`](NetworkError::Refused) if it has others: whoever uses one would lose it.
    /// [`NoLink`](NetworkError::NoLink) if there is no such interface,
    /// [`Unsupported`](NetworkError::Unsupported) if it is of no such card.
    async fn make_functions(&self, card: &str, count: u32) -> Result<(), NetworkError>;

    /// Gives a function a setting, also while a guest has it.
    ///
    /// # Errors
    /// [`Refused`](NetworkError::Refused) if there is no such function, or its card cannot do it.
    async fn set_function(
        &self,
        card: &str,
        index: u32,
        setting: &VfSetting,
    ) -> Result<(), NetworkError>;
}
