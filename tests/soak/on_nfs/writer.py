"""Appends lines to a file, or claims names in a folder, at the same time as other machines do; says how many it got."""

from __future__ import annotations

import os
import sys
import time

from hpc_elastic.rundir.shared_lines import append_shared_line
from hpc_elastic.rundir.store import claim

CLAIMS_EVERY_S = 0.15


def main() -> None:
    kind, path, who, count, begins_at = sys.argv[1:]
    time.sleep(max(0.0, float(begins_at) - time.time()))
    won = 0
    for number in range(int(count)):
        record = {"who": who, "number": number, "filler": "x" * 80}
        if kind == "lines":
            append_shared_line(path, record)
        else:
            time.sleep(max(0.0, float(begins_at) + number * CLAIMS_EVERY_S - time.time()))
            won += claim(os.path.join(path, f"{number:04}.json"), record)
    print(won)


if __name__ == "__main__":
    main()
