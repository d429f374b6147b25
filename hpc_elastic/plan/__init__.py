"""What will happen: the launch plan, and the grammars of its values."""
