"""What happened, for people: read from the run directory first, from the scheduler second."""
