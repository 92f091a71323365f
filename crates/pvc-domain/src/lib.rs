//! Domain XML: a summary to read, a tree to edit.
