"""`xmclab doctor --bench`: whether a card computes what the CPU does, how fast, and how far from its peaks."""
