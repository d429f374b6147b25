"""What will happen: the launch plan, and how it is decided."""
