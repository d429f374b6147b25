"""What the cluster offers: site files, read and found."""
