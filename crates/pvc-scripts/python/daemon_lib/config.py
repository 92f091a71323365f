"""Configuration of the cluster; scripts for 1.0.3 import `pvcworkerd.Daemon.config` instead."""

from pvcworkerd.Daemon import config


def get_configuration():
    """Returns the configuration, which is also `pvcworkerd.Daemon.config`."""
    return config
