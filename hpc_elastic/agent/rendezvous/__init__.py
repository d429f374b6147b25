"""How an agent finds its head: at the start, after a loss, and what it tells when it cannot."""
