"""Built-in heads."""
