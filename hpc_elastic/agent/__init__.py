"""The agent on every node: drives the membership machines with real clocks, sockets and processes."""
