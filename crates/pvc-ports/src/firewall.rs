//! The packet filter of this machine, as far as its tables are PVC's.

use std::time::Duration;

use async_trait::async_trait;
use pvc_model::firewall::{BadRules, TableName};

#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// Rules that would not stay in their table.
    #[error("the rules of the table `{table}` are not taken")]
    BadRules {
        table: TableName,
        #[source]
        source: BadRules,
    },
    #[error("the kernel did not {what} the table `{table}`: {why}")]
    Refused {
        /// `show`, `check`, `load`, `drop`.
        what: &'static str,
        table: TableName,
        /// Message of `nft`, in a line.
        why: String,
    },
    #[error("the rules that PVC 1.0.3 has left in the table `inet filter` stay: {why}")]
    OldRules { why: String },
    #[error("`{program}` is not installed")]
    NoProgram { program: String, package: &'static str },
    #[error("`{program}` could not be run")]
    Failed {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the kernel did not {what} the table `{table}` within {} s", deadline.as_secs())]
    TimedOut { what: &'static str, table: TableName, deadline: Duration },
}

impl FirewallError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            FirewallError::NoProgram { package, .. } => {
                Some(format!("`apt install {package}` brings it"))
            }
            _ if self.is_forbidden() => {
                Some("this needs root, and in a container CAP_NET_ADMIN".to_owned())
            }
            _ => None,
        }
    }

    /// Whether this program may not do that at all, whatever the rules say.
    pub fn is_forbidden(&self) -> bool {
        let words = "Operation not permitted";
        matches!(self, FirewallError::Refused { why, .. } if why.contains(words))
    }
}

/// The packet filter of this machine, as far as its tables are PVC's.
///
/// Each table is given whole: what stands between its braces, in the words of nft. Tables of others
/// are never touched, whatever the rules say, but for what PVC 1.0.3 made in one. A call returns
/// within seconds.
///
/// # Cancellation
/// Dropping the future of a change leaves the table as it was or as it was to be, never a part of
/// it.
#[async_trait]
pub trait Firewall: Send + Sync {
    /// The rules as the kernel has them, without its counters; `None` if there is no such table.
    /// The words are the kernel's, and are the same as long as the rules are: what was shown after
    /// [`apply`](Firewall::apply) and is not shown any more was changed by somebody else.
    async fn table(&self, table: &TableName) -> Result<Option<String>, FirewallError>;

    /// Whether [`apply`](Firewall::apply) would take the rules. Changes nothing.
    ///
    /// # Errors
    /// [`BadRules`](FirewallError::BadRules) and [`Refused`](FirewallError::Refused) if not.
    async fn check(&self, table: &TableName, rules: &str) -> Result<(), FirewallError>;

    /// Makes the table of these rules, in place of the one that is there, or removes it: in one
    /// step. If they are refused the table stays as it is. Counters begin anew.
    async fn apply(&self, table: &TableName, rules: Option<&str>) -> Result<(), FirewallError>;

    /// Removes the rules of networks that PVC 1.0.3 has left in the table `inet filter`, and none
    /// of an operator's there. Returns whether there were any.
    async fn remove_old_rules(&self) -> Result<bool, FirewallError>;
}
