"""Hydra's door: `hydra/launcher=hpc_elastic` runs the jobs of a sweep as our runs."""
