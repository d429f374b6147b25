import os
import sys

os.environ["ADDED"] = "1"
print("flushed before", flush=True)
os.execv(sys.executable, [sys.executable, "executed.py", "a b", "c"])
