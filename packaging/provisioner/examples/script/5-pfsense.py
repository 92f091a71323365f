"""Provisioner script that writes a pfSense image onto the first disk, and configures it.

The image is one of an installed pfSense, as it is made once by hand, or with Packer; raw or qcow2.
On the second disk of the storage template, if it has one with the filesystem `vfat`, the script
writes a configuration. pfSense looks for such a file at boot and takes it over ("External
Configuration Locator"). The disk can be removed afterwards: its file has the hash of the password.
Whoever needs another appliance replaces `configuration`, or leaves the second disk out.

The node needs the package qemu-utils, and for a second disk dosfstools and mtools.

The project has tried the writing of image and configuration, not pfSense itself.

Arguments of the script, in a profile or with `pvc provisioner create --script-arg NAME=VALUE`:

  pfsense_image         address of the image, http or https; needed
  pfsense_image_sha256  SHA-256 checksum of the image; needed

and with a second disk:

  pfsense_admin_hash    bcrypt hash of the password of `admin` (`htpasswd -nbB admin PASSWORD`)
  pfsense_wan_iface     interface to the outside, such as `vtnet0`
  pfsense_wan_dhcp      anything: its address is given by DHCP; without it:
  pfsense_wan_address   its address with the length of the prefix, such as `192.0.2.10/24`
  pfsense_wan_gateway   its gateway
  vm_fqdn               name with domain (the name of the VM in `localdomain`)
"""

import hashlib
import json
import os
import random
import subprocess
import urllib.request
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import daemon_lib.ceph as pvc_ceph
import daemon_lib.libvirt_schema as libvirt_schema
from daemon_lib.vmbuilder import VMBuilder, open_zk
from pvcworkerd.Daemon import config

# /tmp is writable and belongs to this task alone. It is memory, at most half of the node's.
IMAGE = "/tmp/image"
CONFIGURATION = "/tmp/config.xml"
# Form of the configuration; pfSense brings older ones up to date.
CONFIG_VERSION = "21.7"


