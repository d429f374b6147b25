"""Connections between agents: their authentication, their messages, and the reasons why one cannot be opened."""
