"""Decides restarts for a run of torchruns: every restart that a torchrun asks for is granted, as it has the budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpc_elastic.agent.policy import Policy
from hpc_elastic.errors import ExitCode
from hpc_elastic.failures.describe import describe_failure
from hpc_elastic.membership.decisions import Decision, Finish, History, Observation, RestartWorkers, Trigger
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.launch_plan import RestartPlan
from hpc_elastic.rundir.records import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunPolicy:
    """The agents' own policy, except for the failures of workers.

    A torchrun with restarts left asks for another rendezvous when a worker fails. One that has none left reports the
    failure, and that ends the run on all nodes, as closing the rendezvous does in torch.
    """

    restart: RestartPlan

    def decide(self, history: History, observation: Observation, now: float) -> Decision:
        """Implement decisions.Decide."""
        failure = observation.failure
        is_start = failure is not None and failure.failure_class == "start_failed"
        if observation.trigger is Trigger.WORKER_FAILED and failure is not None and not is_start:
            return Finish(
                state=RunState.FAILED,
                exit_code=ExitCode.WORKERS_FAILED,
                manner=StopManner.RESTART,
                reason="restarts_used_up",
                cause=f"{observation.detail or describe_failure(failure)}; its torchrun has no restart left",
            )
        if observation.trigger is Trigger.NODE_BROKEN:
            spend = replace(history.spend, restarts=history.spend.restarts + 1)
            return RestartWorkers(
                roles=None,
                at=now,
                manner=StopManner.RESTART,
                reason=f"{', '.join(observation.nodes)}: {observation.detail}",
                history=replace(history, spend=spend),
            )
        return Policy(restart=self.restart).decide(history, observation, now)
