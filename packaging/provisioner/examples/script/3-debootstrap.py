"""Provisioner script that installs Debian with debootstrap.

The node needs the package debootstrap, and those of the filesystems in the storage template. One
disk has the mountpoint `/`. The disk with `/boot`, or else that one, has a filesystem that GRUB
boots from a disk without partitions: ext2, ext3, ext4 or btrfs. A disk with the filesystem `swap`,
and no mountpoint, becomes swap space.

Arguments of the script, in a profile or with `pvc provisioner create --script-arg NAME=VALUE`:

  deb_release    release to install (stable)
  deb_mirror     archive to install from (http://deb.debian.org/debian)
  deb_packages   packages besides those of debootstrap, separated by commas; see PACKAGES below
  root_password  password of root; without it nobody logs in as root, and userdata makes the users
"""

import os
import random
import re
import shutil
import subprocess
from xml.sax.saxutils import escape

import daemon_lib.ceph as pvc_ceph
import daemon_lib.libvirt_schema as libvirt_schema
from daemon_lib.vmbuilder import VMBuilder, chroot, open_zk
from pvcworkerd.Daemon import config

MIRROR = "http://deb.debian.org/debian"
# dbus: systemd-logind needs it, which shuts the guest down when its power button is pressed.
PACKAGES = (
    "linux-image-amd64,grub-pc,dbus,cloud-init,systemd-resolved,openssh-server,"
    "ca-certificates,wget"
)
# /tmp is writable and belongs to this task alone.
TARGET = "/tmp/target"
BOOTABLE = ("ext2", "ext3", "ext4", "btrfs")

# Interfaces of a guest without cloud-init, which would configure them.
NETWORK = """\
[Match]
Name=en*

[Link]
RequiredForOnline=no

[Network]
DHCP=yes
"""

# A seed disk comes first, then the metadata service of PVC; a guest without either boots all the
# same.
CLOUD_INIT = """\
datasource_list: [NoCloud, Ec2, None]
datasource:
  Ec2:
    metadata_urls: ["http://169.254.169.254"]
    strict_id: false
    max_wait: 30
    timeout: 5
# With ifupdown a guest would wait minutes for DHCPv6, where there is none.
system_info:
  network:
    renderers: [networkd]
    activators: [networkd]
"""
# cloud-init would take this for no cloud, and do nothing.
DS_IDENTIFY = "policy: enabled\n"


