"""The model: an encoder with heads on it, and the tables of which a step touches a few rows."""
