"""The health checks of a node: whether workers should run on it at all."""
