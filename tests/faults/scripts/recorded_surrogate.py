from common import RANK, wait
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if RANK == 2:
        raise ValueError("bad name \udcff\ud800 of a file")
    wait()


main()
