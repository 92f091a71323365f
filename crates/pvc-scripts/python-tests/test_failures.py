"""What a script does wrong, and how it is reported."""

from job import HEADER, Gone, JobTest

PHASES = ("setup", "create", "prepare", "install", "cleanup")


class Methods(JobTest):
    def test_each_phase_reports_what_it_raises_and_the_process_goes_on(self):
        methods = "\n".join(f"def {p}(self): raise ValueError('in {p}')" for p in PHASES)
        job = self.builder(methods)
        for phase in PHASES:
            self.assertEqual(
                self.failure(job.phase(phase)), ("ValueError", f"in {phase}")
            )
        self.assertEqual(job.end(), 0)

    def test_fail_raises_the_class_that_it_is_given(self):
        job = self.builder(
            """
            def setup(self): self.fail("no such pool")
            def prepare(self): self.fail("no such VNI", exception=ValidationError)
            def install(self): celery.fail(None, "no such disk")
            """,
            top="import daemon_lib.celery as celery",
        )
        self.assertEqual(
            [self.failure(job.phase(phase)) for phase in ("setup", "prepare", "install")],
            [
                ("ProvisioningError", "no such pool"),
                ("ValidationError", "no such VNI"),
                ("TaskFailure", "no such disk"),
            ],
        )

    def test_cleanup_sees_what_the_failed_method_has_left(self):
        job = self.builder(
            """
            def prepare(self):
                self.mapped = ["vms/web1_sda"]
                raise OSError("half way")
            def cleanup(self):
                self.log_info(self.mapped)
            """
        )
        self.failure(job.phase("prepare"))
        self.assertEqual(job.phase("cleanup"), {"done": None})
        self.assertEqual(job.log[0]["text"], "['vms/web1_sda']")

    def test_the_traceback_has_the_scripts_own_lines_alone(self):
        job = self.builder(
            """
            def setup(self):
                import json
                try:
                    json.loads("{")
                except ValueError as error:
                    raise ProvisioningError("the answer is no JSON") from error
            """
        )
        traceback = job.phase("setup")["failed"]["traceback"]
        self.assertIn('json.loads("{")', traceback)
        self.assertIn('raise ProvisioningError("the answer is no JSON") from error', traceback)
        self.assertIn("script.py", traceback)
        self.assertTrue(
            traceback.endswith(
                "\ndaemon_lib.vmbuilder.ProvisioningError: the answer is no JSON\n"
            )
        )
        self.assertNotIn("run.py", traceback)
        self.assertNotIn("decoder.py", traceback)

    def test_long_texts_and_tracebacks_are_cut(self):
        job = self.builder(
            """
            def setup(self): raise ValueError("é" * 100_000)
            def install(self): self.deeper(0)
            def deeper(self, number):
                try:
                    raise ValueError(number)
                finally:
                    if number < 200: self.deeper(number + 1)
            """
        )
        failed = job.phase("setup")["failed"]
        self.assertTrue(failed["text"].endswith("… (91808 more characters)"))
        self.assertLessEqual(len(failed["traceback"].encode()), 8192)
        failed = job.phase("install")["failed"]
        self.assertEqual(failed["text"], "200")
        self.assertLessEqual(len(failed["traceback"].encode()), 8192)
        self.assertTrue(failed["traceback"].endswith("ValueError: 200\n"))

    def test_endless_recursion_is_a_failure_like_others(self):
        job = self.builder("def setup(self): self.setup()")
        self.assertEqual(self.failure(job.phase("setup"))[0], "RecursionError")
        self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_an_exception_that_cannot_be_shown_is_reported_by_its_class(self):
        job = self.builder(
            "def setup(self): raise Odd()",
            top="""
            class Odd(Exception):
                def __str__(self): raise ValueError
            """,
        )
        self.assertEqual(self.failure(job.phase("setup")), ("Odd", "no reason was given"))

    def test_exceptions_that_are_made_up_are_reported_like_others(self):
        job = self.builder(
            """
            def setup(self): raise AttributeError("a", obj=Evil(), name="x")
            def prepare(self): raise ImportError("b", name=5)
            def install(self): sys.exit(Evil())
            """,
            top="""
            import sys
            class Evil:
                def __getattr__(self, name): raise KeyError(name)
                def __repr__(self): raise SystemExit
            """,
        )
        self.assertEqual(self.failure(job.phase("setup")), ("AttributeError", "a"))
        self.assertEqual(self.failure(job.phase("prepare")), ("ImportError", "b"))
        self.assertEqual(self.failure(job.phase("install"))[0], "SystemExit")

    def test_groups_of_exceptions_are_reported(self):
        job = self.builder(
            "def setup(self): raise ExceptionGroup('two of them', [OSError('a'), KeyError('b')])"
        )
        failed = job.phase("setup")["failed"]
        self.assertEqual(failed["class"], "ExceptionGroup")
        self.assertIn("OSError: a", failed["traceback"])

    def test_leaving_the_interpreter_is_a_failure(self):
        job = self.builder(
            """
            def setup(self): sys.exit(0)
            def prepare(self): raise KeyboardInterrupt
            def install(self): quit()
            """,
            top="import sys",
        )
        self.assertEqual(
            self.failure(job.phase("setup")),
            ("SystemExit", "the script called `sys.exit(0)`: its methods have to return"),
        )
        self.assertEqual(
            self.failure(job.phase("prepare")), ("KeyboardInterrupt", "no reason was given")
        )
        self.assertEqual(self.failure(job.phase("install"))[0], "SystemExit")
        self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_leaving_the_process_is_seen_by_its_end(self):
        for leave in ("os._exit(3)", "os.close(3); self.log_info('x')"):
            job = self.builder(f"def setup(self): {leave}", top="import os")
            with self.assertRaises(Gone):
                job.phase("setup")
            self.assertNotEqual(job.end(), 0)

    def test_closing_all_files_ends_the_process_and_writes_nothing_into_others(self):
        job = self.builder(
            """
            def setup(self):
                os.closerange(3, 100)
                self.file = open("/tmp/mine", "w+")
                assert self.file.fileno() == 3
                self.log_info("x")
            """,
            top="import os",
        )
        with self.assertRaises(Gone) as gone:
            job.phase("setup")
        self.assertIn("OSError(88", str(gone.exception))

    def test_what_create_returns_has_to_be_text(self):
        for value, words in (
            ("None", "not None"),
            ("b'<domain/>'", "not a value of type `bytes`"),
            ("7", "not a value of type `int`"),
            ("float('nan')", "not a value of type `float`"),
            ("{'domain': 1}", "not a value of type `dict`"),
        ):
            job = self.builder(f"def create(self): return {value}")
            self.assertEqual(
                self.failure(job.phase("create")),
                (
                    "ProvisioningError",
                    f"`create` has to return the VM's XML as text, {words}",
                ),
            )

    def test_xml_that_no_message_holds_is_refused(self):
        for xml in ("'x' * (1 << 20)", "'\\x01' * (1 << 18)"):
            job = self.builder(f"def create(self): return {xml}")
            name, text = self.failure(job.phase("create"))
            self.assertEqual(name, "ValueError")
            self.assertIn("bytes are too many for the worker, which takes 1048576", text)

    def test_a_method_that_is_none_fails(self):
        job = self.builder("setup = None")
        self.assertEqual(self.failure(job.phase("setup"))[0], "TypeError")


