"""The training loop and its step. No display and no folders: those are in runs."""
