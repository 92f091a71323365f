//! What every Tree must do.
