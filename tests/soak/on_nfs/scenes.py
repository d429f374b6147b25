"""What people see of a run whose directory is on NFS: each scene plays one trouble, and says figures of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

from hpc_elastic.cli.stuck_disk import NOTE
from tests.slurm_sandbox.cluster import wait_until
from tests.soak.on_nfs.cluster import HOME, REPOSITORY, USER, NfsCluster
from tests.soak.on_nfs.guests import Program

MOST_LATE_S = 5.0  # of a line that is followed, and of a result; a cached absence makes 30 to 60 s of it
AWAY_S = 60.0
_HERE = f"{REPOSITORY}/tests/soak/on_nfs"
_SURVIVES = "--set 'nodes={min: 2, max: 3}' --set elastic.lease=5s"


def follow(cluster: NfsCluster) -> str:
    """A rank fails; `submit --follow` on another machine shows every step of both attempts, soon."""
    program = submit(cluster, "--follow", steps=30, fail_at=12)
    end_of(program, 0)
    late = lateness(program)
    shown = {step for step, _ in late}
    assert shown == set(range(30)), f"steps {sorted(set(range(30)) - shown)} are not shown:\n{program.output}"
    most = max(seconds for _, seconds in late)
    assert most <= MOST_LATE_S, f"a step was shown {most:.1f} s late: {late}"
    return f"{len(late)} steps shown, at most {most:.1f} s late"


def failed(cluster: NfsCluster) -> str:
    """People ask for failures before there is one, and see it as soon as it is there."""
    program = submit(cluster, "--wait --set restart.max_restarts=0", steps=30, fail_at=10)
    asked = 0
    while program.code is None:
        cluster.ask("logs --failed")
        cluster.ask("explain")
        asked += 1
    ended = time.time()
    end_of(program, 1)
    assert "rank 1 on node2 failed with exit code 1: RuntimeError: asked to fail" in program.output, program.output
    assert "Traceback" in (said := cluster.ask("logs --failed")), said
    assert "ranks/00001/error.json" in (said := cluster.ask("explain")), said
    written = float(on_server(cluster, f"stat -c %.Y {run_dir(program)}/result.json"))
    assert ended - written <= MOST_LATE_S + 5, f"the result was seen {ended - written:.1f} s late"
    return f"asked {asked} times before; the command ended {ended - written:.1f} s after the result was written"


def head_lost(cluster: NfsCluster) -> str:
    """The head's node is powered off; another node finds the checkpoint that it had looked for in vain."""
    program = submit(cluster, f"--follow {_SURVIVES}", steps=30)
    program.wait_for("step 6 at")
    cluster.guests["node1"].power_off()
    end_of(program, 0)
    begins = [int(step) for step in re.findall(r"rank 0 begins with step (\d+)", program.output)]
    assert len(begins) == 2, program.output
    assert begins[1] >= 6, f"the second attempt began with step {begins[1]}:\n{program.output}"
    cluster.guests["node1"].power_on()
    cluster.start_client("node1")
    return f"the second attempt began with step {begins[1]}"


def node_cut_off(cluster: NfsCluster) -> str:
    """A node does not reach the server for a while, and all others do: the run waits for it, and goes on."""
    program = submit(cluster, f"--follow {_SURVIVES}", steps=30)
    program.wait_for("step 6 at")
    cluster.switch.cut("node3", "storage")
    time.sleep(30)
    cluster.switch.mend()
    end_of(program, 0)
    return attempts_of(program)


def server_away(cluster: NfsCluster) -> str:
    """The server loses its power and is back after a minute; a command that was asked meanwhile answers then."""
    program = submit(cluster, "--follow", steps=30)
    program.wait_for("step 6 at")
    cluster.storage.power_off()
    began = time.monotonic()
    question = cluster.as_user("status")
    time.sleep(AWAY_S)
    cluster.storage.power_on()
    cluster.start_server()
    question.wait()
    answered = time.monotonic() - began
    assert "RUNNING" in question.output, question.output
    assert NOTE in question.output, question.output
    end_of(program, 0)
    return f"`status` answered after {answered:.0f} s; {attempts_of(program)}"


def cancelled(cluster: NfsCluster) -> str:
    """Somebody cancels the run on the login node; the head on another machine hears of it."""
    program = submit(cluster, "--follow", steps=100)
    program.wait_for("step 3 at")
    began = time.monotonic()
    said = cluster.ask("cancel")
    took = time.monotonic() - began
    end_of(program, 10)
    assert "CANCELLED" in program.output, f"{said}\n{program.output}"
    return f"`cancel` took {took:.0f} s"


def requeued(cluster: NfsCluster) -> str:
    """The job is started again; its next start finds the run's records and the checkpoint of the last one."""
    program = submit(cluster, "--follow", steps=30)
    program.wait_for("step 6 at")
    said = cluster.ask("stop --requeue --lead 2s")
    end_of(program, 0)
    begins = [int(step) for step in re.findall(r"rank 0 begins with step (\d+)", program.output)]
    assert len(begins) == 2, f"{said}\n{program.output}"
    assert begins[1] >= 6, f"the second start began with step {begins[1]}:\n{program.output}"
    return f"the second start began with step {begins[1]}"


