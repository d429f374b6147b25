import argparse

from common import RANK, wait

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=RANK == 2)
parser.parse_args()
wait()
