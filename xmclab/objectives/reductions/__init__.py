"""The built-in reductions, one per file: which pairs count, and with what weight."""
