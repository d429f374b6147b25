import logging
import os

from common import RANK
from group import join, train

logging.basicConfig(format="%(asctime)s | %(levelname)s | %(message)s", level="INFO")


def main():
    join()
    train(5)
    if RANK == 2:
        raise ValueError("bad batch 17")
    train()


try:
    main()
except BaseException as error:
    logging.critical("training crashed: %s", error)
    os._exit(1)
