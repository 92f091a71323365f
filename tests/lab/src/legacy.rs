//! A node that still runs PVC 1.0.3, which `pvc-legacy-daemon` plays in the place of our node
//! daemon.

use std::fs;

use pvc_standalone_tests::program;

use crate::Lab;

const PROGRAM: &str = "pvc-legacy-daemon";

/// Makes `pvcnoded` the legacy daemon until it is said otherwise. It makes no network and starts no
/// service by itself, which are there unless the node was switched off meanwhile. Of PVC, the
/// legacy daemon is all that runs.
const MAKES_IT_LEGACY: &str = "
    set -e
    systemctl stop pvcnoded
    systemctl --quiet mask --now pvcapid pvcworkerd
    mkdir -p /etc/systemd/system/pvcnoded.service.d
    cat >/etc/systemd/system/pvcnoded.service.d/legacy.conf <<'UNIT'
[Service]
Type=simple
WatchdogSec=0
TimeoutStopSec=90
ExecStartPre=/usr/local/lib/pvc-lab/network
ExecStartPre=/usr/bin/systemctl start --no-block zookeeper libvirtd patroni frr ceph-mon@%H \
ceph-mgr@%H
ExecStart=
ExecStart=/var/lib/pvc-lab/pvc-legacy-daemon
UNIT
    systemctl daemon-reload
";

/// Undoes it.
pub(crate) const ALL_IS_OURS: &str = "
    rm /etc/systemd/system/pvcnoded.service.d/legacy.conf 2>/dev/null || exit 0
    systemctl --quiet unmask pvcapid pvcworkerd
    systemctl daemon-reload
    systemctl restart pvcnoded pvcworkerd pvcapid
";

impl Lab {
    /// Stops what PVC is on `node`, whose guests run on. Its node daemon is the legacy one when
    /// it begins again.
    pub fn downgrade(&self, node: &str) {
        let shared = self.directory().join("shared").join(PROGRAM);
        // A node may still run the one that is there.
        let _ = fs::remove_file(&shared);
        fs::copy(program(PROGRAM), &shared).expect("the lab's folder can be written");
        self.on(node, MAKES_IT_LEGACY).ok();
        self.is_legacy(Some(node));
    }

    /// Starts the legacy daemon, and waits until the cluster knows it.
    pub fn begins_as_legacy(&self, node: &str) {
        self.on(node, "systemctl start pvcnoded").ok();
        self.node_is(node, "run", "ready");
    }

    /// Puts our daemons into the place of the legacy ones, while guests run.
    pub fn upgrade(&self, node: &str) {
        self.on(node, ALL_IS_OURS).ok();
        self.is_legacy(None);
        self.node_is(node, "run", "ready");
    }

    fn is_legacy(&self, node: Option<&str>) {
        if let Some(watch) = &self.watch {
            watch.is_legacy(node);
        }
    }
}
