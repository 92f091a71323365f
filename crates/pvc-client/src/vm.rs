//! Virtual machines.

use pvc_api_types::{Message, MovePlan, TaskRef, Vm, VmConsole, VmTags};

use crate::client::{Change, Client, Waiting};
use crate::error::{Error, Kind};
use crate::payload::Payload;
use crate::query::{Query, escape};

/// Which VMs to list. `negate` turns the node, state and tag around, not the name.
#[derive(Debug, Clone, Default)]
pub struct VmFilter {
    pub limit: Option<String>,
    pub node: Option<String>,
    pub state: Option<String>,
    pub tag: Option<String>,
    pub negate: bool,
}

/// A new VM.
#[derive(Debug, Clone, Default)]
pub struct Definition {
    pub xml: String,
    pub node: Option<String>,
    /// Comma-separated node names.
    pub limit: Option<String>,
    pub selector: String,
    pub autostart: bool,
    pub migration_method: String,
    /// Milliseconds.
    pub migration_max_downtime: u32,
    pub user_tags: Vec<String>,
    pub protected_tags: Vec<String>,
    /// Take it also if it is plugged into a network between the nodes.
    pub force: bool,
}

/// Changes of a VM's metadata; what is `None` stays as it is.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    pub limit: Option<String>,
    pub selector: Option<String>,
    pub autostart: Option<bool>,
    pub migration_method: Option<String>,
    /// Milliseconds.
    pub migration_max_downtime: Option<u32>,
    pub profile: Option<String>,
}

/// A wish for another state: `start`, `restart`, `shutdown`, `stop` or `disable`.
#[derive(Debug, Clone)]
pub struct StateRequest {
    pub state: &'static str,
    pub force: bool,
    /// Return only when the state is reached.
    pub wait: Option<Waiting>,
}

/// Where a VM shall go.
#[derive(Debug, Clone)]
pub struct Placement {
    pub action: Action,
    /// Chosen by the cluster if absent.
    pub node: Option<String>,
    pub force: bool,
    pub wait: bool,
    /// Live or not at all.
    pub force_live: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Move,
    Migrate,
    Unmigrate,
}

fn path(vm: &str, rest: &str) -> String {
    format!("/vm/{}{rest}", escape(vm))
}

fn placed(vm: &str, placement: &Placement) -> Change {
    let action = match placement.action {
        Action::Move => "move",
        Action::Migrate => "migrate",
        Action::Unmigrate => "unmigrate",
    };
    let query = Query::new()
        .text("action", action)
        .maybe("node", placement.node.as_deref())
        .flag("force", placement.force)
        .flag("wait", placement.wait)
        .flag("force_live", placement.force_live);
    Change::post(path(vm, "/node"), query).waiting(placement.wait.then_some(Waiting::Forever))
}

fn renaming(vm: &str, new_name: &str) -> Change {
    Change::post(path(vm, "/rename"), Query::new().text("new_name", new_name))
}

fn state_change(vm: &str, request: &StateRequest) -> Change {
    let query = Query::new()
        .text("state", request.state)
        .flag("force", request.force)
        .flag("wait", request.wait.is_some());
    Change::post(path(vm, "/state"), query).waiting(request.wait)
}

impl Client {
    pub fn vms(&self, filter: &VmFilter) -> Result<Payload<Vec<Vm>>, Error> {
        let query = Query::new()
            .maybe("limit", filter.limit.as_deref())
            .maybe("node", filter.node.as_deref())
            .maybe("state", filter.state.as_deref())
            .maybe("tag", filter.tag.as_deref())
            .flag("negate", filter.negate);
        self.get("/vm", query)
    }

    /// The VM of that name or UUID.
    pub fn vm(&self, vm: &str) -> Result<Payload<Vm>, Error> {
        let list: Payload<Vec<Vm>> = self.get(&path(vm, ""), Query::new())?;
        list.only().ok_or_else(|| Error::NotFound { message: format!("no VM `{vm}`"), hint: None })
    }

    pub fn define_vm(&self, new: &Definition) -> Result<String, Error> {
        let query = Query::new()
            .maybe("node", new.node.as_deref())
            .maybe("limit", new.limit.as_deref())
            .text("selector", &new.selector)
            .flag("autostart", new.autostart)
            .text("migration_method", &new.migration_method)
            .text("migration_max_downtime", new.migration_max_downtime.to_string())
            .list("user_tags", &new.user_tags)
            .list("protected_tags", &new.protected_tags)
            .maybe_flag("force", new.force.then_some(true));
        self.change(Change::post("/vm", query).form("xml", &new.xml))
    }

    /// Replaces a VM's definition; a running guest sees it after its next start. `force` takes one
    /// that is plugged into a network between the nodes as well.
    pub fn modify_vm(
        &self,
        vm: &str,
        xml: &str,
        restart: bool,
        force: bool,
    ) -> Result<String, Error> {
        let query =
            Query::new().flag("restart", restart).maybe_flag("force", force.then_some(true));
        self.change(Change::put(path(vm, ""), query).form("xml", xml))
    }

