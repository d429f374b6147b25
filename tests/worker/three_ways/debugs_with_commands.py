import io
import pdb
import sys


def look(value):
    return value + 1


sys.stdin = io.StringIO("args\nstep\nstep\np value\np __name__\ncontinue\n")
pdb.Pdb(nosigint=True, readrc=False).set_trace()
print(look(3))
