import subprocess
import sys

from common import RANK, wait

CHILD = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("of the child")
main()
"""
if RANK == 1:
    subprocess.run([sys.executable, "-c", CHILD], check=False)
    raise RuntimeError("no data")
wait()
