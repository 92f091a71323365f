"""Writes the settings of schemathesis for the API at PVC_FUZZ_URL to standard output.

Names that exist are mixed in, so that requests get beyond "there is no such VM"; a few VMs are
defined for it, and a few of each kind that the provisioner keeps. Whatever could take minutes by
design is pinned to what does not. The first argument is the name of the run that begins.
"""

import io
import json
import os
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import uuid

URL = os.environ["PVC_FUZZ_URL"] + "/api/v1"
KEY = {"X-Api-Key": os.environ["PVC_FUZZ_TOKEN"]}

# What a profile of the provisioner consists of.
PARTS = ["system_template", "network_template", "storage_template", "userdata", "script"]


def get(path):
    with urllib.request.urlopen(urllib.request.Request(URL + path, headers=KEY), timeout=20) as reply:
        return json.load(reply)


def xml(name):
    # The same name always has the same UUID: a second run finds the VMs of the first.
    own = uuid.uuid5(uuid.NAMESPACE_DNS, name)
    return (
        f"<domain type='kvm'><name>{name}</name><uuid>{own}</uuid><memory unit='MiB'>32</memory><vcpu>1</vcpu>"
        "<os><type arch='x86_64' machine='pc'>hvm</type></os><devices><emulator>/usr/bin/kvm</emulator>"
        f"<serial type='pty'><log file='/var/log/libvirt/{name}.log' append='on'/></serial><console type='pty'/>"
        "</devices></domain>"
    )


def post(path, body=b"", kind="application/x-www-form-urlencoded"):
    headers = {**KEY, "Content-Type": kind}
    try:
        urllib.request.urlopen(urllib.request.Request(URL + path, body, headers), timeout=20).close()
    except urllib.error.HTTPError as refusal:
        # It exists already; everything else shows in the run itself.
        refusal.close()


def form(**values):
    return urllib.parse.urlencode(values).encode()


def ova():
    """The file of a VM without disks."""
    resources = "http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
    description = (
        f"<Envelope xmlns='http://schemas.dmtf.org/ovf/envelope/1' xmlns:rasd='{resources}'><References/>"
        "<DiskSection/><VirtualSystem><VirtualHardwareSection><Item><rasd:InstanceID>1</rasd:InstanceID>"
        "<rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>64</rasd:VirtualQuantity></Item>"
        "</VirtualHardwareSection></VirtualSystem></Envelope>"
    ).encode()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("fuzz.ovf")
        member.size = len(description)
        archive.addfile(member, io.BytesIO(description))
    return file.getvalue()


def provision(name):
    """Makes one of each kind that the provisioner keeps, and a profile of them."""
    post(f"/provisioner/template/system?name={name}&vcpus=1&vram=64&serial=True&vnc=False")
    post(f"/provisioner/template/network?name={name}")
    post(f"/provisioner/template/network/{name}/net/1")
    post(f"/provisioner/template/storage?name={name}")
    post(f"/provisioner/template/storage/{name}/disk/sda?pool=vms&disk_size=1")
    post("/provisioner/userdata", form(name=name, data="#cloud-config"))
    post("/provisioner/script", form(name=name, data="pass"))
    parts = "&".join(f"{part}={name}" for part in PARTS)
    post(f"/provisioner/profile?name={name}&profile_type=provisioner&{parts}")


for number in range(5):
    post("/vm", form(xml=xml(f"fuzz{number}")))
    provision(f"fuzz{number}")
# VMs of OVAs are made by the script of that name.
post("/provisioner/script", form(name="ova", data="pass"))
packed = ova()
for number in range(5, 8):
    path = f"/provisioner/ova?pool=vms&name=fuzz{number}&ova_size={len(packed)}"
    post(path, packed, "application/octet-stream")

# Of profiles and OVAs there is one for each only if all that they consist of was taken. Later the
# fuzzer has been at them.
if sys.argv[1] == "coverage":
    made = {entry["name"] for entry in get("/provisioner/profile") + get("/provisioner/ova")}
    missing = {f"fuzz{number}" for number in range(8)} - made
    if missing:
        sys.exit(f"the provisioner has taken neither profiles nor OVAs with these names: {sorted(missing)}")

dictionaries = {
    "vms": [vm["name"] for vm in get("/vm?limit=^fuzz")] or ["fuzz0"],
    "nodes": [node["name"] for node in get("/node")] or ["none"],
    "pools": [pool["name"] for pool in get("/storage/ceph/pool")] or ["vms"],
    "faults": [fault["id"] for fault in get("/faults")] or ["NO_FAULT"],
    "vnis": [str(network["vni"]) for network in get("/network")] or ["1"],
    "kept": [f"fuzz{number}" for number in range(8)],
    "disks": ["sda", "sdb", "../sda"],
    "tags": ["daily", "a/b", "", "x" * 300, "ü"],
    "names": ["fuzz5", "fuzz0", "../etc", "a b", "x" * 300, "ü", "-rf"],
    "xmls": [
        xml("fuzz0"),
        xml("fuzz6"),
        xml("fuzz7").replace(">32<", ">999999999<"),
        xml("fuzz8").replace("<uuid>", "<!-- ").replace("</uuid>", " -->"),
        xml("../../etc/passwd"),
        "<domain/>",
        "<!DOCTYPE d [<!ENTITY e 'e'>]><domain>&e;</domain>",
        "<domain><name>&#0;</name></domain>",
        "<a>" * 5000,
        "<interface type='bridge'><source bridge='vmbr1'/></interface>",
        "<disk type='file' device='disk'><source file='/dev/null'/><target dev='sdb' bus='scsi'/></disk>",
    ],
    "limits": ["fuzz", "^f.*0$", "(a+)+$", "(", "[", "a{1000}{1000}", "\\1", "(?=a)"],
}
bindings = {
    "path.vm": ("vms", 0.8),
    "path.node": ("nodes", 0.7),
    "path.pool": ("pools", 0.7),
    "path.fault_id": ("faults", 0.5),
    "path.vni": ("vnis", 0.7),
    "path.template": ("kept", 0.7),
    "path.userdata": ("kept", 0.7),
    "path.script": ("kept", 0.7),
    "path.profile": ("kept", 0.7),
    "path.ova": ("kept", 0.7),
    "path.disk_id": ("disks", 0.7),
    "query.node": ("nodes", 0.5),
    "query.tag": ("tags", 0.5),
    "query.new_name": ("names", 0.6),
    "query.limit": ("limits", 0.5),
    "body.xml": ("xmls", 0.8),
    **{f"query.{part}": ("kept", 0.7) for part in [*PARTS, "ova"]},
}
# Waiting takes as long as guests take; a graceful shutdown of a guest without a system never ends;
# and a cluster that is initialized anew has no nodes to go on with.
pinned = {"query.wait": "False", "query.force": "True", "query.overwrite": "False"}

checks = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
]

text = json.dumps  # A JSON string or list of strings is a TOML one, too.
print(f"headers = {{ X-Api-Key = {text(KEY['X-Api-Key'])} }}")
print("request-timeout = 100.0\nworkers = 2\ncontinue-on-failure = true\nwarnings = false")
print("[phases]\nstateful.enabled = false")
print("[checks]\nenabled = false")
for check in checks:
    print(f"{check}.enabled = true")
print("[dictionaries]")
for name, values in dictionaries.items():
    print(f"{name} = {{ values = {text(values)} }}")
print("[parameters]")
for name, (dictionary, probability) in bindings.items():
    print(f'"{name}" = {{ dictionary = "{dictionary}", probability = {probability} }}')
for name, value in pinned.items():
    print(f'"{name}" = "{value}"')
