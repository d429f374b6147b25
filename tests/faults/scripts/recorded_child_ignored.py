import os
import subprocess
import sys

CHILD = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("of the child")
main()
"""
if os.environ["RANK"] == "1":
    subprocess.run([sys.executable, "-c", CHILD], check=False)
