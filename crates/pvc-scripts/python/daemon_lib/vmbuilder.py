"""Base class of provisioner scripts, and what goes with it."""

import contextlib
import os

from daemon_lib.zkhandler import ZKHandler
from pvc_runner import channel
from pvc_runner.errors import ClusterError, ProvisioningError, ValidationError

__all__ = [
    "VMBuilder",
    "ClusterError",
    "ProvisioningError",
    "ValidationError",
    "chroot",
    "open_db",
    "open_zk",
]


class VMBuilder:
    """Base of a script's class `VMBuilderScript`. Its methods run in the order they have here."""

    # Identifier that the VM will have, a `uuid.UUID`; `run.py` sets it.
    vm_uuid = None

    def __init__(self, vm_name, vm_id, vm_profile, vm_data):
        self.vm_name = vm_name
        self.vm_id = vm_id
        self.vm_profile = vm_profile
        self.vm_data = vm_data

    def log_info(self, msg):
        """Writes a line into the task's log."""
        channel.worker.log("info", msg)

    def log_warn(self, msg):
        """Writes a warning into the task's log."""
        channel.worker.log("warning", msg)

    def log_err(self, msg):
        """Writes an error into the task's log. The method goes on; `fail` ends it."""
        channel.worker.log("error", msg)

    def fail(self, msg, exception=ProvisioningError):
        """Ends the method, and after `cleanup` the task, with this reason."""
        raise exception(msg)

    def setup(self):
        """Checks what the script was given, before anything is made."""

    def create(self):
        """Returns the XML of the VM as text."""

    def prepare(self):
        """Makes and mounts what `install` needs."""

    def install(self):
        """Installs the guest."""

    def cleanup(self):
        """Takes back what `prepare` did. Runs at the end, and after any method that failed."""


@contextlib.contextmanager
def chroot(destination):
    """Runs the block with another root directory, and comes back whatever happens in it."""
    with opened("/") as root, opened(".") as directory:
        os.chroot(destination)
        try:
            os.chdir("/")
            yield
        finally:
            os.fchdir(root)
            os.chroot(".")
            os.fchdir(directory)


@contextlib.contextmanager
def opened(path):
    """Keeps a directory open for the block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_zk(config):
    """Gives the handle that functions of `daemon_lib` take as their first argument."""
    yield ZKHandler(config)


@contextlib.contextmanager
def open_db(config):
    """Gives a cursor of psycopg2 on the provisioner's database, whose rows are dictionaries.

    What was changed is kept if the block comes to its end, and not if it raises.
    """
    if not config.get("api_postgresql_host"):
        raise ClusterError("this cluster has no PostgreSQL in its configuration")
    import psycopg2
    import psycopg2.extras

    connection = psycopg2.connect(
        host=config["api_postgresql_host"],
        port=config["api_postgresql_port"],
        dbname=config["api_postgresql_dbname"],
        user=config["api_postgresql_user"],
        password=config["api_postgresql_password"],
    )
    with contextlib.closing(connection), connection:
        with connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            yield cursor
