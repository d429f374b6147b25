"""The membership of a run's world: state machines that take messages and times, and return actions.

Nothing here reads a clock, a file or a socket. The agent drives these machines with real ones, a
simulation with simulated ones.
"""
