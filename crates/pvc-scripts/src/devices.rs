use std::sync::Arc;

use pvc_ports::{Exec, Storage};

use crate::Home;

/// Block devices by the kernel: RBD's own, or loop devices on files.
pub struct LinuxBlockDevices {
    home: Home,
    storage: Arc<dyn Storage>,
    exec: Arc<dyn Exec>,
}

impl LinuxBlockDevices {
    pub fn new(home: Home, storage: Arc<dyn Storage>, exec: Arc<dyn Exec>) -> Self {
        LinuxBlockDevices { home, storage, exec }
    }
}
