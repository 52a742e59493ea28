"""A whole run and its folder."""