def quota(cluster: NfsCluster) -> str:
    """The user's quota is used up: the run fails and says so, without a word that was lost on the way."""
    program = submit(cluster, "--follow", steps=60, fail_at=15)
    program.wait_for("step 4 at")
    used = int(cluster.storage.run(f"quota -w -u {USER} | awk 'END {{print $2 + 0}}'", check=False) or 0)
    cluster.storage.run(f"setquota -u {USER} 0 {used + 400} 0 0 /export")
    on_server(cluster, "dd if=/dev/zero of=fill bs=4k count=1000 2>/dev/null || true")
    end_of(program, 5)
    assert "Disk quota exceeded" in program.output, program.output
    assert "\\x00" not in (said := cluster.ask("explain")), said
    on_server(cluster, "rm fill")
    cluster.storage.run(f"setquota -u {USER} 0 0 0 0 /export")
    assert "FAILED, exit code 5" in (said := cluster.ask("status")), said
    return "the cause names the quota"


def requests(cluster: NfsCluster) -> str:
    """Three processes on each of four machines append to one file: no line is lost."""
    count, path = 60, f"{HOME}/requests.jsonl"
    writers = [(name, f"{name}-{number}") for name in cluster.layout.machines for number in range(3)]
    write_together(cluster, "lines", path, count, writers)
    found = set()
    torn = 0
    for line in on_server(cluster, "cat requests.jsonl").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            torn += 1
            continue
        found.add((record["who"], record["number"]))
    on_server(cluster, "rm requests.jsonl")
    assert len(found) == count * len(writers), f"{len(found)} of {count * len(writers)} lines are there"
    return f"{len(found)} lines, {torn} of which were written over and appended again"


def claims(cluster: NfsCluster) -> str:
    """Four machines claim the same names at the same time: each name has one owner."""
    count = 100
    on_server(cluster, "mkdir -p claims")
    writers = [(name, name) for name in cluster.layout.machines]
    won = write_together(cluster, "claims", f"{HOME}/claims", count, writers)
    on_server(cluster, "rm -r claims")
    assert sum(won) == count, f"{won} of {count} claims were won"
    return f"{count} claims, won by {' + '.join(map(str, won))}"


SCENES: dict[str, Callable[[NfsCluster], str]] = {
    scene.__name__: scene
    for scene in (follow, failed, cancelled, requeued, head_lost, node_cut_off, server_away, quota, requests, claims)
}


def submit(cluster: NfsCluster, words: str, *, steps: int, fail_at: int | None = None) -> Program:
    """Submit a job of one worker on each node, whose directory is on the server."""
    arguments = f"[--steps, {steps}" + (f", --fail-at, {fail_at}]" if fail_at is not None else "]")
    lines = ["name: scene", f"nodes: {len(cluster.nodes)}", "workers_per_node: 1", "time: 20m", "start: spawn"]
    lines += ["entrypoint:", f"  script: {_HERE}/trainer.py", f"  args: {arguments}"]
    wait_until(lambda: are_idle(cluster), "all nodes are idle", within_s=90)
    cluster.login.run(["sh", "-c", f'echo "$0" > {HOME}/job.yaml', "\n".join(lines)], user=USER)
    return cluster.as_user(f"submit job.yaml {words}")


def are_idle(cluster: NfsCluster) -> bool:
    """Return whether Slurm could start a job on all nodes."""
    states = set(cluster.slurm("sinfo --noheader --partition=batch --format=%T").split())
    if states & {"down", "down*"}:
        cluster.slurm(f"scontrol update nodename={','.join(cluster.nodes)} state=resume")
    return states == {"idle"}


def end_of(program: Program, code: int) -> None:
    """Wait for the end of a command and check its exit code."""
    found = program.wait(300)
    assert found == code, f"exit code {found}, expected {code}:\n{program.output}"


def run_dir(program: Program) -> str:
    """Return the run directory that `submit` has named, as a path in the user's home."""
    found = re.search(r"run directory: (\S+)", program.output)
    assert found, program.output
    return found[1].removeprefix(f"{HOME}/")


def attempts_of(program: Program) -> str:
    """Return what `--follow` has said of a run's attempts after the first."""
    later = re.findall(r"attempt ([2-9]): .*?after: (.*)", program.output)
    return "; ".join(f"attempt {number} after {why.strip()}" for number, why in later) or "one attempt"


def on_server(cluster: NfsCluster, line: str) -> str:
    """Run a line of the shell in the user's home on the server, which has it on a disk."""
    return cluster.storage.run(f"cd /export/data/home/{USER} && {line}", user=USER)


def lateness(program: Program) -> list[tuple[int, float]]:
    """Return each step that a command has shown, with the seconds from when it was to when it was shown."""
    return [
        (int(found[1]), at - float(found[2]))
        for at, line in program.lines()
        if (found := re.search(r"step (\d+) at ([\d.]+)", line))
    ]


def write_together(cluster: NfsCluster, kind: str, path: str, count: int, writers: list[tuple[str, str]]) -> list[int]:
    """Have processes write at the same time; `writers` are their machines and names."""
    begins_at = f"{time.time() + 5:.3f}"
    programs = [
        cluster.start_python(name, [f"{_HERE}/writer.py", kind, path, who, str(count), begins_at])
        for name, who in writers
    ]
    for program in programs:
        end_of(program, 0)
    return [int(program.output) for program in programs]
