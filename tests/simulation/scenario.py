"""What a simulated run is like, as one value: its roles, its machines, and what goes wrong when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hpc_elastic.membership.timing import AGENT, Profile
from hpc_elastic.plan.roles import EntrypointPlan, NodesPlan, RestartPolicy, RolePlan, place_roles

GRACE_S, RESTART_GRACE_S = 20.0, 5.0
LONGEST_PAUSE_S = 60.0  # before a restart
PHASES = ("gathering", "claiming", "running", "stopping", "pausing", "awaiting_quorum", "closing")

JOINS = ("never_starts", "starts_late", "unfit", "other_version")  # from the start
HEALTH = "unhealthy"  # the node's checks would find it, if they ran from `at` on, for `lasts_s`
POINT = "point"  # as a fault's phase: just before the event which is the nth decision point of the run (`points`)
HEAD, SECOND = -1, -2  # as a fault's node: the head at that moment, and the first one that may succeed it


@dataclass(frozen=True, kw_only=True)
class Role:
    """Workers of one kind. Chances are a worker's, or for `start_failure_chance` a node's, in each attempt."""

    name: str
    restart: RestartPolicy
    nodes_min: int
    nodes_max: int
    workers: tuple[int, ...]
    work_s: float
    failure_chance: float = 0.0
    hang_chance: float = 0.0
    start_failure_chance: float = 0.0
    patience_s: float = 0.0  # how long a worker goes on after a TERM, at most

    def plan(self) -> RolePlan:
        """As the launch plan says it."""
        return RolePlan(
            name=self.name,
            entrypoint=EntrypointPlan(kind="script", target="train.py"),
            nodes=NodesPlan(min=self.nodes_min, max=self.nodes_max),
            workers_per_node=self.workers,
            restart=self.restart,
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something goes wrong at second `at`; with a `phase`, that long after a head entered it for the nth time.

    `side`: the nodes that are cut off together; `way`: both, out (nothing of theirs gets away) or in.
    """

    what: str
    node: int = 0
    side: tuple[int, ...] = ()
    way: str = "both"
    at: float = 0.0
    phase: str = ""
    nth: int = 1
    lasts_s: float = 0.0
    point: int = 0  # of a freeze: where in the code, so many points from now
    is_old: bool = False  # it strikes the node's agent of the job's start before


