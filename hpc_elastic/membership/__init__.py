"""Who is in the world: state machines that take messages and time, and return what to do.

Nothing here reads a clock, a file or a socket. The agent drives these machines with real ones, a
simulation with made-up ones.
"""
