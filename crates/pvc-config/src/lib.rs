//! Both configuration formats into one typed value, every mistake at once.
