"""The terminal and the disk."""