    /// Whether [`modify_vm`](Self::modify_vm) would be refused, for who asks somebody before it. A
    /// server that cannot tell does not know the path, and is taken for one that would not refuse.
    pub fn check_modify_vm(&self, vm: &str, xml: &str, force: bool) -> Result<(), Error> {
        let query = Query::new().maybe_flag("force", force.then_some(true));
        match self.change(Change::post(path(vm, "/check"), query).form("xml", xml)) {
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::BadAnswer) => Err(error),
            _ => Ok(()),
        }
    }

    pub fn rename_vm(&self, vm: &str, new_name: &str) -> Result<String, Error> {
        self.change(renaming(vm, new_name))
    }

    /// Whether [`rename_vm`](Self::rename_vm) would be refused; `None` if the server cannot tell.
    pub fn check_rename_vm(&self, vm: &str, new_name: &str) -> Result<Option<String>, Error> {
        self.check("/vm/{vm}/rename", renaming(vm, new_name))
    }

    pub fn delete_vm(&self, vm: &str, delete_disks: bool) -> Result<String, Error> {
        self.change(Change::delete(path(vm, ""), Query::new().flag("delete_disks", delete_disks)))
    }

    /// Whether [`delete_vm`](Self::delete_vm) would be refused; `None` if the server cannot tell,
    /// or there is no such VM. It is asked over a path of its own: a server that does not know a
    /// parameter would remove the VM.
    pub fn check_delete_vm(&self, vm: &str, delete_disks: bool) -> Result<Option<String>, Error> {
        let query = Query::new().flag("delete_disks", delete_disks);
        match self.get::<Message>(&path(vm, "/removal"), query).and_then(|answer| answer.read()) {
            Ok(answer) => Ok(Some(answer.message)),
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::BadAnswer) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The server's sentence about what it would do.
    fn check(&self, operation: &str, request: Change) -> Result<Option<String>, Error> {
        Ok(self.dry_run::<Message>(operation, request)?.map(|answer| answer.message))
    }

    pub fn set_vm_metadata(&self, vm: &str, metadata: &Metadata) -> Result<String, Error> {
        let downtime = metadata.migration_max_downtime.map(|milliseconds| milliseconds.to_string());
        let query = Query::new()
            .maybe("limit", metadata.limit.as_deref())
            .maybe("selector", metadata.selector.as_deref())
            .maybe_flag("autostart", metadata.autostart)
            .maybe("migration_method", metadata.migration_method.as_deref())
            .maybe("migration_max_downtime", downtime)
            .maybe("profile", metadata.profile.as_deref());
        self.change(Change::post(path(vm, "/meta"), query))
    }

    pub fn vm_tags(&self, vm: &str) -> Result<Payload<VmTags>, Error> {
        self.get(&path(vm, "/tags"), Query::new())
    }

    pub fn add_vm_tag(&self, vm: &str, tag: &str, protected: bool) -> Result<String, Error> {
        self.change_tag(vm, "add", tag, protected)
    }

    pub fn remove_vm_tag(&self, vm: &str, tag: &str) -> Result<String, Error> {
        self.change_tag(vm, "remove", tag, false)
    }

    fn change_tag(
        &self,
        vm: &str,
        action: &str,
        tag: &str,
        protected: bool,
    ) -> Result<String, Error> {
        let query =
            Query::new().text("action", action).text("tag", tag).flag("protected", protected);
        self.change(Change::post(path(vm, "/tags"), query))
    }

    pub fn set_vm_state(&self, vm: &str, request: &StateRequest) -> Result<String, Error> {
        self.change(state_change(vm, request))
    }

    /// Whether [`set_vm_state`](Self::set_vm_state) would be refused; `None` if the server cannot
    /// tell.
    pub fn check_vm_state(
        &self,
        vm: &str,
        request: &StateRequest,
    ) -> Result<Option<String>, Error> {
        self.check(
            "/vm/{vm}/state",
            state_change(vm, &StateRequest { wait: None, ..request.clone() }),
        )
    }

    pub fn place_vm(&self, vm: &str, placement: &Placement) -> Result<String, Error> {
        self.change(placed(vm, placement))
    }

    /// Where the VM would go, and how every node does. Changes nothing.
    pub fn plan_placement(&self, vm: &str, placement: &Placement) -> Result<MovePlan, Error> {
        self.plan("/vm/{vm}/node", placed(vm, placement))
    }

    /// Removes what a dead node left locked on the VM's volumes.
    pub fn flush_vm_locks(&self, vm: &str) -> Result<TaskRef, Error> {
        self.start(Change::post(path(vm, "/locks"), Query::new()))
    }

    /// Plugs a device into the running guest.
    pub fn attach_vm_device(&self, vm: &str, xml: &str) -> Result<TaskRef, Error> {
        self.start(Change::post(path(vm, "/device"), Query::new()).form("xml", xml))
    }

    /// Unplugs a device from the running guest.
    pub fn detach_vm_device(&self, vm: &str, xml: &str) -> Result<TaskRef, Error> {
        self.start(Change::delete(path(vm, "/device"), Query::new()).form("xml", xml))
    }

    /// The last lines of a VM's serial console.
    pub fn vm_console(&self, vm: &str, lines: usize) -> Result<String, Error> {
        let query = Query::new().text("lines", lines.to_string());
        let console: Payload<VmConsole> = self.get(&path(vm, "/console"), query)?;
        Ok(console.read()?.data)
    }
}
