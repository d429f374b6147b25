"""This machine as a scheduler: its jobs are processes, and its nodes loopback addresses."""
