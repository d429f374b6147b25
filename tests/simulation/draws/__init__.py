"""What is drawn: for each kind of schedule a function from a seed to a scenario."""
