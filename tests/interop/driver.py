"""A Python peer for the interoperability tests: a real kazoo client, driven by lines of JSON.

Each line on the standard input is a request {"id": …, "do": …, …}; each line on the standard output is
{"id": …, "result": …} or {"id": …, "error": "<name of the exception>"}. Every request runs in a thread
of its own, so that one may wait for a lock while others go on. Values are written and read the way PVC's
Python does: `str(value)` as UTF-8.
"""

import ast
import json
import sys
import threading

from kazoo.client import KazooClient


class Peer:
    def __init__(self, hosts, timeout):
        self.client = KazooClient(hosts=hosts, timeout=timeout)
        self.client.start(timeout=15)
        self.locks = {}

    def session(self):
        return self.client.client_id[0]

    def lock(self, name, path, kind):
        make = {
            "exclusive": self.client.Lock,
            "write": self.client.WriteLock,
            "read": self.client.ReadLock,
        }[kind]
        # PVC hands a uuid1 text to each of its locks.
        self.locks[name] = make(path, "b8c5d1de-c5a5-11f0-9d6e-5254000a0b0c")

    def acquire(self, name, timeout):
        return self.locks[name].acquire(timeout=timeout)

    def release(self, name):
        return self.locks[name].release()

    def contenders(self, name):
        return self.locks[name].contenders()

    def children(self, path):
        return sorted(self.client.get_children(path))

    def write(self, values):
        """`values`: pairs of a path and a Python literal. Missing paths are made; one transaction."""
        transaction = self.client.transaction()
        for path, literal in values:
            data = str(ast.literal_eval(literal)).encode("utf8")
            if self.client.exists(path):
                transaction.set_data(path, data)
            else:
                transaction.create(path, data)
        outcome = transaction.commit()
        return [str(one) for one in outcome if isinstance(one, Exception)]

    def read(self, path):
        return self.client.get(path)[0].decode("utf8")

    def read_many(self, paths):
        return [self.read(path) if self.client.exists(path) else None for path in paths]

    def add(self, name, path, times):
        """Adds to a number without any version, guarded by the lock alone."""
        for _ in range(times):
            with self.locks[name]:
                number = int(self.read(path))
                self.client.set(path, str(number + 1).encode("utf8"))


def answer(output, guard, request, work):
    identity = request.pop("id")
    try:
        reply = {"id": identity, "result": work(**request)}
    except Exception as error:  # every failure is an answer
        reply = {"id": identity, "error": type(error).__name__, "text": str(error)}
    with guard:
        print(json.dumps(reply), file=output, flush=True)


def main():
    hosts, timeout = sys.argv[1], float(sys.argv[2])
    peer = Peer(hosts, timeout)
    guard = threading.Lock()
    for line in sys.stdin:
        request = json.loads(line)
        work = getattr(peer, request.pop("do"))
        threading.Thread(target=answer, args=(sys.stdout, guard, request, work), daemon=True).start()
    peer.client.stop()


main()
