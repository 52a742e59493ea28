"""Runs beside each other: what they measured, which differences are real, and tables and pages of it."""
