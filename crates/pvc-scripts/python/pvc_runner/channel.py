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


class OutOfTurn(RuntimeError):
    """Call that cannot be made from here: a forked process, or inside of another call."""


class Channel:
    """Socket to the worker.

    A thread of its own reads, so that the process ends at once when the worker is gone, whatever
    the script does. Threads of the script take turns: a call keeps its turn until it is answered.
    """

    def __init__(self, descriptor):
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._process = os.getpid()
        self._orders = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._holder = None
        self._news = threading.Condition()
        self._called = 0
        self._answered = 0
        self._answer = None
        os.register_at_fork(after_in_child=self._close_in_child)
        threading.Thread(target=self._read, name="pvc-worker", daemon=True).start()

    def order(self):
        """Waits for the next message that is no answer: the job, or a phase."""
        return self._orders.get()

    def say(self, message):
        """Sends a message that has no answer."""
        line = encoded(message)
        with self._turn():
            self._write(line)

    def log(self, level, text):
        """Sends a line for the task's log.

        Where that cannot be, as in a forked process, the line goes to standard error, which
        reaches the log, too.
        """
        text = shortened(str(text), LOG_LIMIT)
        try:
            self.say({"log": {"level": level, "text": text}})
        except OutOfTurn:
            print(text, file=sys.stderr, flush=True)

    def call(self, function, **arguments):
        """Calls a function of the worker and returns what it returns.

        Raises ClusterError if it could not be carried out at all, and TypeError or ValueError if
        the arguments cannot be sent.
        """
        line = encoded({"call": {"function": function, "arguments": arguments}})
        with self._turn():
            self._called += 1
            self._write(line)
            self._wait_for_answer()
            answer = self._answer
        if "raised" in answer:
            raise ClusterError(str(answer["raised"]))
        return answer["returned"]

    @contextlib.contextmanager
    def _turn(self):
        if os.getpid() != self._process:
            raise OutOfTurn("a forked process cannot call functions of PVC")
        if self._holder == threading.get_ident():
            raise OutOfTurn("a signal handler cannot call functions of PVC during another call")
        with self._lock:
            self._holder = threading.get_ident()
            try:
                # A signal handler may have raised out of an earlier call.
                self._wait_for_answer()
                yield
            finally:
                self._holder = None

    def _wait_for_answer(self):
        with self._news:
            self._news.wait_for(lambda: self._answered == self._called)

    def _write(self, line):
        try:
            self._socket.sendall(line)
        except BaseException as error:  # half of the line may be sent: nothing can follow it
            leave(f"the worker cannot be reached: {error!r}")

    def _read(self):
        try:
            with self._socket.makefile("rb") as lines:
                while line := lines.readline(LIMIT + 1):
                    self._take(json.loads(line))
        except BaseException as error:
            leave(f"the worker's message cannot be read: {error!r}")
        leave()

    def _take(self, message):
        if "job" in message or "phase" in message:
            self._orders.put(message)
            return
        with self._news:
            self._answer = message
            self._answered += 1
            self._news.notify_all()

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
