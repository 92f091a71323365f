"""The example scripts and userdata that the packages ship."""

import email
import hashlib
import http.server
import os
import shutil
import subprocess
import tempfile
import threading
import unittest
import uuid
from xml.etree import ElementTree

from job import JobTest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3)
EXAMPLES = os.path.join(EXAMPLES, "packaging", "provisioner", "examples")
SCRIPTS = ("1-noop", "2-ova", "3-debootstrap", "4-rinse", "5-pfsense")

# Put behind a script: its commands are written down and not run, those in REAL excepted; one that
# begins with FAILING fails. The installers make the directories that they would make.
PRETENCE = """
import os, subprocess, types
REAL, FAILING = %r, %r
shutil = types.SimpleNamespace(which=lambda name: name)
really, CompletedProcess = subprocess.run, subprocess.CompletedProcess
def pretend(command, input=None, **options):
    print(*command, *([repr(input)] if input else []))
    if FAILING and " ".join(command).startswith(FAILING):
        return CompletedProcess(command, 1)
    if command[0] in REAL:
        return really(command, **options)
    if command[0] in ("debootstrap", "rinse"):
        for directory in ("default", "systemd/network", "cloud/cloud.cfg.d"):
            os.makedirs(f"/tmp/target/etc/{directory}")
        os.makedirs("/tmp/target/usr/sbin")
    return CompletedProcess(command, 0, stdout="UUID-" + command[-1][-1])
subprocess = types.SimpleNamespace(run=pretend)
"""


def example(name):
    """Returns the text of an example."""
    with open(os.path.join(EXAMPLES, name)) as file:
        return file.read()


def volume(disk_id, filesystem=None, mountpoint=None, arguments="", source=None):
    """Returns a row of a storage template's disk."""
    return {
        "id": 1,
        "storage_template": 1,
        "pool": "vms",
        "disk_id": disk_id,
        "source_volume": source,
        "disk_size_gb": None if source else 2,
        "mountpoint": mountpoint,
        "filesystem": filesystem,
        "filesystem_args": arguments,
    }


def vm_data(volumes, arguments=None, mac_template=None, **more):
    """Returns what the worker gives a script."""
    return {
        "system_details": {
            "vcpu_count": 2,
            "vram_mb": 1024,
            "serial": True,
            "vnc": True,
            "vnc_bind": None,
        },
        "mac_template": mac_template,
        "networks": [
            {"id": 1, "network_template": 1, "vni": "1001", "eth_bridge": "vmbr1001"},
            {"id": 2, "network_template": 1, "vni": "cluster", "eth_bridge": "brcluster"},
        ],
        "volumes": volumes,
        "script": "",
        "system_architecture": "x86_64",
        "ceph_monitor_list": ["hv1.storage", "hv2.storage"],
        "ceph_monitor_port": "6789",
        "ceph_monitor_secret": str(uuid.UUID(int=9)),
        "script_arguments": arguments or {},
        **more,
    }


class ExampleTest(JobTest):
    """Job of an example, with volumes whose devices are called after them."""

    def example(self, name, data, real=(), failing=None, answers=None):
        """Starts an example with pretended commands."""
        return self.job(
            example(f"script/{name}.py") + PRETENCE % (real, failing),
            vm_data=data,
            answers={
                "ceph.map_volume": lambda pool, name: [True, f"/dev/rbd/{pool}/{name}"],
                **(answers or {}),
            },
        ).ready()

    def run_all(self, job):
        """Runs the phases as the worker does, and returns the first failure, if there is any."""
        failure = None
        for phase in ("setup", "create", "prepare", "install"):
            message = job.phase(phase)
            if "failed" in message:
                failure = message
                break
        self.assertEqual(job.phase("cleanup"), {"done": None})
        return failure

    def read(self, job, path):
        """Returns a file that the script has written, as it would name it."""
        # Nothing was mounted in truth, so that it is still there after cleanup.
        with open(f"/proc/{job.python()}/root{job.root}{path}") as file:
            return file.read()

    def assert_nothing_left(self, job):
        """Checks that what was mapped or mounted is not any more, the last first."""
        mapped, mounted = [], []
        for call in job.calls:
            name = call["arguments"].get("name")
            if call["function"] == "ceph.map_volume":
                mapped.append(name)
            elif call["function"] == "ceph.unmap_volume":
                self.assertEqual(mapped.pop(), name)
        for line in job.printed().splitlines():
            program, *arguments = line.split()
            if program == "mount":
                mounted.append(arguments[-1])
            elif program == "umount":
                self.assertEqual([mounted.pop()], arguments)
        self.assertEqual((mapped, mounted), ([], []))


