"""Shows people the state of runs: read from the run directory first, from the scheduler second."""
