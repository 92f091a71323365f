"""Provisioner script that defines a VM and installs nothing.

Use it for guests that are installed from a CD or over the network, and as the beginning of a script
of your own: the other examples have the same `create`. docs/manual/provisioner-scripts.md says
what a script can use.
"""

import random
from xml.sax.saxutils import escape

import daemon_lib.libvirt_schema as libvirt_schema
from daemon_lib.vmbuilder import VMBuilder


class VMBuilderScript(VMBuilder):
    # The worker calls setup, create, prepare, install and cleanup, in this order. A method that is
    # not here does nothing.

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
