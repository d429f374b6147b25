"""Forks, and both go on to the end."""

import atexit
import os

atexit.register(lambda: print("atexit of", name))
print("not flushed before the fork")
name = "parent"
if (child := os.fork()) == 0:
    name = "child"
    print("child", os.getsid(0) == os.getppid())
else:
    _, status = os.waitpid(child, 0)
    print("parent", os.waitstatus_to_exitcode(status))
