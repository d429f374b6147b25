"""The report of a run: one page that opens without a network."""
