"""What an agent knows about its node: its place in the allocation, addresses, cores, GPUs, workers' environment."""
