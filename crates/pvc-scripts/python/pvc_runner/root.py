"""Root directory that the methods of a script run in."""

import subprocess

from pvc_runner.errors import ProvisioningError

# Arguments of mount(8) with the place below the root, in the order of PVC 1.0.3. Other file systems
# below `/` are not seen; those below `/dev` are: in a container each device is one.
MOUNTS = (
    (("-o", "bind,ro", "/"), ""),
    (("-t", "tmpfs", "tmpfs"), "/tmp"),
    (("-o", "rbind,ro", "/dev"), "/dev"),
    (("-o", "bind", "/run"), "/run"),
    (("-o", "bind", "/sys"), "/sys"),
    (("-o", "bind", "/proc"), "/proc"),
)


def mount(root):
    """Makes the chroot in an empty directory. Mounts go with the process's mount namespace."""
    for arguments, place in MOUNTS:
        command = ["mount", *arguments, root + place]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise ProvisioningError(f"`{' '.join(command)}`: {done.stderr.strip()}")