class VMBuilderScript(VMBuilder):
    def setup(self):
        """Checks the profile, before anything is made."""
        # What cleanup takes back. Set here, because cleanup runs after every failure.
        self.mounted = []
        self.mapped = []

        if shutil.which("debootstrap") is None:
            self.fail("the package debootstrap is not installed on this node")
        if self.vm_data["system_architecture"] != "x86_64":
            self.fail("this script installs GRUB for BIOS, and needs nodes with x86_64")
        disks = {volume.get("mountpoint"): volume for volume in self.vm_data["volumes"]}
        if "/" not in disks:
            self.fail("no disk of the storage template has the mountpoint `/`")
        for mountpoint, volume in disks.items():
            if mountpoint and volume["filesystem"] == "swap":
                self.fail(f"disk {volume['disk_id']} is swap space, and has a mountpoint")
        self.boot_disk = disks.get("/boot", disks["/"])
        if self.boot_disk["filesystem"] not in BOOTABLE:
            self.fail(f"GRUB needs one of {', '.join(BOOTABLE)} on the disk that it boots from")

        arguments = self.vm_data["script_arguments"]
        self.release = arguments.get("deb_release") or "stable"
        # debootstrap runs the file of this name among its own.
        if not re.fullmatch("[a-z]+", self.release):
            self.fail(f"deb_release {self.release!r} is not the name of a release")
        self.mirror = arguments.get("deb_mirror") or MIRROR
        self.packages = arguments.get("deb_packages") or PACKAGES
        self.root_password = arguments.get("root_password")

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
        """Makes the volumes with their filesystems, and mounts these below TARGET."""
        with open_zk(config) as zkhandler:
            for volume in self.vm_data["volumes"]:
                self.make_volume(zkhandler, volume)
        os.mkdir(TARGET)
        for volume in self.filesystems():
            self.mount(volume["device"], TARGET + volume["mountpoint"])

    def make_volume(self, zkhandler, volume):
        """Makes a volume: a copy of another, one with a filesystem, or an empty one."""
        pool, name = volume["pool"], f"{self.vm_name}_{volume['disk_id']}"
        if volume.get("source_volume"):
            source = volume["source_volume"]
            self.check(pvc_ceph.clone_volume(zkhandler, pool, source, name))
            return
        self.check(pvc_ceph.add_volume(zkhandler, pool, name, f"{volume['disk_size_gb']}G"))
        if volume.get("filesystem"):
            device = self.check(pvc_ceph.map_volume(zkhandler, pool, name))
            self.mapped.append((pool, name))
            # What a method adds to vm_data is there in the methods after it. The device's own path
            # is there in the guest's root directory, too.
            volume["device"] = os.path.realpath(device)
            self.make_filesystem(volume)

    def make_filesystem(self, volume):
        """Makes the filesystem of a volume. Its arguments are kept as `-L=root -O=quota`."""
        filesystem = volume["filesystem"]
        program = "mkswap" if filesystem == "swap" else f"mkfs.{filesystem}"
        arguments = []
        for argument in (volume.get("filesystem_args") or "").split():
            name, _, value = argument.partition("=")
            arguments += [name, value] if value else [name]
        self.run(program, *arguments, volume["device"])

    def mount(self, source, directory, *options):
        """Mounts something, for cleanup to unmount."""
        os.makedirs(directory, exist_ok=True)
        self.run("mount", *options, source, directory)
        self.mounted.append(directory)

    def filesystems(self):
        """Returns the volumes to mount: `/` before `/var`, and that before `/var/lib`."""
        volumes = [v for v in self.vm_data["volumes"] if v.get("mountpoint")]
        return sorted(volumes, key=lambda volume: volume["mountpoint"])

    def install(self):
        """Installs the packages, then configures the guest and makes it bootable."""
        self.run("debootstrap", self.release, TARGET, self.mirror)
        # Not /run: packages would take it for a system that runs.
        for directory in ("/dev", "/proc", "/sys"):
            self.mount(directory, TARGET + directory, "--bind")
        # In this block `/` is the guest's.
        with chroot(TARGET):
            self.configure()
            self.install_packages()
            self.configure_network()
            self.set_root_password()
            # GRUB calls a disk without partitions unusual, and wants to be told.
            self.run("grub-install", "--force", "--target=i386-pc", self.boot_disk["device"])
            self.run("update-grub")
            # Made anew by the first boot, so that no two guests have the same.
            self.write("/etc/machine-id", "")

    def install_packages(self):
        """Installs what debootstrap does not: apt knows what packages depend on."""
        # Debian's way of saying that no service is to be started.
        self.write("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
        os.chmod("/usr/sbin/policy-rc.d", 0o755)
        self.run("apt-get", "--quiet", "update")
        # Files that are there already, such as /etc/default/grub, stay as they are.
        self.run(
            *("apt-get", "--quiet", "--assume-yes", "--option=Dpkg::Options::=--force-confold"),
            *("install", "--", *self.packages.split(",")),
        )
        self.run("apt-get", "clean")
        os.remove("/usr/sbin/policy-rc.d")

    def configure_network(self):
        """Leaves the network to systemd-networkd, configured by cloud-init if the guest has it."""
        self.run("systemctl", "enable", "systemd-networkd")
        if os.path.isdir("/etc/cloud/cloud.cfg.d"):
            self.write("/etc/cloud/cloud.cfg.d/90_pvc.cfg", CLOUD_INIT)
            self.write("/etc/cloud/ds-identify.cfg", DS_IDENTIFY)
        else:
            self.write("/etc/systemd/network/80-dhcp.network", NETWORK)

    def configure(self):
        """Writes the guest's files."""
        self.write("/etc/fstab", self.fstab())
        self.write("/etc/hostname", f"{self.vm_name}\n")
        self.write(
            "/etc/hosts",
            f"127.0.0.1 localhost\n127.0.1.1 {self.vm_name}\n::1 localhost ip6-localhost\n",
        )
        self.write("/etc/default/grub", self.grub_defaults())

    def fstab(self):
        """Returns the lines of /etc/fstab, by UUID: device names may change."""
        lines = []
        for volume in self.filesystems():
            check = 1 if volume["mountpoint"] == "/" else 2
            lines.append(
                f"UUID={self.uuid_of(volume)} {volume['mountpoint']} {volume['filesystem']}"
                f" defaults,discard,noatime 0 {check}\n"
            )
        for volume in self.vm_data["volumes"]:
            if volume.get("filesystem") == "swap":
                lines.append(f"UUID={self.uuid_of(volume)} none swap sw 0 0\n")
        return "".join(lines)

    def uuid_of(self, volume):
        """Returns the UUID of a volume's filesystem."""
        command = ["blkid", "-s", "UUID", "-o", "value", volume["device"]]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def grub_defaults(self):
        """Returns GRUB's settings: the root filesystem, and a serial console if the VM has one."""
        # GRUB would take the node's device for the root filesystem, and no loop device at all.
        lines = [f'GRUB_DEVICE="UUID={self.uuid_of(self.filesystems()[0])}"']
        lines += ["GRUB_DEFAULT=0", "GRUB_TIMEOUT=1", "GRUB_DISTRIBUTOR=Debian"]
        consoles = "console=tty0"
        if self.vm_data["system_details"]["serial"]:
            consoles += " console=ttyS0,115200n8"
            lines += [
                'GRUB_TERMINAL="console serial"',
                'GRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"',
            ]
        lines.append(f'GRUB_CMDLINE_LINUX="{consoles}"')
        return "\n".join(lines) + "\n"

    def set_root_password(self):
        """Sets root's password, if the arguments have one; debootstrap leaves root locked."""
        if self.root_password:
            subprocess.run(
                ["chpasswd"], input=f"root:{self.root_password}\n", text=True, check=True
            )

    def cleanup(self):
        """Unmounts and unmaps everything that can be, also after half a prepare."""
        kept = []
        for directory in reversed(self.mounted):
            if subprocess.run(["umount", directory]).returncode != 0:
                kept.append(f"{directory} is still mounted")
        with open_zk(config) as zkhandler:
            for pool, name in reversed(self.mapped):
                success, message = pvc_ceph.unmap_volume(zkhandler, pool, name)
                if not success:
                    kept.append(message)
        if kept:
            self.fail("; ".join(kept))

    def run(self, *command):
        """Runs a command, whose output becomes lines of the task's log, and fails if it does."""
        environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        # In a chroot systemctl is to change files, and not to look for a systemd that runs.
        environment["SYSTEMD_OFFLINE"] = "1"
        code = subprocess.run(command, env=environment).returncode
        if code != 0:
            self.fail(f"`{' '.join(command)}` ended with code {code}")

    def write(self, path, text):
        """Writes a file."""
        with open(path, "w") as file:
            file.write(text)

    def check(self, result):
        """Returns what a function of PVC has returned, and fails if it did nothing."""
        success, message = result
        if not success:
            self.fail(message)
        return message
