"""The shipped code, edited in one place at a time: which edits there are, how one is loaded, and where it shows."""
