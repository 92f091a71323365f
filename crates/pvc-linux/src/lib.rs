//! This machine: figures, programs, services.
