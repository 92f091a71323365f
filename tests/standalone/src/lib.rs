//! A whole PVC on one machine, for tests: real QEMU, driven by `pvc` and over HTTP.
