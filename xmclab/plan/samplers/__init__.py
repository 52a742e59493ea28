"""Batch samplers: which queries form a batch."""
