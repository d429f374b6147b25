import os
import sys

if (child := os.fork()) == 0:
    raise ValueError("in a forked child")
print(os.waitpid(child, 0)[1], flush=True)
if (child := os.fork()) == 0:
    sys.exit("text of a child")
print(os.waitpid(child, 0)[1], flush=True)
if (child := os.fork()) == 0:
    os._exit(5)
print(os.waitpid(child, 0)[1])
