"""Older name of `pvcworkerd.Daemon`."""

from pvcworkerd.Daemon import config  # noqa: F401
