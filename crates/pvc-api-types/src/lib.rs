//! What goes over HTTP.
