"""What is tried on the login node and on the nodes alike, and the shape of what a node answers."""
