"""`python -m hpc_elastic`."""

from __future__ import annotations

from hpc_elastic.cli.main import run

if __name__ == "__main__":
    run()
