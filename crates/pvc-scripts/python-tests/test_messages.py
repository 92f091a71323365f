"""What goes between the worker and a script's process."""

from job import Gone, JobTest

# Each function with its arguments beyond the handle, and what the worker is asked for.
CALLS = [
    (
        "ceph.add_volume('vms', 'web1_sda', '4G')",
        "ceph.add_volume",
        {
            "pool": "vms",
            "name": "web1_sda",
            "size": "4G",
            "force_flag": False,
            "zk_only": False,
        },
    ),
    (
        "ceph.add_volume('vms', 'web1_sda', 4096, force_flag=True, zk_only=True)",
        "ceph.add_volume",
        {
            "pool": "vms",
            "name": "web1_sda",
            "size": "4096",
            "force_flag": True,
            "zk_only": True,
        },
    ),
    (
        "ceph.clone_volume('vms', 'a', 'b')",
        "ceph.clone_volume",
        {"pool": "vms", "name_src": "a", "name_new": "b", "force_flag": False},
    ),
    ("ceph.remove_volume('vms', 'a')", "ceph.remove_volume", {"pool": "vms", "name": "a"}),
    (
        "ceph.resize_volume('vms', 'a', '8G')",
        "ceph.resize_volume",
        {"pool": "vms", "name": "a", "size": "8G", "force_flag": False},
    ),
    (
        "ceph.rename_volume('vms', 'a', 'b')",
        "ceph.rename_volume",
        {"pool": "vms", "name": "a", "new_name": "b"},
    ),
    ("ceph.map_volume('vms', 'a')", "ceph.map_volume", {"pool": "vms", "name": "a"}),
    ("ceph.unmap_volume('vms', 'a')", "ceph.unmap_volume", {"pool": "vms", "name": "a"}),
    (
        "ceph.add_snapshot('vms', 'a', 's')",
        "ceph.add_snapshot",
        {"pool": "vms", "volume": "a", "name": "s"},
    ),
    (
        "ceph.remove_snapshot('vms', 'a', 's')",
        "ceph.remove_snapshot",
        {"pool": "vms", "volume": "a", "name": "s"},
    ),
    (
        "ceph.rollback_snapshot('vms', 'a', 's')",
        "ceph.rollback_snapshot",
        {"pool": "vms", "volume": "a", "name": "s"},
    ),
    (
        "ceph.get_list_volume('vms')",
        "ceph.get_list_volume",
        {"pool": "vms", "limit": None, "is_fuzzy": True},
    ),
    ("ceph.get_list_pool()", "ceph.get_list_pool", {"limit": None, "is_fuzzy": True}),
    (
        "ceph.get_list_snapshot('vms', 'a', limit='s', is_fuzzy=False)",
        "ceph.get_list_snapshot",
        {"pool": "vms", "volume": "a", "limit": "s", "is_fuzzy": False},
    ),
    ("ceph.get_list_osd()", "ceph.get_list_osd", {"limit": None, "is_fuzzy": True}),
    (
        "vm.get_list(state='start')",
        "vm.get_list",
        {
            "node": None,
            "state": "start",
            "tag": None,
            "limit": None,
            "is_fuzzy": True,
            "negate": False,
        },
    ),
    (
        "vm.get_info(self.vm_uuid)",
        "vm.get_info",
        {"domain": "00000000-0000-0000-0000-000000000007"},
    ),
    (
        "vm.define_vm('<domain/>', 'hv1', ['hv1'], 'mem', False)",
        "vm.define_vm",
        {
            "config_data": "<domain/>",
            "target_node": "hv1",
            "node_limit": ["hv1"],
            "node_selector": "mem",
            "node_autostart": False,
            "migration_method": None,
            "migration_max_downtime": 300,
            "profile": None,
            "tags": [],
            "initial_state": "stop",
        },
    ),
    ("vm.start_vm('web2')", "vm.start_vm", {"domain": "web2"}),
    ("vm.stop_vm('web2')", "vm.stop_vm", {"domain": "web2"}),
    ("vm.shutdown_vm('web2')", "vm.shutdown_vm", {"domain": "web2"}),
    ("vm.undefine_vm('web2')", "vm.undefine_vm", {"domain": "web2"}),
    ("vm.remove_vm('web2')", "vm.remove_vm", {"domain": "web2"}),
    ("network.get_list()", "network.get_list", {"limit": None, "is_fuzzy": True}),
    ("network.get_info('1001')", "network.get_info", {"network": "1001"}),
    ("node.get_list()", "node.get_list", {"limit": None}),
    ("node.get_info('hv1')", "node.get_info", {"node": "hv1"}),
]

