"""Presents a worker's job, ranks and files to submitit, from the variables that our agents set."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

from submitit import helpers
from submitit.core import job_environment, utils
from submitit.core.logger import get_logger

from hpc_elastic.errors import SchedulerError
from hpc_elastic.integrations.submitit.paths import RunPaths
from hpc_elastic.integrations.submitit.preemption import JobStart, listen
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout

# Variables that the executor sets for the workers, beside submitit's own SUBMITIT_EXECUTOR.
PICKLE_VARIABLE = "SUBMITIT_HPCELASTIC_PICKLE"
PYTHON_VARIABLE = "SUBMITIT_HPCELASTIC_PYTHON"  # the version of the one that submitted
MERGE_VARIABLE = "SUBMITIT_STDERR_TO_STDOUT"  # of submitit's local executor, with the same meaning
# Exit code of a worker that wants a restart where no scheduler requeues jobs, as under submitit's local executor.
START_AGAIN = 144


class HpcElasticJobEnvironment(job_environment.JobEnvironment):
    """The environment of one worker, in the attempt that it was started in."""

    _env = {  # noqa: RUF012 - submitit's own form
        "job_id": "SLURM_JOB_ID",
        "num_tasks": "WORLD_SIZE",
        "num_nodes": "GROUP_WORLD_SIZE",
        "node": "GROUP_RANK",
        "global_rank": "RANK",
        "local_rank": "LOCAL_RANK",
        "array_job_id": "SLURM_ARRAY_JOB_ID",
        "array_task_id": "SLURM_ARRAY_TASK_ID",
    }

    @property
    def layout(self) -> RunLayout:
        """The layout of the run directory."""
        return RunLayout(os.environ["HPC_ELASTIC_RUN_DIR"])

    @property
    def attempt(self) -> int:
        """The attempt that this worker was started in."""
        return int(os.environ["HPC_ELASTIC_ATTEMPT"])

    @property
    def raw_job_id(self) -> str:
        """Slurm's id of the job, or that of the local backend."""
        return os.environ.get(self._env["job_id"]) or str(self.allocation.get("job_id", ""))

    @property
    def is_local(self) -> bool:
        """Whether the run is on the local backend, where no scheduler requeues a job."""
        return self._env["job_id"] not in os.environ

    @property
    def allocation(self) -> dict[str, Any]:
        """The record of the latest start by the scheduler, as JSON."""
        layout = self.layout
        numbers = store.list_numbers(layout.allocations)
        return (store.read_json(layout.allocation(numbers[-1])) if numbers else None) or {}

    @property
    def hostnames(self) -> Sequence[str]:
        """The names of the world's nodes, by group rank."""
        world = store.read_json(self.layout.world(self.attempt)) or {}
        return [str(node["node"]) for node in world.get("nodes", ())] or [self.hostname]

    @property
    def paths(self) -> RunPaths:
        """This worker's files; each attempt has its own, so that a half written file does not harm the next attempt."""
        return RunPaths(
            os.environ["SUBMITIT_FOLDER"],
            self.job_id,
            self.global_rank,
            layout=self.layout,
            attempt=self.attempt,
            pickle=os.environ[PICKLE_VARIABLE],
        )

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        """Prepare the process for the function; submitit calls this once, right before the function."""
        if os.environ.get(MERGE_VARIABLE):
            os.dup2(1, 2)
        os.makedirs(os.path.dirname(paths.result_pickle), mode=store.DIRECTORY_MODE, exist_ok=True)
        _let_export_agree()
        allocation = self.allocation
        start = JobStart(
            layout=self.layout,
            job_id=self.job_id,  # for an array task the raw id may be that of the whole array
            restart_count=int(allocation.get("restart_count", 0)),
            time=allocation.get("time"),
            is_local=self.is_local,
        )
        listen(self, start, paths, submission)

    def _requeue(self, countdown: int) -> None:
        """Have the job started again by Slurm, or on the local backend the workers by our agents.

        Raises:
            UncompletedJobError: Slurm refused.
        """
        if self.is_local:
            get_logger().info(f"The workers of job {self.job_id} start again ({countdown} remaining timeouts)")
            sys.stdout.flush()
            os._exit(START_AGAIN)  # as an exception it would go through the function's own handlers
        from hpc_elastic.scheduler.questions import requeue_job

        try:
            requeue_job(self.job_id)
        except SchedulerError as error:
            raise utils.UncompletedJobError(f"Job not requeued because: {error.message}.") from error
        get_logger().info(f"Requeued job {self.job_id} ({countdown} remaining timeouts)")


def _let_export_agree() -> None:
    """Let TorchDistributedEnvironment.export overwrite the world's variables, which our agents have set already.

    submitit (1.5.4) refuses unless they are absent or it may overwrite them, and takes a host name for the
    master's address.
    """
    original = helpers.TorchDistributedEnvironment.export

    @functools.wraps(original)
    def export(
        self: helpers.TorchDistributedEnvironment, set_cuda_visible_devices: bool = True, overwrite: bool = True
    ) -> helpers.TorchDistributedEnvironment:
        del overwrite
        self.master_addr = os.environ["MASTER_ADDR"]
        return original(self, set_cuda_visible_devices, overwrite=True)

    helpers.TorchDistributedEnvironment.export = export  # type: ignore[method-assign]
