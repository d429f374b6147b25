"""Job and site become a launch plan: every default and every limit is applied here, once."""