class VMBuilderScript(VMBuilder):
    def setup(self):
        """Checks the arguments, before anything is made."""
        # Volumes that are mapped, as pairs of pool and name. Set here, before anything can fail,
        # because cleanup runs after every failure.
        self.mapped = []

        self.arguments = self.vm_data["script_arguments"]
        self.need("pfsense_image", "pfsense_image_sha256")
        if not self.arguments["pfsense_image"].startswith(("http://", "https://")):
            self.fail("argument `pfsense_image` is no address with http or https")
        if not self.vm_data["volumes"]:
            self.fail("the storage template has no disk")
        if self.config_disk() is not None:
            self.need("pfsense_admin_hash", "pfsense_wan_iface")
            if not self.arguments.get("pfsense_wan_dhcp"):
                self.need("pfsense_wan_address", "pfsense_wan_gateway")

    def need(self, *names):
        """Fails if one of these arguments is missing."""
        missing = [name for name in names if not self.arguments.get(name)]
        if missing:
            self.fail(f"the script needs the argument `{missing[0]}`")

    def config_disk(self):
        """Returns the disk for the configuration, if the storage template has one."""
        return next((v for v in self.vm_data["volumes"][1:] if v["filesystem"] == "vfat"), None)

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
        """Makes the volumes, maps them, and makes the filesystem for the configuration."""
        with open_zk(config) as zkhandler:
            for volume in self.vm_data["volumes"]:
                pool, name = volume["pool"], f"{self.vm_name}_{volume['disk_id']}"
                size = f"{volume['disk_size_gb']}G"
                self.check(pvc_ceph.add_volume(zkhandler, pool, name, size))
                # What a method adds to vm_data is there in the methods after it.
                volume["device"] = self.check(pvc_ceph.map_volume(zkhandler, pool, name))
                self.mapped.append((pool, name))
        if self.config_disk() is not None:
            # -I: on a disk without partitions.
            self.run("mkfs.vfat", "-I", self.config_disk()["device"])

    def install(self):
        """Writes the image and the configuration."""
        self.download()
        image_format, size = self.image_info()
        device = self.vm_data["volumes"][0]["device"]
        with open(device, "rb") as file:
            room = file.seek(0, os.SEEK_END)
        if size > room:
            self.fail(f"the image needs a disk of {size} bytes, and the first has {room}")
        # -n: the target is there already.
        self.run("qemu-img", "convert", "-n", "-f", image_format, "-O", "raw", IMAGE, device)
        if self.config_disk() is not None:
            device = self.config_disk()["device"]
            self.configuration().write(CONFIGURATION, encoding="utf-8", xml_declaration=True)
            # mtools write into the filesystem without mounting it.
            self.run("mmd", "-i", device, "::config")
            self.run("mcopy", "-i", device, CONFIGURATION, "::config/config.xml")

    def download(self):
        """Downloads the image, and fails if it is not the one with the checksum."""
        checksum = hashlib.sha256()
        with urllib.request.urlopen(self.arguments["pfsense_image"], timeout=60) as answer:
            with open(IMAGE, "wb") as file:
                while block := answer.read(1 << 20):
                    checksum.update(block)
                    file.write(block)
        if checksum.hexdigest() != self.arguments["pfsense_image_sha256"].lower():
            self.fail(f"the image has another checksum: {checksum.hexdigest()}")

    def image_info(self):
        """Returns the image's format and the size of its disk. It is no overlay of another."""
        answer = subprocess.run(
            ["qemu-img", "info", "--output=json", IMAGE], check=True, capture_output=True
        )
        info = json.loads(answer.stdout)
        if info["format"] not in ("raw", "qcow2") or "backing-filename" in info:
            self.fail("the image is neither raw nor a qcow2 without a backing file")
        return info["format"], info["virtual-size"]

    def configuration(self):
        """Returns a configuration with one interface, and `admin` as its only user."""
        name, _, domain = self.arguments.get("vm_fqdn", self.vm_name).partition(".")
        root = element(
            "pfsense",
            element("version", CONFIG_VERSION),
            element(
                "system",
                element("hostname", name),
                element("domain", domain or "localdomain"),
                element(
                    "group",
                    element("name", "admins"),
                    element("scope", "system"),
                    element("gid", "1999"),
                    element("member", "0"),
                    element("priv", "page-all"),
                ),
                element(
                    "user",
                    element("name", "admin"),
                    element("scope", "system"),
                    element("groupname", "admins"),
                    element("bcrypt-hash", self.arguments["pfsense_admin_hash"]),
                    element("uid", "0"),
                    element("priv", "user-shell-access"),
                ),
                element("nextuid", "2000"),
                element("nextgid", "2000"),
                element("webgui", element("protocol", "https")),
            ),
            element("interfaces", self.wan()),
        )
        if not self.arguments.get("pfsense_wan_dhcp"):
            root.append(
                element(
                    "gateways",
                    element(
                        "gateway_item",
                        element("name", "WANGW"),
                        element("interface", "wan"),
                        element("gateway", self.arguments["pfsense_wan_gateway"]),
                        element("ipprotocol", "inet"),
                        element("weight", "1"),
                    ),
                    element("defaultgw4", "WANGW"),
                )
            )
        return ElementTree.ElementTree(root)

    def wan(self):
        """Returns the interface to the outside."""
        wan = element(
            "wan", element("enable", ""), element("if", self.arguments["pfsense_wan_iface"])
        )
        if self.arguments.get("pfsense_wan_dhcp"):
            wan.append(element("ipaddr", "dhcp"))
        else:
            address, _, prefix = self.arguments["pfsense_wan_address"].partition("/")
            wan.append(element("ipaddr", address))
            wan.append(element("subnet", prefix or "24"))
            wan.append(element("gateway", "WANGW"))
        return wan

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

    def run(self, *command):
        """Runs a command, whose output becomes lines of the task's log, and fails if it does."""
        environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        code = subprocess.run(command, env=environment).returncode
        if code != 0:
            self.fail(f"`{' '.join(command)}` ended with code {code}")

    def check(self, result):
        """Returns what a function of PVC has returned, and fails if it did nothing."""
        success, message = result
        if not success:
            self.fail(message)
        return message


def element(name, *content):
    """Returns an XML element with a text or with other elements in it."""
    made = ElementTree.Element(name)
    for part in content:
        if isinstance(part, str):
            made.text = part
        else:
            made.append(part)
    return made
