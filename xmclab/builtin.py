"""The built-in parts."""
