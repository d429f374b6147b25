"""Starts a prepared run as a child and stays with it to its end."""

from __future__ import annotations

import signal
import sys

from hpc_elastic.api.prepare import PreparedRun
from hpc_elastic.api.submission import start_run
from hpc_elastic.cli.attend import attend
from hpc_elastic.cli.foreground import SETTLE_S, ForegroundScheduler, quit_as_interrupt, stop_on_signals
from hpc_elastic.cli.output import open_runs_output
from hpc_elastic.observe.watch import RunWatch, watch
from hpc_elastic.rundir.layout import RunLayout


def run_in_foreground(prepared: PreparedRun, allocation: str | None) -> int:
    """Start the prepared run, wait until it is over, and return its exit code.

    Args:
        prepared: the run.
        allocation: the id of the Slurm job in which this process runs.
    """
    plan = prepared.plan
    layout = RunLayout(plan.run_dir)
    scheduler = ForegroundScheduler(allocation if plan.scheduler == "slurm" else None)
    with quit_as_interrupt():
        is_interrupted = _start(prepared, scheduler)
        print(f"run directory: {layout.root}", file=sys.stderr, flush=True)
        with stop_on_signals(layout, scheduler):
            if is_interrupted:
                signal.raise_signal(signal.SIGINT)
            snapshots = watch(RunWatch(layout, scheduler, settle_s=SETTLE_S))
            name = layout.root if plan.scheduler == "slurm" else None  # its job may have other runs, also later
            code = attend(layout, snapshots, is_followed=True, output=open_runs_output(), run=name)
            scheduler.wait()
            return code


def _start(prepared: PreparedRun, scheduler: ForegroundScheduler) -> bool:
    """Start the script; return whether an interrupt came meanwhile, which is to stop the run that runs now.

    Raises:
        KeyboardInterrupt: the interrupt came before the script was started.
    """
    plan = prepared.plan
    try:
        start_run(
            prepared,
            lambda made: scheduler.submit(plan, made.script),
            is_foreground=plan.scheduler == "slurm",
        )
    except KeyboardInterrupt:
        if not scheduler.has_started:
            raise
        return True
    return False
