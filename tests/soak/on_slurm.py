"""Random faults in runs on a real Slurm: nodes without power or network, requeues, suspends, a hung controller.

    python -m tests.soak.on_slurm --faults 200 [--first 0] [--seed 17] [--slurm own|22.05|24.11|26.05]

One sandbox of four nodes; run after run, each drawn from its seed, with some faults one after the other, each healed
before the next one comes. After each of them the run works again on all members of its latest attempt, and `status`
answers. In the end it has succeeded, and of all that its ranks wrote down the rules of `tests.soak.rules` hold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpc_elastic.agent.system.processes import Marks, find_workers
from hpc_elastic.membership.timing import OTHERS_RETURN_WITHIN_S
from tests.integration.conftest import Door, Run
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.processes import SandboxError
from tests.soak import trainer
from tests.soak.patient import Patient, send
from tests.soak.rules import Mark, broken_rules, parse_marks

NODES = ("node1", "node2", "node3", "node4")
FAULTS_A_RUN = 6
MOST_BROKEN = 3
WORKS_WITHIN_S = 180.0  # a node without power is 50 s away for Slurm, and a requeued job waits for it
RECENT_BYTES = 1 << 15
ENDS_WITHIN_S = 240.0
_JOB = """
name: soak-slurm
site: generic-slurm
nodes: {{min: {min_nodes}, max: 4}}
workers_per_node: 1
time: 2h
resources: {{cpus_per_worker: 1}}
entrypoint: {{script: {script}, args: [{folder}]}}
start: spawn
elastic: {{lease: {lease:g}s, join_timeout: 120s, rejoin: {rejoin}}}
restart: {{max_restarts: 1000, no_progress_limit: 1000, max_node_losses: 1000, backoff: {{first: 0s}}}}
signals: {{grace: 2s, restart_grace: 1s}}
requeue: {{on: [preempted, time_limit]}}
"""


class Kind(Enum):
    """What happens."""

    NODE_OFF = "node without power"
    HEAD_OFF = "head's node without power"
    NODE_CUT = "node without network"
    HEAD_CUT = "head's node without network"
    PARTITIONED = "network in two halves"
    WORKER_KILLED = "worker killed"
    AGENT_KILLED = "agent killed"
    AGENT_FROZEN = "agent frozen"
    SUSPENDED = "job suspended"
    REQUEUED = "job requeued"
    CONTROLLER_FROZEN = "controller hung"


_TAKES_AN_AGENT = frozenset({Kind.NODE_OFF, Kind.HEAD_OFF, Kind.AGENT_KILLED})
_SILENCES = frozenset({Kind.NODE_CUT, Kind.HEAD_CUT, Kind.PARTITIONED, Kind.AGENT_FROZEN})
LEASE_S = 3.0
# So long a node may be silent without which too few are left: it is lost after a lease and awaited for two more, and
# finds the head again within a round of dialling. After a longer silence the run may rightly have ended.
WAITED_FOR_S = 3 * LEASE_S - OTHERS_RETURN_WITHIN_S
_WEIGHTS = {
    Kind.NODE_OFF: 3,
    Kind.HEAD_OFF: 3,
    Kind.NODE_CUT: 4,
    Kind.HEAD_CUT: 4,
    Kind.PARTITIONED: 2,
    Kind.WORKER_KILLED: 4,
    Kind.AGENT_KILLED: 2,
    Kind.AGENT_FROZEN: 3,
    Kind.SUSPENDED: 2,
    Kind.REQUEUED: 3,
    Kind.CONTROLLER_FROZEN: 2,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `number` chooses among those whom it can hit; `seconds`: how long it lasts, if it does."""

    kind: Kind
    number: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run and its faults, drawn from a seed."""

    seed: int
    min_nodes: int
    rejoin: str
    faults: Sequence[Fault]

    @classmethod
    def draw(cls, seed: int, *, kinds: Sequence[Kind] = ()) -> Scenario:
        """Draw the scenario of a seed, with these faults only or with all."""
        dice = random.Random(seed)
        drawn = dice.choices(kinds or list(Kind), [_WEIGHTS[kind] for kind in kinds or Kind], k=FAULTS_A_RUN)
        return cls(
            seed=seed,
            min_nodes=dice.choice([1, 2, 2]),
            rejoin=dice.choice(["at_restart", "immediately"]),
            faults=[Fault(kind, dice.randrange(1 << 16), dice.choice([0.5, 2, 4, 8, 15])) for kind in drawn],
        )


class EndedBySlurmError(Exception):
    """Slurm has ended the job for a reason that no run survives."""


class Soaked:
    """A run under way on a sandbox, whose machines can be broken and mended."""

    def __init__(self, slurm: Cluster, door: Door, scenario: Scenario) -> None:
        self.slurm = slurm
        self._door = door
        self._scenario = scenario
        text = _JOB.format(
            min_nodes=scenario.min_nodes,
            rejoin=scenario.rejoin,
            lease=LEASE_S,
            script=trainer.__file__,
            folder=door.folder,
        )
        door.write("job.yaml", text)
        self.run: Run = door.submit("job.yaml")
        self.done: list[str] = []
        self.recoveries: list[float] = []

    def play(self) -> None:
        """Does the faults, lets the run finish and checks it.

        Raises:
            AssertionError: something is not as it must be.
        """
        self._wait_for_work("the run works")
        for fault in self._scenario.faults:
            if not self._do(fault):
                continue
            mended = time.monotonic()
            self._wait_for_work(f"the run works after: {self.done[-1]}")
            self.recoveries.append(time.monotonic() - mended)
            self._door.run("status", self.run.job_id)
        self._door.write("finish", "")
        result = self.run.wait_until_over(within_s=ENDS_WITHIN_S)
        if self._has_slurm_ended_it():  # the last fault was just long enough
            raise EndedBySlurmError
        assert (result["state"], result["exit_code"]) == ("SUCCEEDED", 0), f"{result}\n{self.story()}"
        assert "SUCCEEDED" in self._door.run("status", self.run.job_id).stdout
        job = self.slurm.wait_for_job(self.run.job_id, "COMPLETED", "FAILED", within_s=ENDS_WITHIN_S)
        if self._has_slurm_ended_it():
            raise EndedBySlurmError
        assert job["JobState"] == "COMPLETED", f"{job}\n{self.story()}"
        self.run.assert_nothing_left(within_s=30)
        broken = list(broken_rules(self._marks(), Patient(self.run).claims()))
        assert not broken, "\n".join([*broken, self.story()])

    def story(self) -> str:
        """What was done and what the run says."""
        return "\n".join([repr(self._scenario), *self.done, self.run.story(), self.slurm.controller_log()])

    def _do(self, fault: Fault) -> bool:
        """Does a fault and mends it; returns whether there was anybody to do it to."""
        _, head, members = Patient(self.run).world()
        agents = self._agents()
        others = sorted((members & agents.keys()) - {head})
        is_of_head = fault.kind in (Kind.HEAD_OFF, Kind.HEAD_CUT)
        if fault.kind in _TAKES_AN_AGENT and len(agents) <= max(2, self._scenario.min_nodes):
            return False
        if fault.kind in _SILENCES and len(agents) <= self._scenario.min_nodes and fault.seconds > WAITED_FOR_S:
            return False
        if not is_of_head and not others:
            return False
        node = head if is_of_head else others[fault.number % len(others)]
        self.done.append(f"{fault.kind.value}: {node}, {fault.seconds:g} s, attempt {Patient(self.run).world()[0]}")
        self._break(fault, node, agents)
        return True

    def _break(self, fault: Fault, node: str, agents: dict[str, int]) -> None:
        slurm, kind = self.slurm, fault.kind
        if kind in (Kind.NODE_OFF, Kind.HEAD_OFF):
            with _undone(lambda: slurm.kill(node), lambda: slurm.boot(node)):
                time.sleep(fault.seconds)  # here and below: how long the fault lasts
        elif kind in (Kind.NODE_CUT, Kind.HEAD_CUT):
            with _undone(lambda: slurm.cut(node), lambda: slurm.heal(node)):
                time.sleep(fault.seconds)
        elif kind is Kind.PARTITIONED:
            half = {node, NODES[fault.number % 4]}
            with slurm.partitioned(sorted(half), sorted(set(NODES) - half)):
                time.sleep(fault.seconds)
        elif kind is Kind.WORKER_KILLED:
            for pid in find_workers(Marks(run_dir=self.run.layout.root, node=node)):
                send(pid, signal.SIGKILL)
        elif kind is Kind.AGENT_KILLED:
            send(agents[node], signal.SIGKILL)
        elif kind is Kind.AGENT_FROZEN:
            with _undone(lambda: send(agents[node], signal.SIGSTOP), lambda: send(agents[node], signal.SIGCONT)):
                time.sleep(fault.seconds)
        elif kind is Kind.SUSPENDED:
            if self._tells_slurm("suspend"):
                time.sleep(fault.seconds)
                slurm.run("scontrol", "resume", self.run.job_id)
        elif kind is Kind.REQUEUED:
            self._tells_slurm("requeue")
        else:
            with slurm.frozen_slurmctld():
                time.sleep(fault.seconds)

    def _tells_slurm(self, verb: str) -> bool:
        """Whether the job could be told: Slurm may have lost the batch host, and have the job waiting already."""
        try:
            self.slurm.run("scontrol", verb, self.run.job_id)
        except SandboxError as error:
            if "pending" not in str(error):
                raise
            return False
        return True

    def _agents(self) -> dict[str, int]:
        """The agents' process ids, by node."""
        found = {}
        for pid, command in self.run.agents().items():
            if "hpc_elastic.agent.main" in command:
                with contextlib.suppress(OSError):
                    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                    for word in environ:
                        if word.startswith(b"SLURMD_NODENAME="):
                            found[word.partition(b"=")[2].decode()] = pid
        return found

    def _wait_for_work(self, what: str) -> None:
        """Until all ranks of the latest attempt have made a mark from now on."""
        since = time.monotonic()

        def works() -> bool:
            if self.run.is_over() and self._has_slurm_ended_it():
                raise EndedBySlurmError
            assert not self.run.is_over(), f"the run is over\n{self.story()}"
            claims = Patient(self.run).claims()
            recent = [mark for mark in self._marks(RECENT_BYTES) if mark.time_ns / 1e9 > since]
            latest = [mark for mark in recent if claims and mark.attempt == claims[-1]["attempt"]]
            return bool(latest) and len({mark.rank for mark in latest}) == latest[0].world_size

        wait_until(works, what, within_s=WORKS_WITHIN_S, otherwise=self.story)

    def _has_slurm_ended_it(self) -> bool:
        """Whether the batch host was back in the second in which Slurm gave it up, and told of its script's end.

        A second later it is told that it has no part in the job any more, which goes on without it.
        """
        log, job = self.slurm.controller_log(), f"JobId={self.run.job_id}"
        return f"Killing {job} StepId=batch due to failed node" in log and f"_job_complete: {job} WTERMSIG 9" in log

    def _marks(self, most: int = 0) -> list[Mark]:
        """The marks of all ranks; with `most`, those in about so many bytes at the end."""
        path = self._door.folder / "marks"
        if not path.exists():
            return []
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, size - most) if most else 0)
            lines = file.read().decode().splitlines()
        return parse_marks(lines[1:] if begin else lines)