class Xml(ExampleTest):
    VOLUMES = [volume("sda", "ext4", "/"), volume("sdb", source="base")]
    ARGUMENTS = {"pfsense_image": "http://x", "pfsense_image_sha256": "0"}

    def xml(self, name, **data):
        """Returns the XML that an example makes."""
        job = self.example(name, vm_data(self.VOLUMES, self.ARGUMENTS, ova_details={}, **data))
        self.assertEqual(job.phase("setup"), {"done": None})
        return job.phase("create")["done"]

    def test_every_example_makes_the_same_sensible_domain(self):
        made = {self.xml(name, mac_template="{prefix}:aa:bb:{vmid}{netid}") for name in SCRIPTS}
        self.assertEqual(len(made), 1)
        domain = ElementTree.fromstring(made.pop())
        self.assertEqual(domain.get("type"), "kvm")
        for path, text in (
            ("name", "web1"),
            ("uuid", str(uuid.UUID(int=7))),
            ("memory[@unit='MiB']", "1024"),
            ("vcpu", "2"),
            ("os/type[@arch='x86_64'][@machine='pc-i440fx-2.7']", "hvm"),
            ("on_poweroff", "destroy"),
            ("on_reboot", "restart"),
            ("on_crash", "restart"),
            ("devices/emulator", "/usr/bin/kvm"),
        ):
            self.assertEqual(domain.findtext(path), text, path)
        self.assertEqual([boot.get("dev") for boot in domain.iter("boot")], ["cdrom", "hd"])
        self.assertEqual(domain.find("cpu/topology").get("cores"), "2")
        devices = domain.find("devices")
        self.assertEqual(devices.find("serial/log").get("file"), "/var/log/libvirt/web1.log")
        self.assertEqual(devices.find("graphics").get("listen"), "127.0.0.1")
        self.assertEqual(
            [(i.find("mac").get("address"), i.find("source").get("bridge"))
             for i in devices.iter("interface")],
            [("52:54:01:aa:bb:10", "vmbr1001"), ("52:54:01:aa:bb:11", "brcluster")],
        )
        disks = devices.findall("disk")
        self.assertEqual(
            [(d.find("source").get("name"), d.find("target").get("dev")) for d in disks],
            [("vms/web1_sda", "sda"), ("vms/web1_sdb", "sdb")],
        )
        for disk in disks:
            self.assertEqual(
                [(h.get("name"), h.get("port")) for h in disk.findall("source/host")],
                [("hv1.storage", "6789"), ("hv2.storage", "6789")],
            )
            self.assertEqual(disk.find("auth/secret").get("uuid"), str(uuid.UUID(int=9)))
            self.assertEqual(
                disk.find("driver").attrib,
                {"name": "qemu", "discard": "unmap", "cache": "none"},
            )

    def test_the_pieces_make_the_hardware_that_those_of_pvc_1_0_3_made(self):
        vhostmd = self.piece("devices_vhostmd")
        xml = self.xml("1-noop").replace("  </devices>", f"{vhostmd}</devices>")
        domain = ElementTree.fromstring(xml)
        for path in (
            "os/bootmenu[@enable='yes']",
            "os/bios[@useserial='yes'][@rebootTimeout='5']",
            "features/acpi",
            "features/apic",
            "features/pae",
            "cpu[@mode='host-model']/topology[@sockets='1'][@cores='2'][@threads='1']",
            "clock[@offset='utc']",
            "devices/console[@type='pty']",
            "devices/controller[@type='usb'][@index='0']",
            "devices/controller[@type='pci'][@index='0'][@model='pci-root']",
            "devices/controller[@type='scsi'][@index='0'][@model='virtio-scsi']",
            "devices/rng[@model='virtio']/rate[@period='1000'][@bytes='2048']",
            "devices/channel[@type='unix']/target[@type='virtio'][@name='org.qemu.guest_agent.0']",
            "devices/serial[@type='pty']/log[@append='on']",
            "devices/graphics[@type='vnc'][@port='5900'][@autoport='yes']",
        ):
            self.assertEqual(len(domain.findall(path)), 1, path)
        random = domain.find("devices/rng/backend[@model='random']")
        self.assertEqual(random.text, "/dev/random")
        for interface in domain.iter("interface"):
            self.assertEqual(interface.get("type"), "bridge")
            self.assertEqual(interface.find("model").get("type"), "virtio")
        *disks, vhostmd = domain.findall("devices/disk")
        for disk in disks:
            self.assertEqual(disk.attrib, {"type": "network", "device": "disk"})
            self.assertEqual(disk.find("source").get("protocol"), "rbd")
            self.assertEqual(disk.find("target").get("bus"), "scsi")
            self.assertEqual(disk.find("auth").get("username"), "libvirt")
            self.assertEqual(disk.find("auth/secret").get("type"), "ceph")
        self.assertEqual(vhostmd.find("source").get("file"), "/dev/shm/vhostmd0")
        self.assertEqual(vhostmd.find("target").attrib, {"dev": "sdz", "bus": "usb"})
        self.assertIsNotNone(vhostmd.find("readonly"))

    def test_the_name_of_a_profile_is_text_in_the_xml(self):
        job = self.job(
            example("script/1-noop.py"), vm_data=vm_data([]), vm_profile="small & <cheap>"
        ).ready()
        domain = ElementTree.fromstring(job.phase("create")["done"])
        self.assertEqual(
            domain.findtext("description"), "PVC provisioner: profile small & <cheap>"
        )

    def test_without_a_template_mac_addresses_are_random(self):
        addresses = set()
        for _ in range(2):
            domain = ElementTree.fromstring(self.xml("1-noop"))
            addresses |= {mac.get("address") for mac in domain.iter("mac")}
        self.assertEqual(len(addresses), 4)
        for address in addresses:
            self.assertRegex(address, "^52:54:00(:[0-9a-f]{2}){3}$")

    @unittest.skipUnless(shutil.which("virt-xml-validate"), "libvirt-clients is not installed")
    def test_libvirts_schema_accepts_the_domain_with_every_piece(self):
        vhostmd = self.piece("devices_vhostmd")
        xml = self.xml("1-noop").replace("  </devices>", f"{vhostmd}</devices>")
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(xml)
            file.flush()
            done = subprocess.run(
                ["virt-xml-validate", file.name, "domain"], capture_output=True, text=True
            )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def piece(self, name):
        """Returns a piece of `libvirt_schema`."""
        job = self.builder(
            f"def setup(self): self.log_info(libvirt_schema.{name})",
            top="import daemon_lib.libvirt_schema as libvirt_schema",
        )
        job.phase("setup")
        return job.log[0]["text"]


