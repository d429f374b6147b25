"""Copies of training states on other nodes: the keeper process of each node, and the agent's side of it."""
