"""Measuring a model: metrics, search and reports."""
