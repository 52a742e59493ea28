"""Built-in searches."""
