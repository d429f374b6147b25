"""What an agent reads and writes in the run directory: claims, records, events and metrics."""
