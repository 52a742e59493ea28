"""Training: the loop, one step of it, and what a run leaves behind."""
