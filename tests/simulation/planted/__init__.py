"""Machines with a bug each, by matter: what the simulation must find, or it could not find anything."""
