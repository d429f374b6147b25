"""Implements torch's RendezvousHandler, which answers torch's agent from what membership has decided."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import MutableMapping

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from hpc_elastic.agent.node.network import resolve_node
from hpc_elastic.agent.system.processes import (
    AGENT_VARIABLE,
    ATTEMPT_VARIABLE,
    NODE_VARIABLE,
    RUN_DIR_VARIABLE,
    agent_id,
)
from hpc_elastic.api.requests import ask_to_stop
from hpc_elastic.errors import AllocationError, ExitCode, HpcElasticError
from hpc_elastic.integrations.torchrun.agent import AgentSetup, TorchrunAgent
from hpc_elastic.integrations.torchrun.attempt_store import AttemptStore, open_attempt_store
from hpc_elastic.integrations.torchrun.exchange import Exchange, Failure, Over, Round, StoppedError, TorchAgentStage
from hpc_elastic.integrations.torchrun.run_directory import enter_run
from hpc_elastic.integrations.torchrun.settings import BACKEND, Settings, build_plan, read_settings, run_name
from hpc_elastic.integrations.torchrun.store_calls import StoreCalls
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.launch_plan import LaunchPlan, NetworkPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import utc_text
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.registry import derive_allocation
from hpc_elastic.shipped import PACKAGE_DIRECTORY

TOLD_WITHIN_S = 120.0  # others may take 30 s to stop their workers, and write the run's result then
CLOSED_WITHIN_S = 30.0

log = logging.getLogger(__name__)


def make_handler(parameters: RendezvousParameters) -> ElasticHandler:
    """Create the handler of this process.

    Raises:
        ValueError: the options do not fit each other, or the Slurm step.
    """
    try:
        place = derive_allocation(os.environ)
    except AllocationError as error:
        raise ValueError(
            f"{error.message}; expected `srun --ntasks-per-node=1 torchrun --rdzv-backend={BACKEND} ...` in a Slurm job"
        ) from None
    return ElasticHandler(parameters, place, environ=os.environ)


class ElasticHandler(RendezvousHandler):  # type: ignore[misc]
    """The handler of one node, which starts our agent with the first rendezvous.

    Args:
        parameters: torchrun's parameters; endpoint and backend do not matter.
        place: this node's place in the step.
        environ: the environment that the workers inherit; the handler adds to it.
    """

    def __init__(
        self, parameters: RendezvousParameters, place: Allocation, *, environ: MutableMapping[str, str]
    ) -> None:
        self._settings = read_settings(
            parameters.config,
            min_nodes=parameters.min_nodes,
            max_nodes=parameters.max_nodes,
            nodes=len(place.nodes),
            address=_address(parameters.local_addr),
        )
        self._place = place
        self._environ = environ
        self._name = run_name(place, environ)
        self._run_id = self._name if _is_made_up(parameters.run_id) else parameters.run_id
        self._exchange = Exchange()
        self._calls = StoreCalls(self._exchange)
        self._agent: TorchrunAgent | None = None
        self._plan: LaunchPlan | None = None
        self._round_rank: int | None = None  # this node's group rank in the latest round of torch's agent
        self._is_closed = False
        if self._settings.max_nodes == 1 and len(place.nodes) > 1:
            log.warning("--nnodes says 1, and the step has %d nodes: all but one only wait", len(place.nodes))
        environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # torch's store looks up the name of every client

    def get_backend(self) -> str:
        """Implement RendezvousHandler: return the backend's name."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return `--rdzv-id`, or without one the name of the run, which has Slurm's job and step.

        Also kills late workers: torch's agent calls this for each worker right before it starts them, and again right
        after that, before it waits.
        """
        self._kill_late_workers()
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """True: the workers use the attempt's own store, whose socket was open before its port was published."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next attempt in which this node takes part.

        Raises:
            RendezvousClosedError: the run is over without success; the message is its cause.
            RendezvousTimeoutError: too few nodes have joined in time.
            RendezvousConnectionError: this node cannot take part.
            SystemExit: the run succeeded without this node. torch has RendezvousGracefulExitError for that, and
                fails when it has caught it (torch 2.13: `result.is_failed()` of None).
        """
        if self._is_closed:
            raise RendezvousClosedError("the rendezvous was closed on this node")
        agent, why = self._agent or self._start(), ""
        while True:
            try:
                current = self._exchange.next_round(why)
                store = open_attempt_store(self._exchange, self._calls, current, finish=self._wait_for_the_others)
                if self._exchange.take(current, may_start=agent.may_start):
                    self._mark_workers(agent, current)
                    return _info(current, store)
            except StoppedError:
                pass
            except (OSError, RuntimeError) as error:
                why = self._give_back(current, error)
            if (over := self._exchange.over) is not None:
                raise _end_of(over) from (None if isinstance(over.error, HpcElasticError) else over.error)

    def num_nodes_waiting(self) -> int:
        """Return 1 if torch's agent has to stop its workers: a node was lost, came or restarts, or the run is over."""
        manner = self._exchange.asked_to_stop()
        if manner is None:
            return int(self._kill_late_workers())
        if manner is StopManner.FENCE and self._agent is not None:
            # torch's agent would give them 30 s. It stops them next without a check before, so no restart is spent.
            self._agent.kill_workers()
        return 1

    def is_closed(self) -> bool:
        """Return whether the run is over, as far as this node knows."""
        return self._is_closed or self._exchange.over is not None

    def set_closed(self) -> None:
        """End the run on all nodes."""
        self._is_closed = True
        if self._plan is not None and self._exchange.over is None:
            ask_to_stop(RunLayout(self._plan.run_dir), f"the rendezvous was closed on {self._place.node}")

    def shutdown(self) -> bool:
        """End this node's part after torch's agent has ended; the exception under way, if any, tells why that was."""
        self._is_closed = True
        agent = self._agent
        if agent is None:
            return True
        if self._exchange.over is None:
            error = sys.exc_info()[1]
            failure = _failure(error, self._round_rank)
            if failure is not None:
                self._exchange.fail(failure)
                self._exchange.wait_until_over(TOLD_WITHIN_S)
            elif self._round_rank is not None and error is None:
                self._exchange.finish()
                self._exchange.wait_until_over()
            self._exchange.leave()
            agent.abandon()
        is_closed = self._calls.close(CLOSED_WITHIN_S)
        return agent.join(CLOSED_WITHIN_S) and is_closed

    # Steps.

    def _kill_late_workers(self) -> bool:
        """Kill workers that run past the deadline, which torch does not check; return whether it has passed.

        Then this process was paused, perhaps just before it started the workers, and the other nodes may have gone on
        without this one. An error before the start would end torch's agent; killing costs one restart at most.
        """
        agent = self._agent
        is_late = agent is not None and self._exchange.stage is TorchAgentStage.AT_WORK and not agent.may_start()
        if agent is not None and is_late:
            agent.kill_workers()
        return is_late

    def _start(self) -> TorchrunAgent:
        place, settings = self._place, self._settings
        try:
            entered = enter_run(
                os.path.abspath(settings.directory),
                self._name,
                node=place.node,
                job_id=place.job_id,
                make_plan=lambda name, run_dir: _plan(settings, place, name, run_dir),
            )
        except HpcElasticError as error:
            raise RendezvousConnectionError(_words(error)) from None
        self._plan = entered.plan
        setup = AgentSetup(plan=entered.plan, place=place, secret=entered.secret, address=settings.address)
        agent = self._agent = TorchrunAgent(setup, self._exchange)
        agent.start()
        return agent

    def _give_back(self, current: Round, error: Exception) -> str:
        """Take a round whose store does not answer, so that asking for the next one requests another attempt."""
        master = current.assign.master
        why = f"no store on {master.address}:{master.port}: {error}"
        log.warning("attempt %s: %s", current.assign.attempt, why)
        self._exchange.take(current)
        return why

    def _wait_for_the_others(self) -> None:
        """Wait at the exit barrier until the run is over.

        Raises:
            RendezvousClosedError: the run did not succeed.
        """
        self._exchange.finish()
        over = self._exchange.wait_until_over()
        if over is not None and (over.exit_code or over.error is not None):
            raise RendezvousClosedError(over.cause)

    def _mark_workers(self, agent: TorchrunAgent, current: Round) -> None:
        """Set the variables that the workers inherit: marks by which the guard finds them, and gloo's interface."""
        self._round_rank = current.assign.group_rank
        self._environ[RUN_DIR_VARIABLE] = agent.marks.run_dir
        self._environ[NODE_VARIABLE] = agent.marks.node
        self._environ[ATTEMPT_VARIABLE] = str(current.assign.attempt)
        self._environ[AGENT_VARIABLE] = agent_id(os.getpid())
        if agent.interface is not None:
            self._environ.setdefault("GLOO_SOCKET_IFNAME", agent.interface)


