//! The job runtime: queue, lease, steps, progress, cancellation.
