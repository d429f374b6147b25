"""Random faults in real runs on this machine: `python -m tests.soak`; see `campaign` for what is checked."""
