"""Root directory that the methods of a script run in."""

import os
import stat
import subprocess

from pvc_runner.errors import ProvisioningError

# Where the node's root file system is while its directories are bound.
NODE = "/.node"

# Arguments of mount(8) with the place below the root, in the order of PVC 1.0.3. File systems below
# `/dev` are seen: in a container each device is one.
MOUNTS = (
    (("-t", "tmpfs", "-o", "size={tmp_bytes}", "tmpfs"), "/tmp"),
    (("-o", "rbind,ro", "/dev"), "/dev"),
    (("-o", "bind", "/run"), "/run"),
    (("-o", "bind", "/sys"), "/sys"),
    (("-o", "bind", "/proc"), "/proc"),
)


def mount(root, tmp_bytes):
    """Makes the chroot in an empty directory, with so much room in its `/tmp`.

    Mounts go with the process's mount namespace.

    It is a file system of its own, with what the node has in `/`: where the root of a process is
    unmounted, or mounted again with other options, the kernel changes the file system itself, and
    that would be the node's. Other file systems below `/` are not seen.
    """
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", root)
    os.mkdir(root + NODE)
    run("mount", "-o", "bind,ro", "/", root + NODE)
    for entry in os.scandir(root + NODE):
        show(entry, f"{root}/{entry.name}")
    run("umount", root + NODE)
    os.rmdir(root + NODE)
    run("mount", "-o", "remount,ro", root)
    for arguments, place in MOUNTS:
        arguments = (argument.format(tmp_bytes=tmp_bytes) for argument in arguments)
        run("mount", *arguments, root + place)


def show(entry, place):
    """Makes an entry of the node's root directory be there, not to be written to."""
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(entry.path), place)
    elif f"/{entry.name}" in (below for _, below in MOUNTS):
        os.mkdir(place)
    elif stat.S_ISDIR(mode):
        os.mkdir(place)
        run("mount", "-o", "bind,ro", entry.path, place)
    elif stat.S_ISREG(mode):
        os.mknod(place)
        run("mount", "-o", "bind,ro", entry.path, place)


def run(*command):
    """Runs a program, and fails in words if it does."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ProvisioningError(f"`{' '.join(command)}`: {done.stderr.strip()}")
