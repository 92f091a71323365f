"""Older name of `daemon_lib.libvirt_schema`."""

from daemon_lib.libvirt_schema import *  # noqa: F401, F403