# Each operation of the handle, and what the worker is asked for.
RECORDS = [
    ("read(('volume', 'vms/web1_sda'))", "zk.read", {"key": "/ceph/volumes/vms/web1_sda"}),
    ("read(('domain.state', self.vm_uuid))", "zk.read", {"key": f"/domains/{7:032x}/state"}),
    ("read('base.config.primary_node')", "zk.read", {"key": "/config/primary_node"}),
    ("exists(('node', 'hv1'))", "zk.exists", {"key": "/nodes/hv1"}),
    ("children('/networks')", "zk.children", {"key": "/networks"}),
    (
        "write([(('domain.profile', 'U'), None)])",
        "zk.write",
        {"pairs": [["/domains/U/profile", "None"]]},
    ),
    ("delete(('pool', 'vms'))", "zk.delete", {"keys": ["/ceph/pools/vms"], "recursive": True}),
    (
        "delete(['/a', '/b'], recursive=False)",
        "zk.delete",
        {"keys": ["/a", "/b"], "recursive": False},
    ),
]

IMPORTS = """
    import daemon_lib.ceph as ceph, daemon_lib.vm as vm
    import daemon_lib.network as network, daemon_lib.node as node
    from pvcworkerd.Daemon import config
"""


class Messages(JobTest):
    def test_phases_end_with_null_and_create_with_its_xml_without_blanks_around(self):
        job = self.builder("def create(self): return '  <domain/>\\n'")
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(job.phase("create"), {"done": "<domain/>"})
        for phase in ("prepare", "install", "cleanup"):
            self.assertEqual(job.phase(phase), {"done": None})
        self.assertEqual(job.end(), 0)
        self.assertEqual(job.log, [])

    def test_what_other_methods_return_is_not_sent(self):
        job = self.builder("def install(self): return object()")
        self.assertEqual(job.phase("install"), {"done": None})

    def test_the_job_reaches_the_script_with_its_types(self):
        job = self.builder(
            """
            def setup(self):
                assert self.vm_uuid == uuid.UUID(int=7)
                assert (self.vm_name, self.vm_profile) == ("web1", "small")
                assert self.vm_id is not None and int(self.vm_id % 16) == 1
                assert self.vm_data["system_details"]["serial"] is True
                assert self.vm_data["mac_template"] is None
                assert type(self.vm_data["volumes"][0]) is dict
                assert self.vm_data["volumes"][0]["filesystem_args"] == ""
                assert config["cluster_name"] == "test"
            """,
            top="import uuid\nfrom pvcworkerd.Daemon import config",
        )
        self.assertEqual(job.phase("setup"), {"done": None})

    def test_the_configuration_is_there_when_the_script_is_imported(self):
        job = self.builder(
            "pass", top="from pvcworkerd.Daemon import config\nprint(config['cluster_name'])"
        )
        job.phase("setup")
        self.assertEqual(job.printed(), "test\n")

    def test_older_names_are_the_same_objects(self):
        job = self.builder(
            "pass",
            top="""
            import daemon_lib.config, daemon_lib.vmbuilder, pvcapid.vmbuilder
            import pvcapid.Daemon, pvcworkerd.Daemon, pvcapid.libvirt_schema
            assert pvcapid.vmbuilder.VMBuilder is daemon_lib.vmbuilder.VMBuilder
            assert pvcapid.Daemon.config is pvcworkerd.Daemon.config
            assert daemon_lib.config.get_configuration() is pvcworkerd.Daemon.config
            assert "{vm_name}" in pvcapid.libvirt_schema.libvirt_header
            """,
        )
        self.assertEqual(job.phase("setup"), {"done": None})

    def test_state_is_kept_from_one_method_to_the_next(self):
        job = self.builder(
            """
            def setup(self):
                self.kept = "on the object"
                self.vm_data["volumes"][0]["device"] = "in a row"
                open("/tmp/kept", "w").write("in a file")
            def install(self):
                row = self.vm_data["volumes"][0]["device"]
                self.log_info(f"{self.kept}, {row}, {open('/tmp/kept').read()}")
            """
        )
        job.phase("setup")
        job.phase("install")
        self.assertEqual(job.log[0]["text"], "on the object, in a row, in a file")

    def test_log_lines_come_in_their_order_with_their_levels(self):
        job = self.builder(
            """
            def setup(self):
                self.log_info("one")
                self.log_warn("two")
                self.log_err(3)
                celery.update(None, "four", current=4, total=5)
                log.log_info("five")
            """,
            top="import daemon_lib.celery as celery, daemon_lib.log as log",
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(
            [(line["level"], line["text"]) for line in job.log],
            [
                ("info", "one"),
                ("warning", "two"),
                ("error", "3"),
                ("info", "four"),
                ("info", "five"),
            ],
        )

    def test_a_long_log_line_is_cut_and_says_so(self):
        job = self.builder("def setup(self): self.log_info('\\x01' * 2_000_000)")
        job.phase("setup")
        self.assertTrue(job.log[0]["text"].endswith("… (1934464 more characters)"))

    def test_text_that_is_no_unicode_is_sent_with_question_marks(self):
        job = self.builder("def setup(self): self.log_info('caf\\udce9 — é')")
        job.phase("setup")
        self.assertEqual(job.log[0]["text"], "caf? — é")

    def test_printed_lines_are_there_before_the_phase_ends(self):
        job = self.builder("def setup(self): print('é', 'x', sep='\\n', end='')")
        job.phase("setup")
        self.assertEqual(job.printed(), "é\nx")

    def test_a_script_that_closes_or_replaces_its_output_goes_on(self):
        for text in ("sys.stdout.close()", "sys.stdout = None"):
            job = self.builder(f"def setup(self): {text}", top="import sys")
            self.assertEqual(job.phase("setup"), {"done": None})

    def test_each_function_is_a_call_with_all_its_arguments(self):
        lines = "\n".join(
            f"                results.append({text.replace('(', '(zk, ', 1).replace(', )', ')')})"
            for text, _, _ in CALLS
        )
        job = self.builder(
            f"""
            def setup(self):
                results = []
                with open_zk(config) as zk:
                    pass
{lines}
                assert results == [(True, "done")] * {len(CALLS)}, results
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual(
            job.calls, [{"function": name, "arguments": given} for _, name, given in CALLS]
        )

    def test_the_handle_turns_names_of_keys_into_paths(self):
        lines = "\n".join(f"                    zk.{text}" for text, _, _ in RECORDS)
        job = self.builder(
            f"""
            def setup(self):
                with open_zk(config) as zk:
{lines}
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        expected = [{"function": name, "arguments": given} for _, name, given in RECORDS]
        expected[1]["arguments"]["key"] = "/domains/00000000-0000-0000-0000-000000000007/state"
        self.assertEqual(job.calls, expected)

    def test_an_unknown_name_of_a_key_is_refused_before_a_call(self):
        job = self.builder(
            """
            def setup(self):
                with open_zk({}) as zk:
                    for key in ("domain.colour", "domain.state", ("base.config", "x")):
                        try:
                            zk.read(key)
                        except KeyError as error:
                            self.log_info(error.args[0])
            """
        )
        job.phase("setup")
        self.assertEqual(job.calls, [])
        self.assertEqual(
            [line["text"] for line in job.log],
            [
                "`domain.colour` is no known key; give its path, such as `/domains`",
                "`domain.state` takes 1 names, and 0 were given",
                "`base.config` takes 0 names, and 1 were given",
            ],
        )

    def test_refusals_and_lists_come_back_as_they_are(self):
        job = self.builder(
            """
            def setup(self):
                assert ceph.map_volume(None, "vms", "a") == (False, "no volume `a`")
                assert ceph.get_list_pool(None) == (True, [{"name": "vms", "pgs": 64}])
                assert ZKHandler(config).read("/x") is None
                assert ZKHandler(config).children("/x") == ["a"]
            """,
            top=IMPORTS + "    from daemon_lib.zkhandler import ZKHandler\n",
            answers={
                "ceph.map_volume": [False, "no volume `a`"],
                "ceph.get_list_pool": [True, [{"name": "vms", "pgs": 64}]],
                "zk.read": None,
                "zk.children": ["a"],
            },
        )
        self.assertEqual(job.phase("setup"), {"done": None})

    def test_sizes_are_read_and_written_in_binary_units(self):
        job = self.builder(
            """
            def setup(self):
                for text, size in (
                    ("1024", 1024), (4096, 4096), ("0", 0), ("9B", 9), ("10G", 10 << 30),
                    ("10g", 10 << 30), ("512MiB", 512 << 20), ("3MB", 3 << 20), ("1.5K", 1536),
                    ("1.1K", 1126), ("0.1B", 0),
                ):
                    assert ceph.format_bytes_fromhuman(text) == size, text
                for text in ("", "G", "-1", "1X", "1 G", "1.2.3"):
                    try:
                        self.log_err(ceph.format_bytes_fromhuman(text))
                    except ValueError as error:
                        assert f"`{text}` is no size" in str(error), error
                for size, text in (
                    (0, "0B"), (9999, "9999B"), (10000, "10K"), (1025 << 20, "1025M"),
                    (9 << 30, "9216M"), (10 << 30, "10G"), ((10 << 30) + 1, "11G"),
                    (1 << 40, "1024G"), ((10 << 50) + 1, "11P"),
                ):
                    assert ceph.format_bytes_tohuman(size) == text, (size, text)
            """,
            top=IMPORTS,
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual((job.calls, job.log), ([], []))

    def test_a_call_that_could_not_be_carried_out_raises(self):
        job = self.builder(
            "def setup(self): ceph.map_volume(None, 'vms', 'a')",
            top=IMPORTS,
            answers={"ceph.map_volume": Exception("the store is not reachable")},
        )
        self.assertEqual(
            self.failure(job.phase("setup")), ("ClusterError", "the store is not reachable")
        )

    def test_what_cannot_be_sent_raises_and_the_next_call_goes_through(self):
        job = self.builder(
            """
            def setup(self):
                for name in ({1}, "x" * (1 << 20), float("nan")):
                    try:
                        ceph.map_volume(None, "vms", name)
                    except (TypeError, ValueError) as error:
                        self.log_info(error)
                ceph.map_volume(None, "vms", pathlib.Path("a"))
            """,
            top=IMPORTS + "    import pathlib\n",
        )
        self.assertEqual(job.phase("setup"), {"done": None})
        self.assertEqual([call["arguments"]["name"] for call in job.calls], ["a"])
        texts = [line["text"] for line in job.log]
        self.assertEqual(texts[0], "a value of type `set` cannot be sent to the worker")
        self.assertIn("bytes are too many for the worker, which takes 1048576", texts[1])

    def test_a_script_may_call_functions_while_it_is_imported(self):
        job = self.builder("pass", top=IMPORTS + "    print(node.get_list(None))\n")
        job.phase("setup")
        self.assertEqual(job.calls[0]["function"], "node.get_list")
        self.assertEqual(job.printed(), "(True, 'done')\n")

    def test_a_phase_that_is_none_is_refused(self):
        job = self.builder("def __del__(self): pass")
        self.assertEqual(
            self.failure(job.phase("__del__")), ("ValueError", "`__del__` is no phase")
        )

    def test_the_process_ends_when_the_worker_goes_between_phases(self):
        job = self.builder("pass")
        self.assertEqual(job.end(), 0)

    def test_the_process_ends_when_the_worker_goes_in_the_middle_of_a_method(self):
        job = self.builder(
            """
            def setup(self):
                self.log_info("begun")
                while True:
                    pass
            """
        )
        job.send({"phase": "setup"})
        self.assertIn("log", job.receive())
        self.assertEqual(job.end(), 0)

    def test_the_process_ends_when_the_worker_goes_in_the_middle_of_a_call(self):
        job = self.builder("def setup(self): ceph.map_volume(None, 'v', 'a')", top=IMPORTS)
        job.send({"phase": "setup"})
        self.assertIn("call", job.receive())
        self.assertEqual(job.end(), 0)

    def test_a_message_that_is_junk_ends_the_process_with_a_reason(self):
        for junk in (b"{\n", b'"job"\n', b"{}\n", b"\xff\n", b"x" * ((1 << 20) + 1)):
            job = self.builder("pass")
            job.socket.sendall(junk)
            with self.assertRaises(Gone) as gone:
                job.outcome()
            self.assertIn("the worker's message cannot be read", str(gone.exception))
            self.assertEqual(job.end(), 1)


class NoDatabase(JobTest):
    def test_without_postgresql_open_db_says_so(self):
        job = self.builder(
            """
            def setup(self):
                with open_db(config) as cursor:
                    pass
            """,
            top=IMPORTS,
        )
        self.assertEqual(
            self.failure(job.phase("setup")),
            ("ClusterError", "this cluster has no PostgreSQL in its configuration"),
        )

    def test_the_cursor_is_psycopg2s_with_the_clusters_credentials(self):
        job = self.builder(
            """
            def setup(self):
                with open_db(config) as cursor:
                    cursor.execute("SELECT 1")
                assert said[0] == ("db1", 5432, "pvcapi", "pvc", "secret")
                assert said[1:] == ["SELECT 1", "commit"], said
                try:
                    with open_db(config) as cursor:
                        raise ValueError
                except ValueError:
                    assert said[-1] == "rollback"
            """,
            top=IMPORTS
            + """
    import sys, types
    said = []
    class Cursor:
        def __enter__(self): return self
        def __exit__(self, *error): pass
        def execute(self, text): said.append(text)
    class Connection:
        def __enter__(self): return self
        def __exit__(self, kind, *error): said.append("rollback" if kind else "commit")
        def cursor(self, cursor_factory): return cursor_factory()
        def close(self): pass
    def connect(host, port, dbname, user, password):
        said.append((host, port, dbname, user, password))
        return Connection()
    psycopg2 = types.ModuleType("psycopg2")
    psycopg2.extras = types.ModuleType("psycopg2.extras")
    psycopg2.connect, psycopg2.extras.RealDictCursor = connect, Cursor
    sys.modules.update({"psycopg2": psycopg2, "psycopg2.extras": psycopg2.extras})
""",
            config={
                "api_postgresql_host": "db1",
                "api_postgresql_port": 5432,
                "api_postgresql_dbname": "pvcapi",
                "api_postgresql_user": "pvc",
                "api_postgresql_password": "secret",
            },
        )
        self.assertEqual(job.phase("setup"), {"done": None})
