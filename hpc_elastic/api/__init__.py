"""The Python API: what a program can do with jobs and runs; the command line goes through it as well."""
