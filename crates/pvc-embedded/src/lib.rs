//! The embedded Tree: in the process, kept on disk.
