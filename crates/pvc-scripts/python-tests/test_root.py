"""Root directory that the methods of a script run in."""

import os
import tempfile
import textwrap
import uuid

from job import JobTest

IMPORTS = "import ctypes, errno, os, subprocess\n"


class Root(JobTest):
    def test_methods_see_a_node_that_is_read_only_except_for_tmp(self):
        job = self.builder(
            """
            def setup(self):
                assert os.getcwd() == "/"
                assert os.listdir("/tmp") == []
                open("/tmp/file", "w").write("x")
                for directory in ("/", "/etc", "/dev"):
                    try:
                        open(f"{directory}/pvc-test", "w")
                    except OSError as error:
                        assert error.errno == errno.EROFS, error
                    else:
                        raise AssertionError(f"{directory} is writable")
                assert os.path.exists("/proc/self/status")
                assert os.listdir("/sys/class")
                assert os.path.exists("/etc/passwd")
                with open("/dev/null", "w") as file:
                    file.write("x")
                assert os.stat("/run").st_dev == run
                assert os.lstat("/etc/passwd").st_ino == passwd
            """,
            top=IMPORTS
            + "run = os.stat('/run').st_dev\npasswd = os.lstat('/etc/passwd').st_ino",
        )
        self.assertEqual(job.phase("setup"), {"done": None})

    def test_methods_see_in_the_root_directory_what_the_node_has_there(self):
        job = self.builder(
            """
            def setup(self):
                for entry in os.scandir("/"):
                    link = os.readlink(entry.path) if entry.is_symlink() else None
                    self.log_info((entry.name, link))
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        entries = [
            (entry.name, os.readlink(entry.path) if entry.is_symlink() else None)
            for entry in os.scandir("/")
        ]
        self.assertCountEqual([line["text"] for line in job.log], [str(it) for it in entries])

    def test_a_script_that_makes_its_root_read_only_leaves_that_of_the_node_alone(self):
        for change in (
            "subprocess.run(['umount', '/'])",
            "subprocess.run(['mount', '-o', 'remount,ro', '/'], check=True)",
            "ctypes.CDLL(None).mount(b'none', b'/', None, 1 | 32, None)",
        ):
            # Each is tried after it is sure that `/` is no file system of this machine.
            top = f"""
                def make_read_only():
                    kind = subprocess.check_output(["stat", "-f", "-c", "%T", "/"])
                    assert kind == b"tmpfs\\n" and os.stat("/").st_dev not in {devices()}, kind
                    {change}
                    assert os.statvfs("/").f_flag & os.ST_RDONLY
                make_read_only()
            """
            job = self.builder(
                """
                def install(self):
                    make_read_only()
                def cleanup(self):
                    assert os.path.exists("/etc/passwd")
                    open("/tmp/file", "w").close()
                """,
                top=IMPORTS + textwrap.dedent(top),
            )
            for phase in ("install", "cleanup"):
                self.assertEqual(job.phase(phase), {"done": None}, change)
                self.assertFalse(os.statvfs("/").f_flag & os.ST_RDONLY, change)
            self.assertEqual(job.end(), 0)

    def test_outside_of_methods_all_that_the_node_has_is_there_to_be_written_to(self):
        directory = tempfile.TemporaryDirectory(prefix="pvc-script-test-")
        self.addCleanup(directory.cleanup)
        mark = os.path.join(directory.name, "written")
        mounted = os.path.ismount("/sys/fs/cgroup")
        job = self.builder(
            "",
            top=IMPORTS
            + f"open({mark!r}, 'w').close()\n"
            + f"assert os.path.ismount('/sys/fs/cgroup') is {mounted}\n",
        )
        self.assertTrue(os.path.exists(mark))
        self.assertEqual(os.listdir(job.root), [])

    def test_between_methods_the_process_is_outside(self):
        job = self.builder("def setup(self): os.mkdir('/tmp/inside')", top=IMPORTS)
        self.assertEqual(job.phase("setup"), {"done": None})
        for name in ("root", "cwd"):
            self.assertEqual(os.readlink(f"/proc/{job.python()}/{name}"), "/")

    def test_what_is_mounted_is_seen_by_nobody_else(self):
        name = f"pvc-test-{uuid.uuid4()}"
        job = self.builder(
            f"""
            def prepare(self):
                subprocess.run(["mount", "-t", "tmpfs", "{name}", "/mnt"], check=True)
                assert "{name}" in open("/proc/self/mountinfo").read()
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("prepare"), {"done": None})
        self.assertEqual(os.listdir(job.root), [])
        for mark in (name, job.directory):
            self.assertNotIn(mark, mounts())
        self.assertEqual(job.end(), 0)
        for mark in (name, job.directory):
            self.assertNotIn(mark, mounts())

    def test_a_chroot_inside_ends_where_it_began_whatever_happens_in_it(self):
        job = self.builder(
            """
            def install(self):
                os.makedirs("/tmp/target/inner")
                os.chdir("/tmp")
                with chroot("/tmp/target"):
                    assert os.getcwd() == "/" and os.listdir("/") == ["inner"]
                    with chroot("/inner"):
                        assert os.listdir("/") == []
                    assert os.listdir("/") == ["inner"]
                assert os.getcwd() == "/tmp"
                try:
                    with chroot("target"):
                        open("/made", "w").close()
                        raise ValueError
                except ValueError:
                    pass
                assert os.path.exists("/tmp/target/made")
                with chroot("/tmp/target"):
                    raise KeyError("in the guest")
            def cleanup(self):
                assert os.listdir("/tmp") == ["target"]
            """,
            top=IMPORTS,
        )
        self.assertEqual(self.failure(job.phase("install")), ("KeyError", "'in the guest'"))
        self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_a_chroot_to_what_is_not_there_changes_nothing(self):
        job = self.builder(
            """
            def install(self):
                try:
                    with chroot("/tmp/none"): pass
                except FileNotFoundError:
                    assert os.listdir("/tmp") == []
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("install"), {"done": None})

    def test_a_script_that_calls_os_chroot_itself_is_brought_back(self):
        job = self.builder(
            """
            def install(self):
                os.mkdir("/tmp/target")
                os.chroot("/tmp/target")
                os.chdir("/")
            def cleanup(self):
                assert os.listdir("/tmp") == ["target"]
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("install"), {"done": None})
        self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_a_script_that_unmounts_its_root_fails_from_then_on_and_in_words(self):
        job = self.builder(
            """
            def install(self):
                detach = 2
                assert ctypes.CDLL(None, use_errno=True).umount2(b"/", detach) == 0
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("install"), {"done": None})
        self.assertEqual(
            self.failure(job.phase("cleanup")),
            (
                "ProvisioningError",
                "the script has unmounted the root directory that its methods run in",
            ),
        )
        self.assertTrue(os.path.exists("/etc/passwd"))
        self.assertEqual(job.end(), 0)

    def test_a_script_that_fills_tmp_fails_and_cleans_up(self):
        job = self.builder(
            """
            def install(self):
                open("/tmp/part", "wb").write(bytes(20 << 20))
                open("/tmp/full", "wb").write(bytes(20 << 20))
            def cleanup(self):
                os.remove("/tmp/full")
            """,
            top=IMPORTS,
        )
        self.assertEqual(
            self.failure(job.phase("install")),
            ("OSError", "[Errno 28] No space left on device"),
        )
        self.assertEqual(job.phase("cleanup"), {"done": None})

    def test_files_are_for_all_to_read_whatever_the_worker_has(self):
        umask = os.umask(0o077)
        try:
            job = self.builder("def setup(self): print(oct(os.umask(0)))", top=IMPORTS)
        finally:
            os.umask(umask)
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(job.printed(), "0o22\n")

    def test_modules_of_pvc_can_be_imported_inside(self):
        # The files are not there: this test's directory is below /tmp, as a job's may be.
        job = self.builder(
            """
            def setup(self):
                import daemon_lib.ceph, daemon_lib.celery, daemon_lib.common, daemon_lib.config
                import daemon_lib.libvirt_schema, daemon_lib.log, daemon_lib.network
                import daemon_lib.node, daemon_lib.vm, daemon_lib.zkhandler
                import pvcapid.Daemon, pvcapid.libvirt_schema, pvcapid.vmbuilder
                import pvcworkerd.Daemon
            """
        )
        self.assertEqual(job.phase("setup"), {"done": None})


def devices():
    """Returns the numbers of all file systems that the test's own process sees."""
    numbers = [line.split()[2].split(":") for line in mounts().splitlines()]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def mounts():
    """Returns the mounts that the test's own process sees."""
    with open("/proc/self/mountinfo") as file:
        return file.read()
