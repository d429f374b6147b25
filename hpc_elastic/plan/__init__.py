"""The launch plan of a run, and the grammars of its values."""
