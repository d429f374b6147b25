"""Runs submitit's worker program with our job environment: `python -m hpc_elastic.integrations.submitit.worker FOLDER`.

submitit finds the environment by the metadata of an installed package, which are missing where this package is only on
`PYTHONPATH`.
"""

from __future__ import annotations

from typing import cast

from submitit.core import job_environment, plugins
from submitit.core.submission import submitit_main

from hpc_elastic.integrations.submitit.environment import HpcElasticJobEnvironment


def main() -> None:
    """Call the function of this job."""
    known = cast("dict[str, job_environment.JobEnvironment]", plugins.get_job_environments())  # submitit's own
    known.setdefault(HpcElasticJobEnvironment.name(), HpcElasticJobEnvironment())
    submitit_main()


if __name__ == "__main__":
    main()
