"""The worker processes of a node: how they are started, watched and stopped, and what they write."""
