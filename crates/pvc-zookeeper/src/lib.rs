//! The Tree on Apache ZooKeeper.
