"""Adapters to the interfaces of other packages: submitit's executor and torchrun's rendezvous backend."""
