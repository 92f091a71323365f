//! Routes, authentication, events.
