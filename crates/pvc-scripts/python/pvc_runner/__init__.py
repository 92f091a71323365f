"""Inner parts of the process of a script; scripts do not import them."""
