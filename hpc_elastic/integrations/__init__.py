"""Other people's doors: what speaks to packages that the rest of this one does without."""
