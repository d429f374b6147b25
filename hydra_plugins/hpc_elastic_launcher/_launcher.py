"""The launcher: each job of a sweep is a task of an array, and starts again when it fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
from submitit.core.core import Job
from submitit.core.utils import UncompletedJobError

from hpc_elastic.integrations.submitit import HpcElasticExecutor

log = logging.getLogger(__name__)


class HpcElasticLauncher(BaseSubmititLauncher):
    """Hydra's submitit launcher with our executor."""

    _EXECUTOR = HpcElasticExecutor.name()

    def __call__(self, *arguments: Any, **named: Any) -> JobReturn:
        """Run one job on a node; let an exception of the task through to our agents, which start it again."""
        returned: JobReturn = super().__call__(*arguments, **named)
        if returned.status is JobStatus.FAILED:
            raise returned._return_value
        return returned

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit the jobs as one array and wait for all.

        Returns:
            What each one returned; the error, as a job that failed, for one whose run did not succeed.
        """
        settings = dict(self.params)
        executor = HpcElasticExecutor(settings.pop("submitit_folder"), max_num_timeout=settings.pop("max_num_timeout"))
        executor.update_parameters(**settings)
        self._make_sweep_directory()
        jobs = executor.map_array(self, *zip(*self._calls(job_overrides, initial_job_idx), strict=True))
        log.info("job %s, which `hpc-elastic list` shows", jobs[0].job_id.partition("_")[0])
        return [_returned(job, overrides) for job, overrides in zip(jobs, job_overrides, strict=True)]

    def _make_sweep_directory(self) -> None:
        sweep = self.config.hydra.sweep
        folder = Path(str(sweep.dir))
        folder.mkdir(parents=True, exist_ok=True)
        if "mode" in sweep:
            os.chmod(folder, int(str(sweep.mode), 8))

    def _calls(self, job_overrides: Sequence[Sequence[str]], first: int) -> list[tuple[Any, ...]]:
        """Return the arguments of each job's call."""
        calls = []
        for number, overrides in enumerate(job_overrides, first):
            log.info("\t#%d : %s", number, " ".join(filter_overrides(overrides)))
            state = Singleton.get_state()
            calls.append((list(overrides), "hydra.sweep.dir", number, f"job_id_for_{number}", state))
        return calls


def _returned(job: Job[Any], overrides: Sequence[str]) -> JobReturn:
    try:
        returned: JobReturn = job.results()[0]
    except UncompletedJobError as error:
        returned = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
        returned.return_value = error
    return returned
