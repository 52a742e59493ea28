"""The label pool of a batch: pure functions on the host."""
