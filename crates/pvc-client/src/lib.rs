//! Typed calls to the API.
