"""xmclab plugin."""
