"""A real multi-node Slurm on one machine, made of namespaces, that leaves nothing behind."""
