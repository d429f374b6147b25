import sys

print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.orig_argv[1:], sys.path, __cached__)
if __name__ == "__main__" and len(sys.argv) > 1:
    from .child import run

    run(sys.argv[1])
    raise ValueError("in a module")
