"""Optional accelerators: each is defined by a plain version elsewhere, which gives the same numbers."""
