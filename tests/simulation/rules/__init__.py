"""What must hold of a simulated run: a module for each matter, with what it has to see of the run."""
