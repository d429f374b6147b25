"""What the user asked for: job.yaml, read and checked."""
