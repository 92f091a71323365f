"""Lines of the task's log, for code that has no `self` of the script."""

from pvc_runner import channel


def log_info(message):
    """Writes a line into the task's log."""
    channel.worker.log("info", message)


def log_warn(message):
    """Writes a warning into the task's log."""
    channel.worker.log("warning", message)


def log_err(message):
    """Writes an error into the task's log."""
    channel.worker.log("error", message)
