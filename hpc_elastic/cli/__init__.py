"""The command line: `main` and one module a verb, imported when it is asked for."""

INTERRUPTED = 130  # what shells expect after Ctrl-C: 128 + SIGINT
