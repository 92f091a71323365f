"""Worker daemon of PVC 1.0.3, as far as scripts use it: `pvcworkerd.Daemon.config`."""
