import sys


def look():
    value = 3
    breakpoint()
    return value


if sys.argv[1:]:
    sys.stdin.close()
print("before")
look()
