import sys
import traceback

from common import RANK, wait


def run(main):
    try:
        main()
    except Exception:
        print("Error executing job with overrides: ['model=large']", file=sys.stderr)
        traceback.print_exc()
        print("\nSet the environment variable FULL_ERROR=1 for a complete stack trace.", file=sys.stderr)
        sys.exit(1)


def main():
    if RANK == 2:
        raise ValueError("bad batch 17")
    wait()


run(main)
