"""The faults: what there is, which may happen to a run as it stands, and how each is done."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.soak.patient import Patient, Seen, send


class Kind(str, Enum):
    """What happens. The last four end the run: as CANCELLED, or as FAILED for want of nodes."""

    AGENT_KILLED = "agent killed"
    HEAD_KILLED = "head killed"
    AGENT_FROZEN = "agent frozen beyond the lease"
    HEAD_FROZEN = "head frozen beyond the lease"
    AGENT_PAUSED = "agent paused within the lease"
    WORKER_KILLED = "worker killed"
    WORKERS_KILLED = "all workers of a node killed"
    GUARD_KILLED = "guard killed"
    STORE_KILLED = "store host killed"
    SCRIPT_KILLED = "script killed"
    AGENT_TERMINATED = "TERM to an agent"
    SCRIPT_TERMINATED = "TERM to the script"
    CANCELLED = "hpc-elastic cancel"
    BELOW_MIN = "all agents but one killed"


TAKES_A_NODE = frozenset({Kind.AGENT_KILLED, Kind.HEAD_KILLED, Kind.AGENT_FROZEN, Kind.HEAD_FROZEN})
OF_THE_HEAD = frozenset({Kind.HEAD_KILLED, Kind.HEAD_FROZEN})
FREEZES = frozenset({Kind.AGENT_FROZEN, Kind.HEAD_FROZEN})
RESTARTS = TAKES_A_NODE | {Kind.WORKER_KILLED, Kind.WORKERS_KILLED}
SPENDS_A_RESTART = frozenset({Kind.WORKER_KILLED, Kind.WORKERS_KILLED, Kind.STORE_KILLED})
STOPS_THE_RUN = frozenset({Kind.AGENT_TERMINATED, Kind.SCRIPT_TERMINATED, Kind.CANCELLED})
ENDS_THE_RUN = STOPS_THE_RUN | {Kind.BELOW_MIN}
WEIGHTS = {
    Kind.AGENT_KILLED: 12,
    Kind.HEAD_KILLED: 14,
    Kind.AGENT_FROZEN: 10,
    Kind.HEAD_FROZEN: 12,
    Kind.AGENT_PAUSED: 5,
    Kind.WORKER_KILLED: 20,
    Kind.WORKERS_KILLED: 7,
    Kind.GUARD_KILLED: 5,
    Kind.STORE_KILLED: 10,
    Kind.SCRIPT_KILLED: 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a plan.

    `number` chooses among those whom it can hit. `after_s`: so long after the one before it, in whatever
    state the run is then; None: when the run works again. `for_leases`: how long a freeze lasts.
    """

    kind: Kind
    number: int
    after_s: float | None
    for_leases: float = 0.0


