"""Hands a rendered script over, and asks what became of it."""
