"""Comparisons: a declaration in, trained cells, statistics and reports out."""
