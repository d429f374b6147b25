"""The process that kills a node's workers when its agent cannot: itself, and the agent's side of it."""