class Imports(JobTest):
    def refused(self, text, /, **options):
        """Starts a job whose script cannot be imported; returns class and text."""
        job = self.job(text, **options)
        failure = self.failure(job.outcome())
        with self.assertRaises(Gone):
            job.receive()
        self.assertEqual(job.end(), 1)
        return failure

    def test_a_script_that_is_no_python_is_refused(self):
        for text in ("def setup(self:\n", b"\xff\xfe\x00", b"x = 1\0\n"):
            # Python before 3.11.4 has a ValueError for zero bytes.
            self.assertIn(self.refused(text)[0], ("SyntaxError", "ValueError"))

    def test_the_place_of_a_syntax_error_is_named(self):
        job = self.job("import os\nif x\n")
        failed = job.outcome()["failed"]
        self.assertIn("line 2", failed["text"])
        self.assertIn("if x", failed["traceback"])

    def test_a_script_without_its_class_is_refused(self):
        for script in ("", "class VMBuilder: pass"):
            self.assertEqual(
                self.refused(script),
                ("ProvisioningError", "the script has no class `VMBuilderScript`"),
            )

    def test_an_error_of_the_class_is_one_of_the_import(self):
        script = f"{HEADER}class VMBuilderScript(VMBuilder):\n    def __init__(self): pass\n"
        self.assertEqual(self.refused(script)[0], "TypeError")
        self.assertEqual(self.refused("VMBuilderScript = 7\n")[0], "TypeError")

    def test_leaving_the_interpreter_while_imported_is_reported(self):
        self.assertEqual(self.refused("import sys\nsys.exit(7)\n")[0], "SystemExit")

    def test_a_thread_of_a_script_that_cannot_be_imported_does_not_hold_the_process(self):
        text = "import threading\nthreading.Thread(target=threading.Event().wait).start()\nNone.x"
        self.assertEqual(self.refused(text)[0], "AttributeError")

    def test_a_missing_file_is_reported(self):
        self.assertEqual(self.refused("", script="/no/such/script.py")[0], "FileNotFoundError")

    def test_a_root_that_is_not_there_is_reported(self):
        script = f"{HEADER}class VMBuilderScript(VMBuilder): pass\n"
        name, text = self.refused(script, root="/no/such/root")
        self.assertEqual(name, "ProvisioningError")
        self.assertIn("mount -t tmpfs -o mode=755,size=1m tmpfs /no/such/root", text)

    def test_parts_of_pvc_that_scripts_do_not_have_are_named_with_the_manuals_page(self):
        for line, words in (
            ("from daemon_lib import autobackup", "this version does not have it for scripts"),
            ("import daemon_lib.autobackup", "this version does not have it for scripts"),
            ("from daemon_lib.ceph import get_pgs", "this version does not have it for scripts"),
            ("import daemon_lib.vm as vm; vm.flush_locks", "does not have it for scripts"),
            ("open_zk({}).__enter__().zk_conn", "does not have it for scripts"),
            ("import kazoo.client", "use `open_zk`"),
            ("import celery", "do not run in Celery"),
            ("import pvcapid.flaskapi", "of `pvcapid` scripts have"),
            ("import pvcnoded.Daemon", "nothing of the node daemon"),
        ):
            with self.subTest(line):
                name, text = self.refused(HEADER + line)
                self.assertIn(name, ("ImportError", "ModuleNotFoundError", "AttributeError"))
                self.assertIn(words, text)
                self.assertIn("docs/manual/provisioner-scripts.md", text)

    def test_a_part_that_is_missing_is_named_also_behind_the_scripts_own_error(self):
        job = self.builder(
            """
            def setup(self):
                try:
                    import daemon_lib.ceph as ceph
                    ceph.get_pgs(None)
                except Exception as error:
                    self.fail(f"cannot count: {error}")
            """
        )
        self.assertIn("docs/manual/provisioner-scripts.md", self.failure(job.phase("setup"))[1])

    def test_other_missing_modules_have_no_hint(self):
        self.assertEqual(
            self.refused("import nosuchmodule"),
            ("ModuleNotFoundError", "No module named 'nosuchmodule'"),
        )
        self.assertEqual(
            self.refused("None.colour"),
            ("AttributeError", "'NoneType' object has no attribute 'colour'"),
        )
