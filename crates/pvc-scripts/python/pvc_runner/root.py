"""Root directory that the methods of a script run in."""

import contextlib
import os
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


@contextlib.contextmanager
def whole(root):
    """Root directory with all that the node has, to be written to as well, for a block.

    As that of the methods it is a file system of its own.
    """
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", root)
    fill(root, "/", "rbind")
    try:
        yield
    finally:
        run("umount", "--lazy", root)


def mount(root, tmp_bytes):
    """Makes the chroot in an empty directory, with so much room in its `/tmp`.

    It is a file system of its own, with what the node has in `/`: where the root of a process is
    unmounted, or mounted again with other options, the kernel changes the file system itself, and
    that would be the node's. Other file systems below `/` are not seen.

    Mounts go with the process's mount namespace.
    """
    run("mount", "-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", root)
    os.mkdir(root + NODE)
    run("mount", "-o", "bind,ro", "/", root + NODE)
    fill(root, root + NODE, "bind,ro", left_out=[place for _, place in MOUNTS])
    run("umount", root + NODE)
    os.rmdir(root + NODE)
    run("mount", "-o", "remount,ro", root)
    for arguments, place in MOUNTS:
        arguments = (argument.format(tmp_bytes=tmp_bytes) for argument in arguments)
        run("mount", *arguments, root + place)


def fill(root, source, options, left_out=()):
    """Mounts what is in a directory at places in another one, which are empty where left out."""
    for entry in os.scandir(source):
        place = f"{root}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
        elif entry.is_dir():
            os.mkdir(place)
        elif entry.is_file():
            os.mknod(place)
        else:
            continue
        if not entry.is_symlink() and f"/{entry.name}" not in left_out:
            bind(options, entry.path, place)


def bind(options, path, place):
    """Binds a file or directory, unless it has gone meanwhile."""
    try:
        # A file system whose server is gone is not to be asked for its path.
        run("mount", "--no-canonicalize", "-o", options, path, place)
    except ProvisioningError:
        if os.path.lexists(path):
            raise


def run(*command):
    """Runs a program, and fails in words if it does."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ProvisioningError(f"`{' '.join(command)}`: {done.stderr.strip()}")
