"""Connections between agents: who may open one, what it carries, and why one cannot be had."""
