"""Commands of the operating system."""

import os
import shlex
import signal
import subprocess
import threading

TIMED_OUT = 128
NOT_EXECUTED = 255
# Beginning of the names of threads that commands run in.
COMMAND_THREAD = "pvc-command"


def run_os_command(command_string, background=False, environment=None, timeout=None):
    """Runs a command without a shell and returns its exit code, output and error output.

    The command is a text, which is split at blanks as a shell would, or a list of arguments.
    `environment` adds variables. After `timeout` seconds the command is killed with its children
    and the code is 128; a command that cannot be executed has the code 255 and the reason as its
    error output. Output that is not ASCII is given as an empty text: use `subprocess` for such.
    With `background` nobody waits for the command, and the code is 0.
    """
    if isinstance(command_string, str):
        arguments = shlex.split(command_string)
    else:
        arguments = [str(argument) for argument in command_string]
    if not background:
        return run(arguments, environment, timeout)
    threading.Thread(
        target=run,
        args=(arguments, environment, timeout),
        name=f"{COMMAND_THREAD}-{' '.join(arguments[:1])}",
        daemon=True,
    ).start()
    return 0, "", ""


def run(arguments, environment, timeout):
    """Runs a command to its end."""
    try:
        process = subprocess.Popen(
            arguments,
            env={**os.environ, **environment} if environment else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        return NOT_EXECUTED, "", str(error)
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            kill(process)
            return TIMED_OUT, "", f"not finished after {timeout} s"
        except BaseException:
            kill(process)
            raise
    return process.returncode, ascii_of(output), ascii_of(errors)


def kill(process):
    """Kills a command with its children, as far as they are in its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def ascii_of(output):
    """Returns output as text if it is ASCII, and an empty text otherwise."""
    return output.decode("ascii") if output.isascii() else ""


def is_command(thread):
    """Returns whether a thread is that of a command in the background."""
    return thread.name.startswith(COMMAND_THREAD)