class Installers(ExampleTest):
    VOLUMES = [
        volume("sda", "ext4", "/", "-L=root -q"),
        volume("sdb", "xfs", "/var/log"),
        volume("sdc", "swap"),
        volume("sdd", source="base"),
        volume("sde"),
    ]

    def test_debootstrap_installs_onto_the_disks_of_the_template(self):
        job = self.example("3-debootstrap", vm_data(self.VOLUMES))
        self.assertIsNone(self.run_all(job))
        self.assert_nothing_left(job)
        commands = job.printed().splitlines()
        self.assertEqual(
            commands[:5],
            [
                "mkfs.ext4 -L root -q /dev/rbd/vms/web1_sda",
                "mkfs.xfs /dev/rbd/vms/web1_sdb",
                "mkswap /dev/rbd/vms/web1_sdc",
                "mount /dev/rbd/vms/web1_sda /tmp/target/",
                "mount /dev/rbd/vms/web1_sdb /tmp/target/var/log",
            ],
        )
        self.assertIn(
            "debootstrap stable /tmp/target http://deb.debian.org/debian", commands
        )
        self.assertIn("grub-install --force --target=i386-pc /dev/rbd/vms/web1_sda", commands)
        self.assertIn("policy: enabled", self.read(job, "/tmp/target/etc/cloud/ds-identify.cfg"))
        self.assertNotIn("chpasswd", job.printed())
        self.assertEqual(
            self.read(job, "/tmp/target/etc/fstab"),
            "UUID=UUID-a / ext4 defaults,discard,noatime 0 1\n"
            "UUID=UUID-b /var/log xfs defaults,discard,noatime 0 2\n"
            "UUID=UUID-c none swap sw 0 0\n",
        )
        self.assertIn('GRUB_DEVICE="UUID=UUID-a"\n', self.read(job, "/tmp/target/etc/default/grub"))
        self.assertEqual(self.read(job, "/tmp/target/etc/hostname"), "web1\n")
        self.assertEqual(self.read(job, "/tmp/target/etc/machine-id"), "")
        self.assertEqual(
            [c["arguments"]["name"] for c in job.calls if c["function"] == "ceph.add_volume"],
            ["web1_sda", "web1_sdb", "web1_sdc", "web1_sde"],
        )

    def test_arguments_choose_release_mirror_packages_and_password(self):
        arguments = {
            "deb_release": "bookworm",
            "deb_mirror": "http://mirror.local/debian",
            "deb_packages": "linux-image-amd64,grub-pc",
            "root_password": "a b",
        }
        job = self.example("3-debootstrap", vm_data(self.VOLUMES, arguments))
        self.assertIsNone(self.run_all(job))
        commands = job.printed().splitlines()
        self.assertIn("debootstrap bookworm /tmp/target http://mirror.local/debian", commands)
        self.assertTrue(
            any(line.endswith("install -- linux-image-amd64 grub-pc") for line in commands)
        )
        self.assertIn("chpasswd 'root:a b\\n'", commands)

    def test_rinse_installs_the_packages_of_its_arguments(self):
        arguments = {"rinse_packages": "kernel,grub2-pc", "post_packages": "vim", "x": "y"}
        job = self.example("4-rinse", vm_data(self.VOLUMES, arguments))
        self.assertIsNone(self.run_all(job))
        self.assert_nothing_left(job)
        commands = job.printed().splitlines()
        self.assertIn(
            "rinse --arch amd64 --cache 0 --directory /tmp/target --distribution rocky-9", commands
        )
        first = commands.index("dnf --assumeyes install kernel grub2-pc")
        self.assertEqual(commands[first + 1], "dnf --assumeyes install vim")
        self.assertIn("usermod --password * root", commands)
        self.assertIn("root=UUID=UUID-a ro", self.read(job, "/tmp/target/etc/kernel/cmdline"))

    def test_cleanup_takes_back_what_was_done_before_a_failure(self):
        for failing in ("mkfs.xfs", "mount /dev/rbd/vms/web1_sdb", "debootstrap", "grub-install"):
            with self.subTest(failing):
                job = self.example("3-debootstrap", vm_data(self.VOLUMES), failing=failing)
                name, text = self.failure(self.run_all(job))
                self.assertEqual(name, "ProvisioningError")
                self.assertIn(f"`{failing}", text)
                # The mount that failed has no umount.
                job.printed = without(job.printed(), failing)
                self.assert_nothing_left(job)

    def test_cleanup_takes_back_what_was_done_before_a_refusal(self):
        for function in ("ceph.add_volume", "ceph.map_volume"):

            def refuse(function=function, name=None, **_):
                return [name != "web1_sdb", f"{function} of {name}"]

            job = self.example(
                "3-debootstrap", vm_data(self.VOLUMES), answers={function: refuse}
            )
            self.assertEqual(
                self.failure(self.run_all(job)),
                ("ProvisioningError", f"{function} of web1_sdb"),
            )
            unmapped = [c for c in job.calls if c["function"] == "ceph.unmap_volume"]
            self.assertEqual([c["arguments"]["name"] for c in unmapped], ["web1_sda"])

    def test_cleanup_goes_on_after_what_it_cannot_take_back_and_says_it(self):
        job = self.example(
            "3-debootstrap",
            vm_data(self.VOLUMES),
            failing="umount /tmp/target/var",
            answers={"ceph.unmap_volume": [False, "busy"]},
        )
        for phase in ("setup", "prepare"):
            self.assertEqual(job.phase(phase), {"done": None})
        self.assertEqual(
            self.failure(job.phase("cleanup"))[1],
            "/tmp/target/var/log is still mounted; busy; busy; busy",
        )

    def test_what_cannot_boot_is_refused_before_anything_is_made(self):
        for volumes, words in (
            ([], "no disk of the storage template has the mountpoint `/`"),
            ([volume("sda", "xfs", "/")], "GRUB needs one of ext2, ext3, ext4, btrfs"),
            (
                [volume("sda", "ext4", "/"), volume("sdb", "swap", "/swap")],
                "disk sdb is swap space, and has a mountpoint",
            ),
        ):
            for name in ("3-debootstrap", "4-rinse"):
                job = self.example(name, vm_data(volumes))
                self.assertIn(words, self.failure(self.run_all(job))[1])
                self.assertEqual((job.calls, job.printed()), ([], ""))


