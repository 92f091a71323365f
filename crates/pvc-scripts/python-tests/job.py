"""Worker for tests: starts the real `run.py` in namespaces of its own and answers its calls."""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest
import uuid

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "run.py")
# Seconds until a process that says nothing fails its test.
SILENCE = 20

# Room in a script's /tmp.
TMP_BYTES = 32 << 20

HEADER = "from daemon_lib.vmbuilder import *\n"

VM_DATA = {
    "system_details": {"vcpu_count": 2, "vram_mb": 1024, "serial": True, "vnc": False},
    "mac_template": None,
    "networks": [{"id": 1, "network_template": 1, "vni": "1001", "eth_bridge": "vmbr1001"}],
    "volumes": [{"id": 1, "pool": "vms", "disk_id": "sda", "filesystem_args": ""}],
    "script_arguments": {},
}


class Gone(Exception):
    """End of the process, where a message was expected."""


class Job:
    """Process of a script. `log` has the texts of its log lines, `calls` its calls."""

    def __init__(self, text, /, answers=None, **job):
        self.directory = tempfile.mkdtemp(prefix="pvc-script-test-")
        self.root = os.path.join(self.directory, "root")
        os.mkdir(self.root)
        path = os.path.join(self.directory, "script.py")
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        self.answers = answers or {}
        self.log = []
        self.calls = []
        self._start()
        self.send({"job": {**self.defaults(path), **job}})

    def defaults(self, path):
        """Returns the message of a usual job."""
        return {
            "vm_name": "web1",
            "vm_id": 1,
            "vm_uuid": str(uuid.UUID(int=7)),
            "vm_profile": "small",
            "vm_data": VM_DATA,
            "config": {"cluster_name": "test"},
            "script": path,
            "root": self.root,
            "tmp_bytes": TMP_BYTES,
        }

    def _start(self):
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.lines = ours.makefile("rb")
        self.output = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private"),
                *("--pid", "--fork", "--kill-child", sys.executable, RUN),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            preexec_fn=lambda: os.dup2(theirs.fileno(), 3),
            pass_fds=(3,),
            cwd="/",
        )
        theirs.close()

    def send(self, message):
        """Sends a message to the process."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self):
        """Returns the next message of the process; raises Gone at its end."""
        if not self.lines.peek(1) and not select.select([self.socket], [], [], SILENCE)[0]:
            raise AssertionError(f"silent for {SILENCE} s; {self.printed()}")
        line = self.lines.readline()
        if not line:
            raise Gone(self.printed())
        assert len(line) <= 1 << 20, "a message is longer than 1 MiB"
        return json.loads(line)

    def outcome(self):
        """Answers calls and keeps log lines until another message comes, and returns that."""
        while True:
            message = self.receive()
            if "log" in message:
                self.log.append(message["log"])
            elif "call" in message:
                self.calls.append(message["call"])
                self.answer(message["call"])
            else:
                return message

    def answer(self, call):
        """Sends the answer to a call: `answers` has a value, a function or an exception for it."""
        answer = self.answers.get(call["function"], [True, "done"])
        if callable(answer):
            answer = answer(**call["arguments"])
        if isinstance(answer, Exception):
            self.send({"raised": str(answer)})
        else:
            self.send({"returned": answer})

    def ready(self):
        """Waits until the script is imported; returns the job, for chains."""
        assert self.outcome() == {"ready": True}
        return self

    def phase(self, phase):
        """Runs a phase to its end and returns its message."""
        self.send({"phase": phase})
        return self.outcome()

    def printed(self):
        """Returns what the process has printed so far."""
        return os.pread(self.output.fileno(), 1 << 20, 0).decode()

    def python(self):
        """Returns the number of the process below `unshare`."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return int(file.read())

    def end(self):
        """Closes the worker's end and returns the exit code of the process."""
        self.lines.close()
        self.socket.close()
        return self.process.wait(SILENCE)

    def remove(self):
        """Kills the process if it is there, and removes its files."""
        self.process.kill()
        self.end()
        self.output.close()
        shutil.rmtree(self.directory)


@unittest.skipUnless(os.geteuid() == 0, "a script runs as root")
class JobTest(unittest.TestCase):
    """Base of tests with jobs, which are removed after each of them."""

    def job(self, text, /, **options):
        """Starts a job with a script's text."""
        job = Job(text, **options)
        self.addCleanup(job.remove)
        return job

    def builder(self, methods, top="", **options):
        """Starts a job with a script of these methods, and waits until it is ready."""
        body = textwrap.indent(textwrap.dedent(methods).strip() or "pass", "    ")
        text = f"{HEADER}{textwrap.dedent(top)}\nclass VMBuilderScript(VMBuilder):\n{body}\n"
        return self.job(text, **options).ready()

    def failure(self, message):
        """Returns class and text of a `failed` message."""
        self.assertIn("failed", message)
        self.assertEqual(set(message["failed"]), {"class", "text", "traceback"})
        return message["failed"]["class"], message["failed"]["text"]
