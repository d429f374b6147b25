"""Reads a batch script that starts a training by another launcher, and says it as a job file; pure."""
