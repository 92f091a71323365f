//! The node role: reconcilers, keepalive, console, start-up and shutdown.
