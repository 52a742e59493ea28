"""The model: an encoder with heads on it, and tables of which a step touches only a few rows."""