def _plan(settings: Settings, place: Allocation, name: str, run_dir: str) -> LaunchPlan:
    return build_plan(
        settings,
        place,
        name=name,
        run_dir=run_dir,
        package_dir=PACKAGE_DIRECTORY,
        created=utc_text(time.time()),
        command=sys.argv[1:],
        workdir=os.getcwd(),
        python=sys.executable,
    )


def _info(current: Round, store: AttemptStore) -> RendezvousInfo:
    assign = current.assign
    bootstrap = RendezvousStoreInfo(assign.master.address, assign.master.port)
    return RendezvousInfo(store, assign.group_rank, assign.group_world_size, bootstrap)


def _is_made_up(run_id: str) -> bool:
    """Return whether no id was given: torchrun then says `none`, torch's launcher a random number on each node."""
    return run_id in ("", "none") or (run_id.isdecimal() and int(run_id) > 2**64)


def _address(local_addr: str | None) -> str | None:
    """Resolve `--local-addr` to an address."""
    if not local_addr:
        return None
    lookup = resolve_node(local_addr, NetworkPlan())
    if not lookup.addresses:
        raise ValueError(f"--local-addr: {local_addr} is no address, and no name that means one: {lookup.error}")
    return lookup.addresses[0]


def _end_of(over: Over) -> BaseException:
    """Return the exception that `next_rendezvous` raises when the run is over."""
    if over.error is None and over.exit_code == ExitCode.SUCCESS:
        log.info("the run was a success without this node: %s", over.cause)
        return SystemExit(0)
    words = _words(over.error) if isinstance(over.error, HpcElasticError) else over.cause
    if over.exit_code == ExitCode.NODES_MISSING or _exit_code(over.error) == ExitCode.NODES_MISSING:
        error: BaseException = RendezvousTimeoutError(words)
    else:
        error = RendezvousClosedError(words) if over.error is None else RendezvousConnectionError(words)
    return error


def _exit_code(error: BaseException | None) -> int | None:
    return int(error.exit_code) if isinstance(error, HpcElasticError) else None


def _words(error: HpcElasticError) -> str:
    return f"{error.message}; {error.tip}" if error.tip else error.message


def _failure(error: BaseException | None, rank: int | None) -> Failure | None:
    """Return the failure with which torch's agent has ended, None if none that ends the run."""
    if isinstance(error, ChildFailedError):
        global_rank, failed = error.get_first_failure()
        data = failed.error_file_data
        is_recorded = isinstance(data, dict) and isinstance(data.get("message"), dict)
        return Failure(
            rank=global_rank,
            local_rank=failed.local_rank,
            pid=failed.pid,
            exitcode=failed.exitcode,
            error=data if is_recorded else None,
        )
    if isinstance(error, Exception) and rank is not None:
        return Failure(rank=rank, local_rank=0, pid=0, exitcode=1, message=f"{type(error).__name__}: {error}")
    return None
