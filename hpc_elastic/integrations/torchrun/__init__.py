"""torchrun's rendezvous backend `hpc-elastic`: membership of this package, workers and restarts of torchrun."""
