//! Inside the nodes: the tree as any other program sees it, and guests as whoever sits at their
//! console.

use pvc_standalone_tests::eventually;

use crate::{Lab, NODES, truth};

/// Port at which libvirt hears of a guest that is to come, and where the guest itself then comes
/// in.
pub const LIBVIRT: &str = "16509";
pub const GUESTS: &str = "49152-49215";

/// Reads, writes, makes or deletes keys, as a peer that keeps to no rule.
const TREE: &str = "
import sys
from kazoo.client import KazooClient
order, path, value = sys.argv[1:4]
tree = KazooClient(hosts='pvchv1:2181,pvchv2:2181,pvchv3:2181')
tree.start(30)
if order == 'read': print(tree.get(path)[0].decode(), end='')
if order == 'write': tree.ensure_path(path); tree.set(path, value.encode())
if order == 'delete' and tree.exists(path): tree.delete(path)
if order == 'locks':
    for uuid in tree.get_children(path):
        for key in ['node', 'state', 'migrate_sync_lock']:
            for child in tree.get_children(f'{path}/{uuid}/{key}'): print(f'{uuid}/{key}/{child}')
tree.stop()
";

/// Puts a node of `/dev` into the place of each loop device that is a mount.
const PLAIN_LOOP_DEVICES: &str = "
    for device in /dev/loop[0-9]*; do
        umount --lazy $device 2>/dev/null || continue
        rm $device && mknod $device b 7 ${device#/dev/loop} || exit
    done
";

impl Lab {
    /// Has `node` have loop devices as a machine has them, until it loses its power. In a container
    /// each is a file that is mounted, which a plain bind of `/dev` does not show.
    pub fn has_plain_loop_devices(&self, node: &str) {
        self.on(node, PLAIN_LOOP_DEVICES).ok();
    }

    /// Value of a key of the tree.
    pub fn key(&self, path: &str) -> String {
        self.tree(&["read", path, ""])
    }

    /// Writes a key of the tree, whatever PVC would say to it.
    pub fn write_key(&self, path: &str, value: &str) {
        self.tree(&["write", path, value]);
    }

    /// Takes a key of the tree away.
    pub fn delete_key(&self, path: &str) {
        self.tree(&["delete", path, ""]);
    }

    /// The locks that somebody has, or waits for, on the records of VMs.
    pub(crate) fn locks_on_vms(&self) -> String {
        self.tree(&["locks", "/domains", ""])
    }

    fn tree(&self, order: &[&str]) -> String {
        let words = [&["exec", NODES[0], "--", "python3", "-c", TREE], order].concat();
        self.does(&words).ok().to_owned()
    }

    /// The processes that carry `guest`, by this machine's numbers: the same as before means that
    /// nobody has ended or moved it.
    pub fn processes_of(&self, guest: &str) -> Vec<u32> {
        let all = truth::guests(&self.prefix()).into_iter();
        all.filter(|qemu| qemu.guest == guest).map(|qemu| qemu.id).collect()
    }

    /// The last beat of `guest` on its console on `node`, which beats every two seconds; 0 before
    /// the first.
    pub fn beat(&self, node: &str, guest: &str) -> u32 {
        self.beat_at(node, guest, "tail")
    }

    /// The first beat of `guest` on its console on `node`; 0 if there is none yet.
    pub fn first_beat(&self, node: &str, guest: &str) -> u32 {
        self.beat_at(node, guest, "head")
    }

    fn beat_at(&self, node: &str, guest: &str, end: &str) -> u32 {
        let beats =
            format!("grep -ao 'heartbeat [0-9]*,' /var/log/libvirt/{guest}.log | {end} -n 1");
        let beat = self.on(node, &beats);
        beat.stdout
            .trim()
            .trim_start_matches("heartbeat ")
            .trim_end_matches(',')
            .parse()
            .unwrap_or_default()
    }

    /// Waits until `guest` has beaten on its console on `node` more often than `before`.
    pub fn beats_on(&self, node: &str, guest: &str, before: u32) {
        eventually(&format!("{guest} beats on {node}"), 60, || match self.beat(node, guest) {
            beat if beat > before => Ok(()),
            beat => Err(format!("its last beat there is {beat}")),
        });
    }

    /// Nobody reaches these TCP ports of `node` any more.
    pub fn shut(&self, node: &str, ports: &str) {
        let chain = "add table inet story; add chain inet story input { type filter hook input \
                     priority 0; }";
        let rule = format!("add rule inet story input tcp dport {ports} reject with tcp reset");
        self.on(node, &format!("nft '{chain}; {rule}'")).ok();
    }

    /// Everybody reaches all ports of `node` again.
    pub fn open(&self, node: &str) {
        self.on(node, "nft delete table inet story");
    }

    /// Types a line at the console of `guest`, which runs on `node`, until its answer has these
    /// words.
    pub fn types(&self, node: &str, guest: &str, line: &str, answer: &str) {
        // QEMU neither reads nor writes there unless somebody stays and listens.
        let script = format!(
            "exec 3<>\"$(virsh ttyconsole {guest})\"
            cat <&3 >/dev/null & listener=$!
            for _ in $(seq 60); do
                echo '{line}' >&3; sleep 1
                grep -aq '{answer}' /var/log/libvirt/{guest}.log && break
            done
            kill $listener
            grep -a '{answer}' /var/log/libvirt/{guest}.log"
        );
        self.on(node, &script).ok();
    }

    /// Value of a field of `pvc vm info`.
    pub fn vm(&self, guest: &str, field: &str) -> String {
        eventually(&format!("`pvc vm info {guest}` answers"), 60, || {
            self.json(&["vm", "info", guest])
                .map(|vm| vm.pointer(field).map_or_else(String::new, crate::plain))
        })
    }

    /// Waits until that field says so.
    pub fn vm_is(&self, guest: &str, field: &str, wanted: &str) {
        eventually(&format!("{field} of {guest} is `{wanted}`"), 120, || {
            match self.vm(guest, field) {
                value if value == wanted => Ok(()),
                value => Err(format!("it is `{value}`")),
            }
        });
    }
}
