"""Process of a provisioner script: imports it and runs its methods as the worker asks.

How the two talk: docs/dev/provisioner-scripts.md.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
import uuid

sys.dont_write_bytecode = True
if os.path.dirname(os.path.abspath(__file__)) not in sys.path:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# Everything a script can import of ours is loaded here: inside the chroot these files may not be.
import daemon_lib.celery  # noqa: E402
import daemon_lib.ceph  # noqa: E402, F401
import daemon_lib.common  # noqa: E402
import daemon_lib.config  # noqa: E402, F401
import daemon_lib.libvirt_schema  # noqa: E402, F401
import daemon_lib.log  # noqa: E402, F401
import daemon_lib.network  # noqa: E402, F401
import daemon_lib.node  # noqa: E402, F401
import daemon_lib.vm  # noqa: E402, F401
import daemon_lib.vmbuilder  # noqa: E402
import daemon_lib.zkhandler  # noqa: E402, F401
import pvcapid.Daemon  # noqa: E402, F401
import pvcapid.libvirt_schema  # noqa: E402, F401
import pvcapid.vmbuilder  # noqa: E402, F401
import pvcworkerd.Daemon  # noqa: E402
from pvc_runner import channel, failure, root  # noqa: E402

PHASES = ("setup", "create", "prepare", "install", "cleanup")


def main():
    """Runs one job: the script is made ready, then each phase runs when the worker asks for it.

    Never returns by itself after `ready`: the process ends when the worker closes its end.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    # Systems that scripts install have files for all to read, whatever the worker's are.
    os.umask(0o022)
    worker = channel.worker = channel.Channel(3)
    job = worker.order()["job"]
    pvcworkerd.Daemon.config.update(job["config"])
    daemon_lib.vmbuilder.VMBuilder.vm_uuid = uuid.UUID(job["vm_uuid"])

    runner = Runner(job)
    message = runner.attempt(runner.make_ready)
    report(message)
    if "failed" in message:
        os._exit(1)  # its threads may run on
    while True:
        phase = worker.order()["phase"]
        report(runner.attempt(lambda: runner.run(phase)))


class Runner:
    """Script of a job and the object of its class, which is the same in all phases."""

    def __init__(self, job):
        self.job = job
        self.builder = None

    def make_ready(self):
        """Imports the script, makes an object of its class, and mounts the chroot."""
        with root.whole(self.job["root"]), daemon_lib.vmbuilder.chroot(self.job["root"]):
            script = load(self.job["script"])
            if not hasattr(script, "VMBuilderScript"):
                raise daemon_lib.vmbuilder.ProvisioningError(
                    "the script has no class `VMBuilderScript`"
                )
            self.builder = script.VMBuilderScript(
                vm_name=self.job["vm_name"],
                vm_id=self.job["vm_id"],
                vm_profile=self.job["vm_profile"],
                vm_data=self.job["vm_data"],
            )
        root.mount(self.job["root"], self.job["tmp_bytes"])
        return {"ready": True}

    def run(self, phase):
        """Runs the method of a phase inside the chroot."""
        if phase not in PHASES:
            raise ValueError(f"`{phase}` is no phase")
        if not os.path.ismount(self.job["root"]):
            raise daemon_lib.vmbuilder.ProvisioningError(
                "the script has unmounted the root directory that its methods run in"
            )
        before = set(threading.enumerate())
        with daemon_lib.vmbuilder.chroot(self.job["root"]):
            value = getattr(self.builder, phase)()
        refuse_threads(phase, set(threading.enumerate()) - before)
        return {"done": xml_of(value) if phase == "create" else None}

    def attempt(self, step):
        """Returns the message for the worker: what the step returns, or `failed`.

        A process that the script has forked and that comes out of its method does not come back
        from here: it ends as Python programs do.
        """
        process = os.getpid()
        try:
            message = step()
        except BaseException as error:  # sys.exit() and KeyboardInterrupt are failures, too
            if os.getpid() != process:
                raise
            return {"failed": failure.describe(error, self.job["script"])}
        if os.getpid() != process:
            sys.exit(0)
        return message


def load(path):
    """Imports the script's file under the name that it has in PVC 1.0.3."""
    loader = importlib.machinery.SourceFileLoader("installer_script", path)
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(loader.name, loader)
    )
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def xml_of(value):
    """Returns the text that `create` has returned, and refuses all other values."""
    if not isinstance(value, str):
        raise daemon_lib.vmbuilder.ProvisioningError(
            f"`create` has to return the VM's XML as text, not {failure.kind(value)}"
        )
    channel.encoded({"done": value})  # refuses what is too long for a message
    return value.strip()


def refuse_threads(phase, threads):
    """Refuses that a method returns while its threads go on: their root directory would change.

    Daemon threads are only warned of: their author has said that nobody waits for them.
    """
    alive = [thread for thread in threads if thread.is_alive()]
    if unfinished := [thread.name for thread in alive if not thread.daemon]:
        raise daemon_lib.vmbuilder.ProvisioningError(
            f"`{phase}` returned before its threads had ended: {', '.join(unfinished)}"
        )
    for thread in alive:
        if not daemon_lib.common.is_command(thread):
            channel.worker.log(
                "warning", f"`{phase}` left thread `{thread.name}` running, outside of the chroot"
            )


def report(message):
    """Sends a message after what the script has printed."""
    for stream in (sys.stdout, sys.stderr):
        # The script may have closed or replaced it.
        with contextlib.suppress(Exception):
            stream.flush()
    channel.worker.say(message)


if __name__ == "__main__":
    main()
