"""Discovery of the head: at the start, after a loss, and the report of what went wrong when no head is found."""