TELL_OF_AN_END = ("notice", "stop", "ask_stop", "requeue", "term", "term_all")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One schedule: nothing else decides what happens in a run, but for bugs."""

    seed: int
    roles: tuple[Role, ...]
    nodes: int
    max_restarts: int = 3
    no_progress_limit: int = 3
    progress: str = "unknown"  # unknown, moves, stuck
    steps: str = "none"  # that heartbeats name: none, moves (further in each attempt), stuck, gaps (some attempts none)
    backoff_first_s: float = 0.0
    backoff_factor: float = 2.0
    exit_timeout_s: float | None = None
    after_exit_timeout: Literal["fail", "succeed"] = "fail"
    lease_s: float = 10.0
    join_timeout_s: float = 60.0
    delays_s: tuple[float, ...] = (0.001,)  # of a message
    disk_s: tuple[float, ...] = (0.01,)  # of an operation on the run directory
    spawn_s: tuple[float, ...] = (0.02,)  # of starting a node's workers
    collateral_chance: float = 0.0  # that a worker fails because one of its role did
    rejoin: str = "at_restart"  # or immediately
    max_node_losses: int = 64
    join_retries: int = 2
    save_s: float = 0.0  # how long each worker saves, every now and then; 0: it never does
    stale_s: float = 0.0  # how long a node's kernel remembers a directory
    profile: Profile = AGENT
    is_requeued: bool | None = False  # whether the scheduler starts the job again after a TERM; None: it does not say
    keeps_every_s: float | None = None  # how often the ranks save their states in memory; None: never
    are_replicated: bool = False  # these states
    damage_chance: float = 0.0  # that a state is damaged after it was saved
    room: int = 4  # slots that a rank has memory for
    write_s: float = 0.0  # how long it takes to write a state of a rank to disk while ranks go on
    copy_s: float | None = None  # how long it takes to copy a node's states to another node; None: nobody does
    time_left_s: float | None = None  # until the scheduler ends the job; None: no scheduler is played
    knows_time: bool = False  # whether the script was told that, and tells the agents
    plans_time: bool = False  # whether the plan says it, for agents that nobody else tells
    is_scheduler_silent: bool = False  # from the start, to all that it is asked
    lead_s: float = 0.0  # of the notice
    grace_s: float = GRACE_S  # between the TERM and the KILL of a stop
    answers_s: tuple[float, ...] = (0.01,)  # how long the scheduler takes to say what it says of the job
    heeds_notice: bool = False  # whether ranks save and exit 75 when they hear of a notice
    requeue_max: int = 0
    requeue_on: tuple[str, ...] = ()
    is_local: bool = False  # on one machine without a scheduler, where a person ends it
    is_large: bool = False  # and one thing happens, of which `large` says what it may cost
    is_search: bool = False  # and one node is cut off from the start, which is all that happens
    is_refused_disk: bool = False  # and one agent's disk refuses, which is all that goes wrong but for one worker
    is_term: bool = False  # and a TERM ends the allocation, of which `terms` says what it must be taken for
    is_goodbye: bool = False  # and one member grows deaf, which is all that happens
    is_quorum: bool = False  # and one node that is needed is cut off for a while, which is all that happens
    is_busy: bool = False  # and the disks are, when one worker fails, which is all that happens
    is_foretold: bool = False  # whether `foretold` can say all that comes
    srun_tells: bool = False  # of the nodes that start no agent, in the script's output
    is_resumed: bool = False  # whether later starts are other jobs, which a person has submitted
    faults: tuple[Fault, ...] = ()

    def pause_s(self, restarts: int) -> float:
        """The pause before the next restart, but for the quarter more or less; no number is as large as huge powers."""
        power = self.backoff_factor**restarts if restarts < 2 or self.backoff_factor < 10 else float("inf")
        return min(LONGEST_PAUSE_S, self.backoff_first_s * power) if self.backoff_first_s else 0.0

    @property
    def may_give_notice(self) -> bool:
        """Whether ranks may hear of a notice, by a person, by one who stops the run, or before a time limit."""
        return self.time_left_s is not None or any(fault.what in TELL_OF_AN_END for fault in self.faults)

    @property
    def known_to_be_without_agent(self) -> frozenset[str]:
        """The nodes of which srun tells that they start no agent."""
        never = (fault.node for fault in self.faults if fault.what == "never_starts")
        return frozenset(self.names[node] for node in never) if self.srun_tells else frozenset()

    @property
    def min_nodes(self) -> int:
        return sum(role.nodes_min for role in self.roles)

    @property
    def role_nodes(self) -> dict[str, int]:
        """How many nodes each role needs."""
        return {role.name: role.nodes_min for role in self.roles}

    @property
    def max_nodes(self) -> int:
        return sum(role.nodes_max for role in self.roles)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(self.nodes))

    def role(self, name: str) -> Role:
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)

    def placed(self) -> list[tuple[str, int]]:
        """Role and number of workers of each node."""
        plans = place_roles([role.plan() for role in self.roles], self.nodes)
        return [(plan.name, plan.workers_at(number - plans.index(plan))) for number, plan in enumerate(plans)]

    def without(self, fault: Fault) -> Scenario:
        faults = list(self.faults)
        faults.remove(fault)
        return replace(self, faults=tuple(faults))

    def describe(self) -> str:
        """For people, a line for each part."""
        lines = [f"seed {self.seed}: {self.nodes} nodes, {self.min_nodes} to {self.max_nodes} in the world"]
        lines += [f"  {role}" for role in self.roles]
        names = [name for name in self.__dataclass_fields__ if name not in ("seed", "roles", "nodes", "faults")]
        lines.append("  " + ", ".join(f"{name}={getattr(self, name)!r}" for name in names))
        lines += [f"  {fault}" for fault in self.faults]
        return "\n".join(lines)
