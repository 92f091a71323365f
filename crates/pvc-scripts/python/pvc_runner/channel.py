"""Messages between the worker and this process, one JSON object to a line."""

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import uuid

from pvc_runner.errors import ClusterError

# Longest line in bytes, in either direction.
LIMIT = 1 << 20
# Longest text of a log line in characters; JSON may need six bytes for each.
LOG_LIMIT = 64 << 10

# Channel of this process; `run.py` opens it.
worker = None


class Forked(RuntimeError):
    """Call that a process makes which the script has forked: the worker knows its parent alone."""


class Channel:
    """Socket to the worker, with two threads of its own.

    One reads, so that the process ends at once when the worker is gone, whatever the script does.
    The other writes one message after the other, and none while a call has no answer. So threads
    of the script take turns, and a signal handler that raises leaves no half of a message.
    """

    def __init__(self, descriptor):
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._process = os.getpid()
        self._orders = queue.SimpleQueue()
        self._answers = queue.SimpleQueue()
        self._outgoing = queue.SimpleQueue()
        os.register_at_fork(after_in_child=self._close_in_child)
        for target in (self._read, self._write):
            threading.Thread(target=target, name="pvc-worker", daemon=True).start()

    def order(self):
        """Waits for the next message that is no answer: the job, or a phase."""
        return self._orders.get()

    def say(self, message):
        """Sends a message that has no answer, and returns when it is sent."""
        self._send(message, is_call=False)

    def log(self, level, text):
        """Sends a line for the task's log; that of a forked process goes to standard error."""
        text = shortened(str(text), LOG_LIMIT)
        try:
            self.say({"log": {"level": level, "text": text}})
        except Forked:
            print(text, file=sys.stderr, flush=True)

    def call(self, function, **arguments):
        """Calls a function of the worker and returns what it returns.

        Raises ClusterError if it could not be carried out at all, and TypeError or ValueError if
        the arguments cannot be sent.
        """
        message = {"call": {"function": function, "arguments": arguments}}
        answer = self._send(message, is_call=True)
        if "raised" in answer:
            raise ClusterError(str(answer["raised"]))
        return answer["returned"]

    def _send(self, message, is_call):
        if os.getpid() != self._process:
            raise Forked("a forked process cannot call functions of PVC")
        answer = queue.SimpleQueue()
        self._outgoing.put((encoded(message), is_call, answer))
        return answer.get()

    def _write(self):
        try:
            while True:
                line, is_call, answer = self._outgoing.get()
                self._socket.sendall(line)
                answer.put(self._answers.get() if is_call else None)
        except OSError as error:
            leave(f"the worker cannot be reached: {error!r}")

    def _read(self):
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(LIMIT + 1):
                    self._take(json.loads(line))
        except Exception as error:
            leave(f"the worker's message cannot be read: {error!r}")
        leave()

    def _take(self, message):
        if message.keys() & {"job", "phase"}:
            self._orders.put(message)
        elif message.keys() & {"returned", "raised"}:
            self._answers.put(message)
        else:
            raise ValueError("neither a job nor a phase nor an answer")

    def _close_in_child(self):
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


def pair(function, **arguments):
    """Calls a function of the worker that returns whether it was done, and a message or data."""
    done, result = worker.call(function, **arguments)
    return done, result


def encoded(message):
    """Returns the line of a message; what is no Unicode in a text becomes `?`."""
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, default=plain)
    line = text.encode("utf-8", "replace") + b"\n"
    if len(line) > LIMIT:
        raise ValueError(f"{len(line)} bytes are too many for the worker, which takes {LIMIT}")
    return line


def plain(value):
    """Returns the JSON form of a value that JSON does not know."""
    if isinstance(value, (uuid.UUID, os.PathLike)):
        return str(value)
    raise TypeError(f"a value of type `{type(value).__name__}` cannot be sent to the worker")


def shortened(text, limit):
    """Returns at most `limit` characters of a text, and says how many are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} more characters)"


def leave(reason=None):
    """Ends the process at once, without the script's exit handlers and threads."""
    if reason:
        with contextlib.suppress(OSError):
            os.write(2, f"{reason}\n".encode("utf-8", "replace"))
    os._exit(1 if reason else 0)
