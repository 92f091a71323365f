"""Older names of `daemon_lib` and `pvcworkerd`, which scripts for earlier versions import."""
