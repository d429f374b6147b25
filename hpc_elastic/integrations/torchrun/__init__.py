"""The rendezvous backend `hpc-elastic` of torchrun: this package decides membership, torchrun runs the workers."""
