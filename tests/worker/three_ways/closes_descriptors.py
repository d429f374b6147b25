import os
import sys

sys.stdin.close()
os.close(0)
os.close(2)
print(os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY))
raise ValueError("to nobody")
