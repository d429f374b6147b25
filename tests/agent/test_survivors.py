"""Whether an agent of a start of the job lives, by what its machines answer; here all of them are this one."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.agent import survivors
from hpc_elastic.agent.records.journal import Journal, stamp
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import NetworkPlan, dump_plan
from hpc_elastic.rundir.layout import RunLayout
from tests.agent.answers import Answers
from tests.agent.records.runs import HEAD, a_place, an_attempt
from tests.plans import make_run_plan

START = ("42", 0)
# One of this process's own, and ports that no agent has by default: other tests run agents beside these.
HERE = "127.{}.{}.{}".format(*(64 + os.getpid()).to_bytes(3, "big"))
PORTS = (18200, 18300)
# No machine answers there: Linux makes no connection to a broadcast address.
SILENT = {"node1": ("255.255.255.255",)}


class Job:
    """A start of job 42 on two nodes that has claimed an attempt, and whose machines all are this one."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(root)
        root.mkdir()
        self.plan = replace(make_run_plan(self.layout.root), network=NetworkPlan(port_range=PORTS))
        Path(self.layout.plan).write_text(dump_plan(self.plan))
        self._journal = Journal(self.layout, self.plan, a_place(), questions=Answers(is_over=lambda _: True))
        self._journal.claim_allocation(HEAD)
        self.claim(1)
        self.ports = port_sequence(self.plan.run, "42", self.plan.network.port_range)
        self.addresses: dict[str, tuple[str, ...]] = {}

    def claim(self, attempt: int) -> None:
        claimed, world = an_attempt(History(attempts=attempt - 1))
        assert self._journal.claim_attempt(stamp(claimed), world)[0]

    def look(self, *, start: tuple[str, int] = START, dead: tuple[str, ...] = ()) -> str | None:
        return survivors.find_nobody(
            self.layout,
            self.plan,
            start,
            Answers(dead=dead),
            resolve=lambda node: self.addresses.get(node, (HERE,)),
        )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "run")


def test_nobody_lives_if_each_machine_refuses_the_ports_of_agents(job: Job) -> None:
    assert job.look()
    assert job.look() == job.look()


@pytest.mark.parametrize("index", [0, -1])
def test_an_agent_may_live_if_somebody_listens_on_one_of_their_ports(index: int, job: Job) -> None:
    with socket.create_server((HERE, job.ports[index])):
        assert job.look() is None
    assert job.look()


def test_a_silent_machine_may_have_an_agent_until_slurm_has_taken_it_from_the_job(job: Job) -> None:
    job.addresses.update(SILENT)
    assert job.look() is None
    assert job.look(dead=("node0",)) is None
    assert job.look(dead=("node1",))


def test_a_machine_without_an_address_may_have_an_agent(job: Job) -> None:
    job.addresses["node0"] = ()
    assert job.look() is None


def test_each_sample_and_each_claim_changes_what_is_said(job: Job) -> None:
    said = [job.look()]
    samples = Path(job.layout.samples("node1"))
    samples.parent.mkdir(parents=True, exist_ok=True)
    for line in ("{}\n", "{}\n{}\n"):
        samples.write_text(line)
        said.append(job.look())
    job.claim(2)
    said.append(job.look())
    assert None not in said
    assert len(set(said)) == 4


@pytest.mark.parametrize("start", [("42", 1), ("43", 0)])
def test_nothing_is_said_of_another_start_of_the_job(start: tuple[str, int], job: Job) -> None:
    assert job.look(start=start) is None


def test_nothing_is_written_if_the_run_directory_cannot_be_read(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    os.rename(job.layout.plan, f"{job.layout.plan}.away")
    with pytest.raises(OSError, match=r"plan\.json"):
        survivors.main([job.layout.root])
    assert capsys.readouterr().out == ""
