//! Typed access to the tree: keys, codecs, mirror, change feed, versioned writes, locks, schema.
