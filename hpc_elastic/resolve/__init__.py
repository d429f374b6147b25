"""Turns job and site into a launch plan: every default and every limit is applied here, once."""
