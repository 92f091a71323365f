//! The pvc command line, one file per command.
