import atexit


def close():
    raise RuntimeError("cannot close it")


atexit.register(close)
