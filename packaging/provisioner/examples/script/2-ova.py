"""Provisioner script that deploys an OVA.

`pvc provisioner ova upload` looks for a script called `ova` or `default_ova`: add this one by such
a name. Each image of the OVA is converted onto a new volume of the VM.
"""

import random
from xml.sax.saxutils import escape

import daemon_lib.ceph as pvc_ceph
import daemon_lib.common as pvc_common
import daemon_lib.libvirt_schema as libvirt_schema
from daemon_lib.vmbuilder import VMBuilder, open_zk
from pvcworkerd.Daemon import config


class VMBuilderScript(VMBuilder):
    def setup(self):
        """Refuses a profile that has no OVA."""
        # Volumes that are mapped, as pairs of pool and name. Set here, before anything can fail,
        # because cleanup runs after every failure.
        self.mapped = []
        if "ova_details" not in self.vm_data:
            self.fail("this script needs a profile of type `ova`")

    def create(self):
        """Returns the VM's XML, made of the profile's templates."""
        system = self.vm_data["system_details"]
        xml = libvirt_schema.libvirt_header.format(
            vm_name=self.vm_name,
            vm_uuid=self.vm_uuid,
            vm_description=f"PVC provisioner: profile {escape(self.vm_profile)}",
            vm_memory=system["vram_mb"],
            vm_vcpus=system["vcpu_count"],
            vm_architecture=self.vm_data["system_architecture"],
        )
        xml += libvirt_schema.devices_default
        if system["serial"]:
            xml += libvirt_schema.devices_serial.format(vm_name=self.vm_name)
        if system["vnc"]:
            xml += libvirt_schema.devices_vnc.format(
                vm_vncport=5900,
                vm_vnc_autoport="yes",
                vm_vnc_bind=system["vnc_bind"] or "127.0.0.1",
            )
        for number, network in enumerate(self.vm_data["networks"]):
            xml += libvirt_schema.devices_net_interface.format(
                eth_macaddr=self.mac_address(number), eth_bridge=network["eth_bridge"]
            )
        xml += libvirt_schema.devices_scsi_controller
        for volume in self.vm_data["volumes"]:
            xml += self.disk(volume)
        return xml + libvirt_schema.libvirt_footer

    def mac_address(self, number):
        """Returns the MAC address of the interface with this number, counted from 0."""
        template = self.vm_data["mac_template"]
        if template:
            return template.format(
                prefix="52:54:01", vmid=f"{self.vm_id % 16:x}", netid=f"{number % 16:x}"
            )
        return "52:54:00:" + ":".join(f"{random.randrange(256):02x}" for _ in range(3))

    def disk(self, volume):
        """Returns the XML of a disk; its volume is called `VM_DISK`, such as `web1_sda`."""
        xml = libvirt_schema.devices_disk_header.format(
            ceph_storage_secret=self.vm_data["ceph_monitor_secret"],
            disk_pool=volume["pool"],
            vm_name=self.vm_name,
            disk_id=volume["disk_id"],
        )
        for monitor in self.vm_data["ceph_monitor_list"]:
            xml += libvirt_schema.devices_disk_coordinator.format(
                coordinator_name=monitor,
                coordinator_ceph_mon_port=self.vm_data["ceph_monitor_port"],
            )
        return xml + libvirt_schema.devices_disk_footer

    def prepare(self):
        """Makes a volume for each disk, and maps it and the image that it is copied from."""
        with open_zk(config) as zkhandler:
            for volume in self.vm_data["volumes"]:
                pool = volume["pool"]
                name = f"{self.vm_name}_{volume['disk_id']}"
                self.check(
                    pvc_ceph.add_volume(zkhandler, pool, name, f"{volume['disk_size_gb']}G")
                )
                # What a method adds to vm_data is there in the methods after it.
                volume["source_device"] = self.map(zkhandler, pool, volume["volume_name"])
                volume["target_device"] = self.map(zkhandler, pool, name)

    def map(self, zkhandler, pool, name):
        """Maps a volume and returns the path of its block device."""
        device = self.check(pvc_ceph.map_volume(zkhandler, pool, name))
        self.mapped.append((pool, name))
        return device

    def check(self, result):
        """Returns what a function of PVC has returned, and fails if it did nothing."""
        success, message = result
        if not success:
            self.fail(message)
        return message

    def install(self):
        """Converts the images."""
        for volume in self.vm_data["volumes"]:
            self.log_info(f"converting the image of disk {volume['disk_id']}")
            code, _, errors = pvc_common.run_os_command(
                # -n: the target is there already.
                ["qemu-img", "convert", "-n", "-f", volume["volume_format"], "-O", "raw"]
                + [volume["source_device"], volume["target_device"]]
            )
            if code != 0:
                self.fail(f"qemu-img ended with code {code}: {errors.strip()}")

    def cleanup(self):
        """Unmaps the volumes, all that can be."""
        kept = []
        with open_zk(config) as zkhandler:
            for pool, name in reversed(self.mapped):
                success, message = pvc_ceph.unmap_volume(zkhandler, pool, name)
                if not success:
                    kept.append(message)
        if kept:
            self.fail("; ".join(kept))
