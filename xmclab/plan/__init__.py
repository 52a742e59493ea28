"""Which queries form a batch, and which labels they are scored against: numpy, pure functions of their keys."""