def without(printed, failing):
    """Returns a function that gives what was printed without the command that failed."""
    lines = [line for line in printed.splitlines(True) if not line.startswith(failing)]
    return lambda: "".join(lines)


@unittest.skipUnless(shutil.which("qemu-img"), "qemu-utils is not installed")
class Images(ExampleTest):
    def setUp(self):
        # /run is there inside of the chroot, too.
        self.directory = tempfile.mkdtemp(prefix="pvc-script-test-", dir="/run")
        self.addCleanup(shutil.rmtree, self.directory)
        self.answers = {
            "ceph.map_volume": lambda pool, name: [True, f"{self.directory}/{name}"],
            "ceph.add_volume": self.add_volume,
        }

    def add_volume(self, name, size, **_):
        """Makes a file for a volume."""
        with open(f"{self.directory}/{name}", "wb") as file:
            file.truncate(int(size[:-1]) << 20)  # MiB: a test's disk is small
        return [True, "made"]

    def image(self, name, image_format):
        """Makes an image with a few bytes in it, and returns its path."""
        raw, path = f"{self.directory}/raw", f"{self.directory}/{name}"
        with open(raw, "wb") as file:
            file.write(b"from the image")
            file.truncate(1 << 20)
        subprocess.run(["qemu-img", "convert", "-O", image_format, raw, path], check=True)
        return path

    def begins_with(self, name):
        """Returns the first bytes of a volume."""
        with open(f"{self.directory}/{name}", "rb") as file:
            return file.read(14)

    def ova(self, image_format):
        """Returns what the worker gives a script for an OVA with one disk."""
        row = {
            "id": 1,
            "ova": 1,
            "pool": "vms",
            "volume_name": "ova_x_sda",
            "volume_format": image_format,
            "disk_id": "sda",
            "disk_size_gb": 2,
        }
        return vm_data([row], ova_details={"id": 1, "name": "x"})

    def test_an_ova_is_converted_onto_the_new_volumes(self):
        for image_format in ("vmdk", "raw"):
            self.image("ova_x_sda", image_format)
            job = self.example(
                "2-ova", self.ova(image_format), real=("qemu-img",), answers=self.answers
            )
            self.assertIsNone(self.run_all(job))
            self.assert_nothing_left(job)
            self.assertEqual(self.begins_with("web1_sda"), b"from the image")

    def test_an_image_that_is_none_fails_and_leaves_nothing_mapped(self):
        self.image("ova_x_sda", "raw")
        job = self.example("2-ova", self.ova("vmdk"), real=("qemu-img",), answers=self.answers)
        self.assertIn("qemu-img ended with code 1", self.failure(self.run_all(job))[1])
        self.assert_nothing_left(job)

    def test_a_profile_without_an_ova_is_refused(self):
        job = self.example("2-ova", vm_data([]))
        self.assertEqual(
            self.failure(self.run_all(job)),
            ("ProvisioningError", "this script needs a profile of type `ova`"),
        )

    def appliance(self, disks, **arguments):
        """Starts the pfSense example with an image that is served on this machine."""
        path = self.image("image", "qcow2")

        class Handler(http.server.SimpleHTTPRequestHandler):
            directory = self.directory

            def __init__(self, *given):
                super().__init__(*given, directory=type(self).directory)

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        with open(path, "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        given = {
            "pfsense_image": f"http://127.0.0.1:{server.server_port}/image",
            "pfsense_image_sha256": checksum,
            **arguments,
        }
        return self.example(
            "5-pfsense", vm_data(disks, given), real=("qemu-img",), answers=self.answers
        )

    def test_an_appliances_image_is_written_onto_the_first_disk(self):
        job = self.appliance([volume("sda")])
        self.assertIsNone(self.run_all(job))
        self.assert_nothing_left(job)
        self.assertEqual(self.begins_with("web1_sda"), b"from the image")

    def test_an_image_with_another_checksum_is_not_written(self):
        job = self.appliance([volume("sda")], pfsense_image_sha256="0")
        self.assertIn("another checksum", self.failure(self.run_all(job))[1])
        self.assert_nothing_left(job)
        self.assertEqual(self.begins_with("web1_sda"), bytes(14))

    def test_a_second_disk_gets_the_configuration(self):
        job = self.appliance(
            [volume("sda"), volume("sdb", "vfat")],
            pfsense_admin_hash="$2y$05$hash",
            pfsense_wan_iface="vtnet0",
            pfsense_wan_address="192.0.2.10/28",
            pfsense_wan_gateway="192.0.2.1",
            vm_fqdn="fw1.example.net",
        )
        self.assertIsNone(self.run_all(job))
        self.assert_nothing_left(job)
        device = f"{self.directory}/web1_sdb"
        self.assertEqual(
            [line for line in job.printed().splitlines() if "qemu-img" not in line],
            [
                f"mkfs.vfat -I {device}",
                f"mmd -i {device} ::config",
                f"mcopy -i {device} /tmp/config.xml ::config/config.xml",
            ],
        )
        configuration = ElementTree.fromstring(self.read(job, "/tmp/config.xml"))
        for path, text in (
            ("system/hostname", "fw1"),
            ("system/domain", "example.net"),
            ("system/user/bcrypt-hash", "$2y$05$hash"),
            ("interfaces/wan/if", "vtnet0"),
            ("interfaces/wan/ipaddr", "192.0.2.10"),
            ("interfaces/wan/subnet", "28"),
            ("gateways/gateway_item/gateway", "192.0.2.1"),
        ):
            self.assertEqual(configuration.findtext(path), text, path)

    def test_missing_arguments_are_named_before_anything_is_made(self):
        disks = [volume("sda"), volume("sdb", "vfat")]
        job = self.appliance(disks, pfsense_admin_hash="x", pfsense_wan_iface="vtnet0")
        self.assertEqual(
            self.failure(self.run_all(job))[1],
            "the script needs the argument `pfsense_wan_address`",
        )
        self.assertEqual(job.calls, [])


class Userdata(unittest.TestCase):
    def test_userdata_is_what_cloud_init_knows_by_its_first_line(self):
        self.assertTrue(example("userdata/userdata.yaml").startswith("#cloud-config\n"))

    def test_the_multipart_example_has_a_configuration_and_a_program(self):
        message = email.message_from_string(example("userdata/multipart-userdata.yaml"))
        self.assertEqual(message.defects, [])
        self.assertEqual(
            [(part.get_content_type(), part.get_payload().splitlines()[0])
             for part in message.get_payload()],
            [("text/cloud-config", "#cloud-config"), ("text/x-shellscript", "#!/bin/sh")],
        )
