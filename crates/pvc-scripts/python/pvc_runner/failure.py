"""Description of an exception for the worker."""

import traceback
import types

from pvc_runner.channel import shortened

# Longest text of an exception in characters.
TEXT_LIMIT = 8 << 10
# Longest traceback in bytes; of a longer one the end is kept.
TRACEBACK_LIMIT = 8 << 10

MANUAL = "what scripts can use: docs/manual/provisioner-scripts.md"
ABSENT = {
    "daemon_lib": "this version does not have it for scripts",
    "pvcapid": "of `pvcapid` scripts have `vmbuilder`, `libvirt_schema` and `Daemon.config`",
    "pvcworkerd": "of `pvcworkerd` scripts have `Daemon.config`",
    "pvcnoded": "scripts have nothing of the node daemon",
    "pvchealthd": "scripts have nothing of the health daemon",
    "kazoo": "scripts have no ZooKeeper connection of their own: use `open_zk`",
    "celery": "tasks do not run in Celery: use `self.log_info` and `self.fail`",
    "psycopg2": "`open_db` needs the package python3-psycopg2 on the node",
}


def describe(error, script):
    """Returns the value of a `failed` message."""
    return {
        "class": shortened(type(error).__name__, 100),
        "text": shortened(text_of(error), TEXT_LIMIT),
        "traceback": traceback_of(error, script),
    }


def text_of(error):
    """Returns what an exception says, with what it cannot say by itself."""
    try:
        text = str(error)
    except BaseException:  # the script's own class may fail at it
        text = ""
    if isinstance(error, SystemExit):
        return f"the script called `sys.exit({text})`: its methods have to return"
    return with_hint(text or "no reason was given", error)


def with_hint(text, error):
    """Returns the text with a hint, if the error or a cause of it is a part of PVC not there."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if hint := ABSENT.get(package_of(error)):
            return f"{text} ({hint}; {MANUAL})"
        error = error.__cause__ or error.__context__
    return text


def package_of(error):
    """Returns the package that an ImportError or an AttributeError is about."""
    if isinstance(error, ImportError):
        return str(error.name).partition(".")[0]
    if isinstance(error, AttributeError):
        is_module = isinstance(error.obj, types.ModuleType)
        name = error.obj.__name__ if is_module else type(error.obj).__module__
        return str(name).partition(".")[0]
    return None


def traceback_of(error, script):
    """Returns the traceback with the frames of the script's file alone."""
    whole = traceback.TracebackException.from_exception(error)
    keep_frames_of(script, whole)
    lines = "".join(whole.format()).encode("utf-8", "replace")
    return lines[-TRACEBACK_LIMIT:].decode("utf-8", "ignore")


def keep_frames_of(script, part):
    """Removes frames of other files from an exception's traceback and those of its causes."""
    while part is not None:
        part.stack = traceback.StackSummary.from_list(
            [frame for frame in part.stack if frame.filename == script]
        )
        for member in part.exceptions or ():
            keep_frames_of(script, member)
        part = part.__cause__ or part.__context__


def kind(value):
    """Returns what a value is, for a message."""
    return "None" if value is None else f"a value of type `{type(value).__name__}`"
