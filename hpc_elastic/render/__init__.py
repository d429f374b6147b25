"""The plan as a script that a person can read, edit and submit."""
