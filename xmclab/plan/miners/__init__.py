"""Negative miners: where the negatives of a query come from, beyond the other queries' positives."""
