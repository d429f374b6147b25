from common import RANK, wait
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if RANK == 2:
        raise ValueError("bad batch 17")
    wait()


main()
