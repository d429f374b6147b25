"""How long a lease may be; `membership.timing` says what is made of one."""

from __future__ import annotations

SHORTEST_LEASE_S = 1.0  # two thirds of it are a node's patience, and machines stand still for tenths of a second
LONGEST_LEASE_S = 600.0  # a node that was cut off works on for two thirds of it, while the others wait
