"""Indexes: search over label vectors by inner product."""
