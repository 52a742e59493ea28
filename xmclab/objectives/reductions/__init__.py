"""The built-in reductions, a file each: which pairs count, and with what weight."""
