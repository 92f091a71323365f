//! The cluster as a whole: the root, logging in and out, status, records.

use serde_json::Value;

use crate::param::{Added, Flag, Nothing};
use crate::{ClusterStatus, Message, PrimaryNode, StoreAccess};

params! {
    /// Credentials that a browser logs in with.
    pub struct Login {
        @form
        /// The token. Taken from the body alone, so that it never stands in an address.
        token: String,
    }
}

choice! {
    /// Whether the cluster is being maintained.
    pub enum Maintenance { On = "true", Off = "false" }
}

params! {
    /// The wanted state.
    pub struct MaintenanceRequest {
        /// While `true`, no node is fenced and no fault is raised.
        state: Maintenance,
    }
}

params! {
    /// Whether it is really meant.
    pub struct Initialization {
        /// `yes`
        really = "yes-i-really-mean-it": String,
        /// Destroys an existing cluster's records.
        overwrite: Flag,
    }
}

params! {
    /// Choice of what to back up.
    #[derive(Default)]
    pub struct Saving {
        /// The passwords of the nodes' BMCs as well: keep it like them.
        secrets: Added,
    }
}

params! {
    /// Dump to restore.
    @large true
    pub struct Restoration {
        /// `yes`
        really = "yes-i-really-mean-it": String,
        /// Also the backup of a cluster with another name.
        force: Added,
        @form
        /// The object that a backup holds, as JSON text.
        cluster_data: String,
    }
}

choice! {
    /// Users of the records.
    pub enum AccessWord { Anybody = "anybody", Members = "members" }
}

params! {
    /// Choice of who may use the records.
    pub struct AccessRequest {
        /// `members` closes them to everybody who does not know the password, `anybody` opens them.
        access: AccessWord,
        /// Closes them although nodes would be locked out that are not known to know a password.
        force: Flag,
    }
}

operations! { "cluster":
    /// Says what this is.
    GetRoot { GET "/", Anybody, read -> Message }

    /// Opens a session for a browser.
    PostLogin { POST "/login", Anybody, session(Login) }

    /// Ends the session of a browser.
    PostLogout { POST "/logout", Anybody, session(Nothing) }

    /// Returns this document.
    GetOpenapiJson { GET "/openapi.json", Anybody, read -> json Value }

    /// The cluster at a glance.
    GetStatus { GET "/status", Reader, read -> ClusterStatus }

    /// Begins or ends maintenance.
    PostStatus { POST "/status", Operator, change(MaintenanceRequest) }

    /// Returns who is primary. 204 while nobody is.
    GetStatusPrimaryNode {
        GET "/status/primary_node", Anybody, read -> PrimaryNode, 204 "Nobody is primary now"
    }

    /// Creates the records of a new cluster.
    PostInitialize { POST "/initialize", Administrator, change(Initialization) }

    /// Every record by its path, as a JSON text inside of a JSON text. A restore of it leaves the
    /// passwords of BMCs that are there, unless they are in it.
    GetBackup { GET "/backup", Administrator, read(Saving) -> json String }

    /// Writes what is to be by a backup over the present records. What was under way then, and what
    /// nodes said of themselves, does not come back; the message says what is otherwise.
    PostRestore { POST "/restore", Administrator, change(Restoration) }

    /// Returns who may use the records in ZooKeeper: whoever reaches it, or those alone who know
    /// their password.
    GetStoreAccess { GET "/store/access", Operator, read -> StoreAccess }

    /// Closes the records in ZooKeeper to whoever does not know their password, or opens them. What
    /// is created later is for the same. Daemons that do not know the password yet end, and begin
    /// anew with what their configuration says.
    PostStoreAccess { POST "/store/access", Administrator, change(AccessRequest) }
}
