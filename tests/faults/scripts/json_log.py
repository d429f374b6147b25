import json
import os
import sys
import time
import traceback

from common import RANK
from group import join, train


def hook(kind, error, trace):
    text = "".join(traceback.format_exception(kind, error, trace))
    print(json.dumps({"event": "uncaught", "level": "critical", "exception": text}), file=sys.stderr, flush=True)


sys.excepthook = hook


def main():
    join()
    train(5)
    sys.excepthook = hook
    if RANK == 2:
        raise ValueError("bad batch 17")
    train()


main()
