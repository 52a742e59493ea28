"""Finds parts, recipes and data sets, and chooses them: from plugins and overrides to one config. Imports no torch."""
