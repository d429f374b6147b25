"""The guard, a process that kills a node's workers when the node's agent cannot, and the agent's side of it."""
