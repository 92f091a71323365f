"""Threads, forks, signals and commands of a script."""

import os
import signal
import time

from job import SILENCE, JobTest

IMPORTS = """
    import os, signal, subprocess, sys, threading
    import daemon_lib.ceph as ceph
    from daemon_lib.common import run_os_command
"""


class Threads(JobTest):
    def test_threads_take_turns_and_each_gets_its_own_answer(self):
        job = self.builder(
            """
            def install(self):
                def ask(number):
                    for _ in range(20):
                        answer = ceph.map_volume(None, "vms", str(number))
                        assert answer == (True, f"/dev/{number}"), answer
                        self.log_info("x")
                    finished.append(number)
                finished = []
                threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                assert sorted(finished) == list(range(8))
            """,
            top=IMPORTS,
            answers={"ceph.map_volume": lambda pool, name: [True, f"/dev/{name}"]},
        )
        self.assertEqual(job.phase("install"), {"done": None})
        self.assertEqual((len(job.calls), len(job.log)), (160, 160))

    def test_a_method_that_leaves_a_thread_running_has_failed(self):
        job = self.builder(
            """
            def install(self):
                self.event = threading.Event()
                threading.Thread(target=self.event.wait, name="copy").start()
            def cleanup(self):
                self.event.set()
            """,
            top=IMPORTS,
        )
        self.assertEqual(
            self.failure(job.phase("install")),
            ("ProvisioningError", "`install` returned before its threads had ended: copy"),
        )
        self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_daemon_threads_are_warned_of_and_commands_in_the_background_are_not(self):
        job = self.builder(
            """
            def install(self):
                threading.Thread(
                    target=threading.Event().wait, name="watch", daemon=True
                ).start()
                assert run_os_command("sleep 1000", background=True) == (0, "", "")
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("install"), {"done": None})
        self.assertEqual(
            job.log,
            [
                {
                    "level": "warning",
                    "text": "`install` left thread `watch` running, outside of the chroot",
                }
            ],
        )
        self.assertEqual(job.end(), 0)


class Forks(JobTest):
    def test_a_forked_process_cannot_speak_to_the_worker(self):
        job = self.builder(
            """
            def setup(self):
                if os.fork() == 0:
                    self.log_info("from the child")
                    try:
                        ceph.map_volume(None, "vms", "a")
                    except RuntimeError as error:
                        print(error, file=sys.stderr)
                    try:
                        os.fstat(3)
                    except OSError:
                        os._exit(7)
                    os._exit(8)
                self.log_info(os.waitstatus_to_exitcode(os.wait()[1]))
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual([line["text"] for line in job.log], ["7"])
        self.assertEqual(job.calls, [])
        self.assertEqual(
            job.printed(), "from the child\na forked process cannot call functions of PVC\n"
        )

    def test_a_forked_process_that_leaves_the_method_ends_there(self):
        for end, code in (
            ("return", 0),
            ("sys.exit(5)", 5),
            ("raise ValueError('the child')", 1),
        ):
            job = self.builder(
                f"""
                def setup(self):
                    if os.fork() == 0:
                        {end}
                    self.log_info(os.waitstatus_to_exitcode(os.wait()[1]))
                """,
                top=IMPORTS,
            )
            self.assertEqual(job.phase("setup"), {"done": None})
            self.assertEqual([line["text"] for line in job.log], [str(code)])
            self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_the_parents_call_is_answered_while_a_fork_runs(self):
        job = self.builder(
            """
            def setup(self):
                child = os.fork()
                if child == 0:
                    signal.pause()
                assert ceph.map_volume(None, "vms", "a") == (True, "done")
                os.kill(child, signal.SIGTERM)
                os.wait()
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})

    def test_commands_do_not_have_the_descriptor(self):
        job = self.builder(
            """
            def setup(self):
                os.system("ls -l /proc/self/fd | grep -c socket")
                subprocess.run("ls -l /proc/self/fd | grep -c socket", shell=True, close_fds=False)
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(job.printed(), "0\n0\n")

    def test_children_that_a_script_leaves_end_with_it(self):
        job = self.builder(
            """
            def setup(self):
                pipe = os.pipe()
                self.child = subprocess.Popen(
                    ["sh", "-c", "echo; exec sleep 1000"],
                    stdout=pipe[1], start_new_session=True,
                )
                os.read(pipe[0], 1)
                self.log_info(os.stat(f"/proc/self/ns/pid").st_ino)
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(job.end(), 0)
        namespace = f"pid:[{job.log[0]['text']}]"
        inside = [pid for pid in os.listdir("/proc") if namespace_of(pid) == namespace]
        self.assertEqual(inside, [])


def namespace_of(pid):
    """Returns the process namespace of a process, and None if it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


class Signals(JobTest):
    def signal_until_printed(self, job, text):
        """Sends SIGALRM until its handler has run; one that comes just before a wait does not.

        Of one that comes while the handler gives the signal up Python says that it is ignored.
        """
        end = time.monotonic() + SILENCE
        while text not in job.printed():
            os.kill(job.python(), signal.SIGALRM)
            self.assertLess(time.monotonic(), end, job.printed())
            time.sleep(0.01)

    def test_the_answer_to_a_call_that_a_signal_cut_short_is_not_that_of_the_next(self):
        job = self.builder(
            """
            def setup(self):
                def alarm(*_):
                    signal.signal(signal.SIGALRM, signal.SIG_IGN)
                    raise TimeoutError
                signal.signal(signal.SIGALRM, alarm)
                try:
                    ceph.map_volume(None, "vms", "a")
                except TimeoutError:
                    print("cut short")
                assert ceph.map_volume(None, "vms", "b") == (True, "/dev/b")
            """,
            top=IMPORTS,
            answers={"ceph.map_volume": lambda pool, name: [True, f"/dev/{name}"]},
        )
        job.send({"phase": "setup"})
        first = job.receive()["call"]
        self.signal_until_printed(job, "cut short\n")
        job.answer(first)
        self.assertEqual(job.outcome(), {"done": None})

    def test_a_signal_handler_may_call_during_a_call(self):
        job = self.builder(
            """
            def setup(self):
                def alarm(*_):
                    signal.signal(signal.SIGALRM, signal.SIG_IGN)
                    print("alarm")
                    self.log_info("still waiting")
                    assert ceph.map_volume(None, "vms", "b") == (True, "/dev/b")
                signal.signal(signal.SIGALRM, alarm)
                assert ceph.map_volume(None, "vms", "a") == (True, "/dev/a")
            """,
            top=IMPORTS,
            answers={"ceph.map_volume": lambda pool, name: [True, f"/dev/{name}"]},
        )
        job.send({"phase": "setup"})
        first = job.receive()["call"]
        self.signal_until_printed(job, "alarm\n")
        job.answer(first)
        self.assertEqual(job.outcome(), {"done": None})
        self.assertEqual(job.log[0]["text"], "still waiting")
        self.assertEqual(job.calls[0]["arguments"]["name"], "b")


class Commands(JobTest):
    def results(self, *commands, top=""):
        """Returns what `run_os_command` gives for each of the argument lists, as texts."""
        lines = "\n".join(
            f"                self.log_info(run_os_command({command}))" for command in commands
        )
        job = self.builder(f"\n            def setup(self):\n{lines}\n", top=IMPORTS + top)
        self.assertEqual(job.phase("setup"), {"done": None})
        return [line["text"] for line in job.log]

    def test_code_output_and_error_output_are_returned(self):
        self.assertEqual(
            self.results("['sh', '-c', 'echo out; echo err >&2; exit 3']", "'true'"),
            [r"(3, 'out\n', 'err\n')", "(0, '', '')"],
        )

    def test_a_text_is_split_as_by_a_shell_and_no_shell_runs(self):
        self.assertEqual(
            self.results("""'echo "a  b" $HOME ; false | cat'""", "['echo', 'a  b', 7]"),
            [r"(0, 'a  b $HOME ; false | cat\n', '')", r"(0, 'a  b 7\n', '')"],
        )

    def test_output_that_is_not_ascii_is_empty(self):
        self.assertEqual(
            self.results(r"['printf', 'caf\\303\\251']", "['sh', '-c', 'printf é >&2; exit 4']"),
            ["(0, '', '')", "(4, '', '')"],
        )

    def test_a_command_that_cannot_be_executed_has_code_255(self):
        for text in self.results("'/no/such/command'", "'/etc'", "['a\\0b']", "[]"):
            self.assertTrue(text.startswith("(255, '', "), text)

    def test_a_command_beyond_its_time_is_killed_with_its_children_and_has_code_128(self):
        self.assertEqual(
            self.results("['sh', '-c', 'sleep 1000 | cat; true'], timeout=0.05"),
            ["(128, '', 'not finished after 0.05 s')"],
        )

    def test_variables_are_added_to_the_environment(self):
        self.assertEqual(
            self.results(
                "['sh', '-c', 'echo $A $B'], environment={'B': '2'}",
                top="    os.environ['A'] = '1'\n",
            ),
            [r"(0, '1 2\n', '')"],
        )

    def test_a_command_in_the_background_is_not_waited_for_and_is_run(self):
        job = self.builder(
            """
            def setup(self):
                os.mkfifo("/tmp/fifo")
                command = ["sh", "-c", "echo run > /tmp/fifo"]
                assert run_os_command(command, background=True) == (0, "", "")
                self.log_info(open("/tmp/fifo").read())
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(job.log[0]["text"], "run\n")
