"""Progress of tasks, for scripts that call it as PVC 1.0.3's tasks do.

The first argument stood for Celery's task and has no meaning here; the stages of a task are the
worker's own.
"""

from daemon_lib import log
from pvc_runner.errors import TaskFailure

__all__ = ["TaskFailure", "fail", "log_err", "log_info", "log_warn", "update"]


def log_info(celery, message):
    """Writes a line into the task's log."""
    log.log_info(message)


def log_warn(celery, message):
    """Writes a warning into the task's log."""
    log.log_warn(message)


def log_err(celery, message):
    """Writes an error into the task's log."""
    log.log_err(message)


def update(celery, message, current=1, total=2):
    """Writes a line into the task's log: the number of the stage is the worker's."""
    log.log_info(message)


def fail(celery, message, exception=TaskFailure):
    """Ends the method, and after `cleanup` the task, with this reason."""
    raise exception(message)
