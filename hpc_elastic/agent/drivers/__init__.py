"""Drivers of the machines of `membership`, with real clocks, connections, disks and workers."""
