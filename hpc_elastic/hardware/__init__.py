"""What a node has (cores, NUMA nodes, caches, accelerators), what a process may see of it, and who is to run where."""
