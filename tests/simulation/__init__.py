"""A whole run in one process, without real time: one head, many members, and what can go wrong."""
