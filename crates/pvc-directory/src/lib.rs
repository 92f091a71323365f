//! Volumes as files in a directory.
