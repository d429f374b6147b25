import sys
import traceback

from common import RANK, wait

if RANK != 1:
    wait()
try:
    int("x")
except ValueError:
    traceback.print_exc()
print("using the default", file=sys.stderr)
sys.exit("no data left in /data")
