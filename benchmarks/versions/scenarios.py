"""The scenarios of `slurm_versions`: each does what a user or a cluster does, and holds what we promise against it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from benchmarks.versions.turn import LEFT, NODES, PATIENCE_S, Turn, ended, promise, returns, written
from tests.integration import arrays

SCANCEL_BOUND_S = 5.0

# The rows of the table: what is tried, and what its seconds are.
ROWS = {
    "submit_wait": ("`submit --wait`", "from `result.json` to its return"),
    "submit_wait_failure": ("`submit --wait`, the workers fail", "from `result.json` to its return"),
    "submit_follow": ("`submit --follow`", "from `result.json` to its return"),
    "logs_follow": ("`logs --follow`", "from `result.json` to its return"),
    "status": ("`status` of a running run", "the command"),
    "list": ("`list`", "the command"),
    "cancel": ("`cancel`", "from the command to `result.json`"),
    "array": ("an array of four runs, `submit --wait`", "from the last `result.json` to its return"),
    "cancel_array": ("`cancel` of an array, half of it waits", "the command"),
    "scancel_pending": ("`scancel` of a pending job", "from `scancel` to the result that `status` makes"),
    "scancel": ("`scancel`", f"to `result.json`, {SCANCEL_BOUND_S:g} at most"),
    "requeue": ("`scontrol requeue`", "to the first step of all ranks in the next allocation"),
    "node_cut": ("node cut off", "to the next step of all ranks that are left"),
    "batch_host_off": ("batch host off", "to the next step of all ranks that are left"),
}


def watch(turn: Turn) -> None:
    """A run that succeeds, watched in five ways."""
    with turn.promising("submit_follow", "status", "list", "logs_follow"):
        run, following = turn.start_watched("--follow")
        with turn.promising("status"):
            began = time.time()
            shown = turn.door.run("status", run.job_id).stdout
            turn.took("status", began)
            promise("RUNNING" in shown, f"status says RUNNING, found\n{shown}")
            told = json.loads(turn.door.run("status", "--json", run.job_id).stdout)
            found = (told["state"], told["job_state"], told["exit_code"])
            promise(found == ("RUNNING", "RUNNING", None), f"status --json says RUNNING, found {told}")
        with turn.promising("list"):
            began = time.time()
            shown = turn.door.run("list").stdout
            turn.took("list", began)
            promise("RUNNING" in shown and run.job_id in shown, f"list has the run as RUNNING, found\n{shown}")
        logs = turn.begin("logs", run.job_id, "--follow")
        turn.stop()
        followed, logged = returns(following, logs)
        turn.took("submit_follow", written(run), followed)
        turn.took("logs_follow", written(run), logged)
        with turn.promising("submit_follow"):
            output = ended(following, 0)
            promise("step of rank 0" in output and "rank 0 is done" in output, f"rank 0's lines, found\n{output}")
        with turn.promising("logs_follow"):
            output = ended(logs, 0)
            promise("step of rank 0" in output and "rank 0 is done" in output, f"rank 0's lines, found\n{output}")
        turn.finish(run)
        turn.wait_for_job(run, "COMPLETED")
        shown = turn.door.run("status", run.job_id).stdout
        promise("SUCCEEDED" in shown, f"status says SUCCEEDED, found\n{shown}")


def submit_wait(turn: Turn) -> None:
    with turn.promising("submit_wait"):
        run, waiting = turn.start_watched("--wait")
        turn.stop()
        ended(waiting, 0)
        turn.took("submit_wait", written(run))
        turn.finish(run)
        turn.wait_for_job(run, "COMPLETED")


def submit_wait_of_a_failure(turn: Turn) -> None:
    with turn.promising(row := "submit_wait_failure"):
        run, waiting = turn.start_watched("--wait")
        turn.stop(3)
        ended(waiting, 1)
        turn.took(row, written(run))
        turn.finish(run, "FAILED", 1)
        turn.wait_for_job(run, "FAILED")
        promise(turn.slurm.job(run.job_id)["ExitCode"] == "1:0", "the job's own exit code is the run's")
        shown = turn.door.run("status", run.job_id).stdout
        promise("FAILED" in shown and "exit code 1" in shown, f"status says FAILED, exit code 1, found\n{shown}")


def cancel(turn: Turn) -> None:
    with turn.promising("cancel"):
        run = turn.start()
        began = time.time()
        turn.door.run("cancel", run.job_id)
        turn.took("cancel", began, written(run))
        turn.finish(run, "CANCELLED", 10)
        turn.slurm.wait_for_job(run.job_id, "CANCELLED", "FAILED", "COMPLETED")


def array(turn: Turn) -> None:
    with turn.promising("array"):
        arrays.write_job(turn.door, "generic-slurm")
        done = arrays.submit(turn.door, "--wait", exit_code=1)
        turn.took("array", max(map(written, done.runs)))
        done.assert_over(("SUCCEEDED", 0), ("SUCCEEDED", 0), ("FAILED", 1), ("SUCCEEDED", 0))
        told = arrays.status(turn.door, done.job_id)
        found = (told["states"], told["exit_code"])
        promise(found == ({"SUCCEEDED": 3, "FAILED": 1}, 1), f"status has 3 SUCCEEDED and 1 FAILED, found {found}")


def cancel_array(turn: Turn) -> None:
    with turn.promising("cancel_array"):
        arrays.write_job(turn.door, "generic-slurm", waits=True)
        running = arrays.submit(turn.door, "--array-limit", "2")
        running.wait_for_waiting(0, 1)
        arrays.wait_for_states(turn.door, running, RUNNING=2, PENDING=2)
        began = time.time()
        shown = turn.door.run("cancel", running.job_id).stdout
        turn.took("cancel_array", began)
        promise("4 CANCELLED" in shown, f"cancel says 4 CANCELLED, found\n{shown}")
        running.assert_over(*[("CANCELLED", 10)] * 4)


def scancel_pending(turn: Turn) -> None:
    with turn.promising(row := "scancel_pending"):
        turn.write_job("sbatch: {hold: true}")
        run = turn.door.submit("job.yaml")
        began = time.time()
        turn.slurm.run("scancel", run.job_id)
        shown = turn.door.run("status", run.job_id).stdout
        turn.took(row, began)
        promise("CANCELLED" in shown, f"status says CANCELLED, found\n{shown}")
        turn.finish(run, "CANCELLED", 10)


def scancel(turn: Turn) -> None:
    with turn.promising("scancel"):
        run = turn.start()
        began = time.time()
        turn.slurm.run("scancel", run.job_id)
        turn.finish(run, "CANCELLED", 10)
        turn.took("scancel", began, written(run))
        within = turn.seconds["scancel"] <= SCANCEL_BOUND_S
        promise(within, f"a result within {SCANCEL_BOUND_S:g} s, found {turn.seconds['scancel']:.2f} s")
        turn.wait_for_job(run, "CANCELLED")
        shown = turn.door.run("status", run.job_id).stdout
        promise("CANCELLED" in shown, f"status says CANCELLED, found\n{shown}")


def requeue(turn: Turn) -> None:
    with turn.promising("requeue"):
        run, waiting = turn.start_watched("--wait")
        began = time.time()
        turn.slurm.run("scontrol", "requeue", run.job_id)
        turn.took("requeue", began, turn.wait_for_steps(run, 2, NODES))
        promise(not run.is_over(), f"a requeued run is not over\n{run.story()}")
        second = run.read(run.layout.allocation(2))
        found = (second["job_id"], second["restart_count"])
        promise(found == (run.job_id, 1), f"the second allocation is the first restart of the same job, found {found}")
        shown = turn.door.run("status", run.job_id).stdout
        promise("RUNNING" in shown, f"status says RUNNING, found\n{shown}")
        turn.stop()
        ended(waiting, 0)
        result = turn.finish(run)
        promise(result["restarts"] == 0, f"a requeue spends no restart, found {result['restarts']}")
        turn.wait_for_job(run, "COMPLETED")


def cut(turn: Turn) -> None:
    with turn.promising("node_cut"):
        run, waiting = turn.start_watched("--wait")
        run.wait_until_started()
        began = time.time()
        turn.slurm.cut("node3")
        turn.took("node_cut", began, turn.wait_for_steps(run, 2, LEFT))
        turn.stop()
        ended(waiting, 0)
        turn.slurm.heal("node3")
        result = turn.finish(run)
        promise(result["restarts"] == 0, f"a lost node spends no restart, found {result['restarts']}")
        turn.wait_for_job(run, "COMPLETED")


def batch_host_off(turn: Turn) -> None:
    """Slurm's own word of the job is CANCELLED then; ours is right all the same."""
    with turn.promising("batch_host_off"):
        run, waiting = turn.start_watched("--wait")
        run.wait_until_started()
        began = time.time()
        turn.slurm.kill("node1")
        turn.took("batch_host_off", began, turn.wait_for_steps(run, 2, LEFT))
        turn.stop()
        ended(waiting, 0)
        turn.finish(run)
        shown = turn.door.run("status", run.job_id).stdout
        promise("SUCCEEDED" in shown, f"status says SUCCEEDED, found\n{shown}")
        turn.slurm.boot("node1")
        turn.slurm.wait_for_job(run.job_id, "CANCELLED", "COMPLETED", "NODE_FAIL", within_s=PATIENCE_S)
        shown = turn.door.run("status", run.job_id).stdout
        promise("SUCCEEDED" in shown, f"status still says SUCCEEDED, found\n{shown}")


Scenario = Callable[[Turn], None]
SCENARIOS: tuple[Scenario, ...] = (
    submit_wait,
    submit_wait_of_a_failure,
    watch,
    cancel,
    array,
    cancel_array,
    scancel_pending,
    scancel,
    requeue,
    cut,
    batch_host_off,
)
