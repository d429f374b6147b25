"""What an agent knows of its node: its place in the allocation, addresses, cores, GPUs, its workers' environment."""
