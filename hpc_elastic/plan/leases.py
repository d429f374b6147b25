"""The limits of a lease's length; `membership.timing` derives other times from the lease."""

from __future__ import annotations

SHORTEST_LEASE_S = 1.0  # a node waits two thirds of it, and machines pause for tenths of a second
LONGEST_LEASE_S = 600.0  # a node that was cut off works on for two thirds of it while the others wait
