"""Slurm: its commands and their answers, what a job of it finds in its environment, and what a node asks it."""
