import sys

if sys.version_info < (3, 11):
    raise Exception("no groups")


def fail(number):
    try:
        raise ValueError(number)
    except ValueError as error:
        return error


raise ExceptionGroup("several", [fail(1), ExceptionGroup("inner", [fail(2), TypeError("never raised")])])
