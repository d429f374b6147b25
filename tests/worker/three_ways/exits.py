import sys


class Unprintable:
    def __str__(self):
        raise ValueError("no text")


class Leave(SystemExit):
    code = 5


print("before")
if sys.argv[1] == "class":
    raise Leave(6)
if sys.argv[1] == "bare":
    raise SystemExit
sys.exit(eval(sys.argv[1]))
