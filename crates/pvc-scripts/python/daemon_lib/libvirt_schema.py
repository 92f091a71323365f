"""Pieces of libvirt's domain XML, which a script's `create` fills by `str.format` and joins.

Order: `libvirt_header`, `devices_default`, any other devices, `libvirt_footer`. A disk is
`devices_disk_header`, a `devices_disk_coordinator` for each monitor, and `devices_disk_footer`.
"""

__all__ = [
    "devices_default",
    "devices_disk_coordinator",
    "devices_disk_footer",
    "devices_disk_header",
    "devices_net_interface",
    "devices_scsi_controller",
    "devices_serial",
    "devices_vhostmd",
    "devices_vnc",
    "libvirt_footer",
    "libvirt_header",
]

libvirt_header = """<domain type='kvm'>
  <name>{vm_name}</name>
  <uuid>{vm_uuid}</uuid>
  <description>{vm_description}</description>
  <memory unit='MiB'>{vm_memory}</memory>
  <vcpu>{vm_vcpus}</vcpu>
  <os>
    <type arch='{vm_architecture}' machine='pc-i440fx-2.7'>hvm</type>
    <boot dev='cdrom'/>
    <boot dev='hd'/>
    <bootmenu enable='yes'/>
    <bios useserial='yes' rebootTimeout='5'/>
  </os>
  <features>
    <acpi/>
    <apic/>
    <pae/>
  </features>
  <cpu mode='host-model'>
    <topology sockets='1' cores='{vm_vcpus}' threads='1'/>
  </cpu>
  <clock offset='utc'/>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>restart</on_crash>
  <devices>
"""

libvirt_footer = """  </devices>
</domain>
"""

devices_default = """    <emulator>/usr/bin/kvm</emulator>
    <console type='pty'/>
    <controller type='usb' index='0'/>
    <controller type='pci' index='0' model='pci-root'/>
    <rng model='virtio'>
      <rate period='1000' bytes='2048'/>
      <backend model='random'>/dev/random</backend>
    </rng>
    <channel type='unix'>
      <target type='virtio' name='org.qemu.guest_agent.0'/>
    </channel>
"""

devices_serial = """    <serial type='pty'>
      <log file='/var/log/libvirt/{vm_name}.log' append='on'/>
    </serial>
"""

devices_vnc = """    <graphics type='vnc' port='{vm_vncport}' autoport='{vm_vnc_autoport}'
      listen='{vm_vnc_bind}'/>
"""

devices_scsi_controller = """    <controller type='scsi' index='0' model='virtio-scsi'/>
"""

devices_disk_header = """    <disk type='network' device='disk'>
      <driver name='qemu' discard='unmap' cache='none'/>
      <target dev='{disk_id}' bus='scsi'/>
      <auth username='libvirt'>
        <secret type='ceph' uuid='{ceph_storage_secret}'/>
      </auth>
      <source protocol='rbd' name='{disk_pool}/{vm_name}_{disk_id}'>
"""

devices_disk_coordinator = """        <host name='{coordinator_name}'
          port='{coordinator_ceph_mon_port}'/>
"""

devices_disk_footer = """      </source>
    </disk>
"""

devices_vhostmd = """    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='/dev/shm/vhostmd0'/>
      <target dev='sdz' bus='usb'/>
      <readonly/>
    </disk>
"""

devices_net_interface = """    <interface type='bridge'>
      <mac address='{eth_macaddr}'/>
      <source bridge='{eth_bridge}'/>
      <model type='virtio'/>
    </interface>
"""
