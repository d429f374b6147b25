"""Submits a rendered script to a scheduler, and asks for the state of its job."""
