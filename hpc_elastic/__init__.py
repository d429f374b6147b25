"""Run PyTorch on Slurm so that it survives what clusters do."""

__version__ = "0.1.0"