@contextlib.contextmanager
def _undone(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


def soak(slurm: Cluster, folder: Path, scenario: Scenario) -> Soaked:
    """Plays one scenario in a new folder, and leaves no job behind.

    Raises:
        AssertionError: a rule is broken; the folder tells how.
    """
    (folder / "project").mkdir(parents=True)
    door = Door(folder / "project", {**slurm.environment, "XDG_STATE_HOME": str(folder / "state")})
    try:
        soaked = Soaked(slurm, door, scenario)
        try:
            soaked.play()
        except EndedBySlurmError:
            soaked.done.append("Slurm has ended the job with the script of the batch host that it gave up")
        return soaked
    finally:
        slurm.leftovers(within_s=0)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.on_slurm", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=200, help="how many in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed; the next run has the next one")
    parser.add_argument("--seed", type=int, help="the run of this seed alone")
    parser.add_argument("--kinds", nargs="+", default=[], metavar="NAME", help="only these faults, by enum names")
    parser.add_argument("--slurm", default="own", help="own (this machine's), 22.05, 24.11 or 26.05")
    parser.add_argument("--folder", help="where failed runs are kept; default: a new temporary folder")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends, too
    kinds = [Kind[name] for name in arguments.kinds]
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="soak-slurm-"))
    version = None if arguments.slurm == "own" else arguments.slurm
    done = broken = runs = 0
    recoveries: list[float] = []
    slurm = Cluster.start(len(NODES), owner=os.getpid(), version=version)
    try:
        os.environ.update(slurm.variables)
        seed = arguments.first if arguments.seed is None else arguments.seed
        while done < arguments.faults and broken < MOST_BROKEN:
            here = folder / f"seed-{seed}"
            began = time.monotonic()
            try:
                soaked = soak(slurm, here, Scenario.draw(seed, kinds=kinds))
            except AssertionError as error:
                broken += 1
                (here / "story").write_text(str(error))
                print(f"seed {seed} breaks a rule: {str(error).splitlines()[0]}; see {here}/story", flush=True)
            else:
                shutil.rmtree(here)
                done += len(soaked.done)
                runs += 1
                recoveries += soaked.recoveries
                print(f"seed {seed}: {time.monotonic() - began:.0f} s, {'; '.join(soaked.done)}", flush=True)
            if arguments.seed is not None:
                break
            seed += 1
    finally:
        slurm.down()
    middle = statistics.median(recoveries) if recoveries else 0.0
    print(f"{done} faults in {runs} runs on Slurm {slurm.version}; {broken} runs broke a rule")
    print(f"at work {middle:.1f} s after a fault was mended, in the median; {max(recoveries, default=0):.1f} s at most")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