def draw_faults(dice: random.Random, count: int, kinds: Sequence[Kind] = tuple(WEIGHTS)) -> list[Fault]:
    """So many faults; about one of three hits the restart that the one before it caused."""
    faults = []
    for _ in range(count):
        kind = dice.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])[0]
        leases = dice.uniform(0.1, 0.3) if kind is Kind.AGENT_PAUSED else dice.uniform(1.2, 3.0)
        after_s = dice.choice([0.0, dice.uniform(0.0, 0.5), dice.uniform(0.0, 3.0)]) if dice.random() < 0.35 else None
        faults.append(Fault(kind=kind, number=dice.randrange(1 << 16), after_s=after_s, for_leases=leases))
    return faults


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done, at `moment` in monotonic seconds. `to_work`: every rank was at work then."""

    moment: float
    kind: Kind
    node: str
    to_work: bool

    def __str__(self) -> str:
        return f"{self.kind.value} {self.node}".strip()


@dataclass(slots=True)
class Damage:
    """The faults that were injected into the run so far."""

    killed: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    unguarded: set[str] = field(default_factory=set)
    done: list[Done] = field(default_factory=list)


class Surgeon:
    """Injects faults into one run, and only such as it has promised to survive.

    A node may be taken if enough members of the latest world are left without it: neither killed nor
    frozen. One whose guard was killed is not frozen: agent and guard together are what fences.
    """

    def __init__(self, patient: Patient, *, min_nodes: int, lease_s: float, cancel: Callable[[], None]) -> None:
        self._patient = patient
        self._min_nodes = min_nodes
        self._lease_s = lease_s
        self._cancel = cancel
        self._agents = patient.agents()
        self._has_script = True
        self._thaws: list[threading.Timer] = []
        self.damage = Damage()

    def do(self, fault: Fault) -> int:
        """Inject the fault, if there is a process or node that it can hit.

        Returns:
            The attempt that cannot survive it; 0 if that is not certain.
        """
        claims = self._patient.claims()
        if not self._do(fault) or fault.kind not in RESTARTS or fault.after_s is not None:
            return 0
        return claims[-1]["attempt"] if self.damage.done[-1].node in claims[-1]["members"] else 0

    def thaw(self) -> None:
        """Waits until nobody is frozen any more."""
        for timer in self._thaws:
            timer.join()

    def _do(self, fault: Fault) -> bool:
        kind, damage = fault.kind, self.damage
        if kind is Kind.CANCELLED:
            self._note(fault, "")
            self._cancel()
            return True
        if kind is Kind.BELOW_MIN:
            return self._kill_all_but_one(fault)
        if kind in (Kind.SCRIPT_KILLED, Kind.SCRIPT_TERMINATED):
            return self._hit_script(fault)
        if kind in (Kind.WORKER_KILLED, Kind.WORKERS_KILLED, Kind.GUARD_KILLED, Kind.STORE_KILLED):
            return self._hit_process(fault)
        nodes = self._candidates(kind)
        if not nodes:
            return False
        node = nodes[fault.number % len(nodes)]
        pid = self._agents[node]
        if kind in (Kind.AGENT_KILLED, Kind.HEAD_KILLED):
            damage.killed.add(node)
            number = signal.SIGKILL
        elif kind is Kind.AGENT_TERMINATED:
            number = signal.SIGTERM
        else:
            number = signal.SIGSTOP
            damage.frozen.add(node)
        self._note(fault, node)
        is_done = send(pid, number)
        if number is signal.SIGSTOP:
            timer = threading.Timer(fault.for_leases * self._lease_s, self._continue, (node, pid))
            self._thaws.append(timer)
            timer.start()
        return is_done

    def _kill_all_but_one(self, fault: Fault) -> bool:
        """Kill all agents but one of the latest world, which must write the result; none is frozen then."""
        self.thaw()
        alive = sorted(set(self._agents) - self.damage.killed)
        members = [node for node in alive if node in self._patient.claims()[-1]["members"]]
        spared = members[fault.number % len(members)]
        self._note(fault, f"but {spared}")
        for node in alive:
            if node != spared:
                self.damage.killed.add(node)
                send(self._agents[node], signal.SIGKILL)
        return True

    def _continue(self, node: str, pid: int) -> None:
        send(pid, signal.SIGCONT)
        self.damage.frozen.discard(node)

    def _candidates(self, kind: Kind) -> list[str]:
        """The nodes whose agent can be hit."""
        claims = self._patient.claims()
        if not claims:
            return []
        head, members = claims[-1]["head"], set(claims[-1]["members"])
        well = set(self._agents) - self.damage.killed - self.damage.frozen
        nodes = {head} & well if kind in OF_THE_HEAD else well - {head}
        if kind in (Kind.AGENT_PAUSED, Kind.AGENT_TERMINATED):
            nodes = well
        if kind in FREEZES or kind is Kind.AGENT_PAUSED:
            nodes -= self.damage.unguarded
        if kind in TAKES_A_NODE:
            nodes = {node for node in nodes if len((members & well) - {node}) >= self._min_nodes}
        return sorted(nodes)

    def _note(self, fault: Fault, node: str) -> None:
        self.damage.done.append(Done(time.monotonic(), fault.kind, node, fault.after_s is None))

    def _hit_script(self, fault: Fault) -> bool:
        if not self._has_script:
            return False
        self._has_script = fault.kind is not Kind.SCRIPT_KILLED
        self._note(fault, "")
        return send(self._patient.script(), signal.SIGTERM if self._has_script else signal.SIGKILL)

    def _hit_process(self, fault: Fault) -> bool:
        what = {Kind.GUARD_KILLED: "guard", Kind.STORE_KILLED: "store"}.get(fault.kind, "worker")
        seen = sorted(self._targets(what), key=lambda one: one.pid)
        if not seen:
            return False
        chosen = seen[fault.number % len(seen)]
        hit = [chosen]
        if fault.kind is Kind.WORKERS_KILLED:
            hit = [one for one in seen if one.node == chosen.node]
        if fault.kind is Kind.GUARD_KILLED:
            self.damage.unguarded.add(chosen.node)
        self._note(fault, chosen.node)
        return sum(send(one.pid, signal.SIGKILL) for one in hit) > 0

    def _targets(self, what: str) -> list[Seen]:
        seen = [one for one in self._patient.processes() if one.what == what]
        if what == "guard":  # of a frozen agent it is all that fences
            return [one for one in seen if one.node not in self.damage.frozen | self.damage.killed]
        return seen


def is_alive(pid: int) -> bool:
    """Whether the process runs, or could."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
