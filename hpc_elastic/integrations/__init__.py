"""Adapters to other packages' interfaces: submitit's executor, torchrun's rendezvous backend."""
