"""Older name of `daemon_lib.vmbuilder`."""

from daemon_lib.vmbuilder import *  # noqa: F401, F403
