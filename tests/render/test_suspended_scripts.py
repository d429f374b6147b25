"""Slurm's scripts that end srun, at a suspend or when their agent has died; two processes stand for srun."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.render.test_running_scripts import Scene, children_of, make_scene
from tests.slurm_sandbox.sandbox import wait_until

BATCH = ("bash", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "-")
FOREGROUND = ("bash", "-c", 'SLURM_TASK_PID=1 exec "$@"', "-")  # below `hpc-elastic run`
# Its program is a copy of bash that is named srun. The fork and itself wait to be let go.
STEP = """
(read -r _ <"$STUBS/fork.gate") &
echo "$$ $!" >"$STUBS/step.new"
mv "$STUBS/step.new" "$STUBS/step"
read -r _ <"$STUBS/gate"
exit 42
"""
DIRECT = '#!/bin/bash\nexec "$STUBS/programs/srun" "$STUBS/step.sh"\n'
WRAPPER = """#!/bin/bash
"$STUBS/programs/srun" "$STUBS/step.sh"
status=$?
echo "srun ended with $status" >>"$STUBS/wrapper.says"
exit "$status"
"""
FUNCTION = 'srun() { "$STUBS/programs/srun" "$STUBS/step.sh"; }'
UNKNOWN = """#!/bin/bash
(read -r _ <"$STUBS/fork.gate") &
echo "$$ $!" >"$STUBS/step.new"
mv "$STUBS/step.new" "$STUBS/step"
read -r _ <"$STUBS/gate"
exit 42
"""
# It counts its calls and says what is in a file; without the file Slurm does not answer.
SQUEUE = """#!/bin/bash
[[ " $* " == *" --steps "* ]] || exit 1
echo asked >>"$STUBS/asked"
[ ! -e "$STUBS/refusal" ] || { cat "$STUBS/refusal" >&2; exit 1; }
cat "$STUBS/steps" 2>/dev/null || exit 1
"""
SCANCEL = """#!/bin/bash
echo "$*" >>"$STUBS/cancelled"
"""
STEP_ID = "3"


@dataclass
class Suspended:
    """A script whose attempt has begun, and the agent beside it."""

    scene: Scene
    process: subprocess.Popen[str]
    agent: subprocess.Popen[bytes]

    def processes(self) -> tuple[int, int]:
        """The stand-in for srun, and its fork."""
        srun, fork = map(int, (self.scene.stubs / "step").read_text().split())
        return srun, fork

    def suspend(self) -> None:
        """Send what Slurm sends two seconds before it stops the job's processes."""
        self.process.send_signal(signal.SIGTSTP)

    def lose_srun(self) -> None:
        """Send the same, and return when srun is gone."""
        self.suspend()
        wait_until(lambda: all(map(is_gone, self.processes())), "srun and its fork are gone")

    def lose_agent(self) -> None:
        self.agent.kill()
        self.agent.wait()

    def asked(self) -> int:
        """How often Slurm was asked for the job's steps."""
        path = self.scene.stubs / "asked"
        return path.read_text().count("\n") if path.exists() else 0

    def end_run(self) -> None:
        (self.scene.run_dir / "exit_code").write_text("0\n")

    def finish(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


def state_of(pid: int) -> str:
    """The state of a process, as /proc has it; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_gone(pid: int) -> bool:
    return state_of(pid) in ("", "Z")


class Starter:
    """Starts scripts, and leaves no process of theirs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._started: list[Suspended] = []

    def start(
        self, srun: str = DIRECT, *, by: tuple[str, ...] = BATCH, setup: tuple[str, ...] = (), **variables: str
    ) -> Suspended:
        """Start a script, and return when it has stopped srun because an attempt has begun."""
        scene = make_scene(self._root, setup=setup)
        for gate in ("gate", "fork.gate"):
            os.mkfifo(scene.stubs / gate)
        (scene.stubs / "programs").mkdir()
        shutil.copy(shutil.which("bash") or "", scene.stubs / "programs" / "srun")
        (scene.stubs / "step.sh").write_text(STEP)
        programs = {"srun": srun, "squeue": SQUEUE, "scancel": SCANCEL, "sleep": "#!/bin/sh\nexec /bin/sleep 0.02\n"}
        for name, text in programs.items():
            (scene.stubs / name).write_text(text)
            (scene.stubs / name).chmod(0o755)
        agent = subprocess.Popen(["sleep", "600"], env={**os.environ, "SLURM_STEP_ID": STEP_ID})
        born = Path(f"/proc/{agent.pid}/stat").read_text().rpartition(") ")[2].split()[19]
        (scene.run_dir / "agents" / "launch_agent").write_text(f"{agent.pid} {born}\n")
        started = Suspended(scene, scene.start(by, **variables), agent)
        self._started.append(started)
        scene.wait_for("step")
        (scene.run_dir / "attempts" / "0001").mkdir(parents=True)
        wait_until(lambda: "T" in map(state_of, self.held(started)), "srun is stopped")
        return started

    def held(self, started: Suspended) -> list[int]:
        return [started.processes()[0], *children_of(started.process.pid)]

    def clean_up(self) -> None:
        for started in self._started:
            started.agent.kill()
            started.agent.wait()
            if started.process.poll() is None:
                kill_all_below(started.process.pid)
            for pid in started.processes():
                if not is_gone(pid):
                    os.kill(pid, signal.SIGKILL)
            started.process.communicate(timeout=60)


def all_below(pid: int) -> list[int]:
    """Every process that descends from one."""
    try:
        children = children_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [*children, *(each for child in children for each in all_below(child))]


def kill_all_below(pid: int) -> None:
    """Kill every process that descends from one, and what they start meanwhile: who is stopped starts nothing."""
    stopped: set[int] = set()
    while new := {pid, *all_below(pid)} - stopped:
        for each in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        stopped |= new
    for each in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.clean_up()


@pytest.mark.long
def test_signals_that_arrive_together_are_all_answered(tmp_path: Path) -> None:
    """Bash's `wait` would take one of them and forget the other: its handler leaves by a jump."""
    scene = make_scene(tmp_path)
    os.mkfifo(scene.stubs / "gate")
    process = scene.start(STUB_STATUS="42", SLURM_TASK_PID="1")
    scene.wait_for("srun.runs")
    wait_until(lambda: state_of(process.pid) == "S", "the script waits")
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(process.pid) == "T", "the script is stopped")
    process.send_signal(signal.SIGUSR2)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    requests = scene.run_dir / "requests.jsonl"
    wait_until(lambda: requests.exists() and '"stop"' in requests.read_text(), "there is a request to stop")
    (scene.stubs / "gate").write_text("go\n")
    assert process.wait(timeout=60) == 42
    process.communicate()
    assert '"notice"' in requests.read_text()


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["slurm-plain.sh", "local-plain.sh"])
def test_no_substitution_is_parsed_when_a_signal_may_come(name: str) -> None:
    """A trap that runs while bash 5.2 parses a `$(...)` fails: in 15 of 15 scripts under a storm of signals, n = 15."""
    lines = (GOLDEN / name).read_text().splitlines()
    found = [line for line in lines if re.search(r"\$\((?!\()", line) and not line.lstrip().startswith("#")]
    assert found == [line for line in found if "$(<" in line and name.startswith("local")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("srun", "setup"),
    [(DIRECT, ()), (WRAPPER, ()), (WRAPPER, (FUNCTION.replace("programs/srun", "srun"),)), (WRAPPER, (FUNCTION,))],
    ids=["program", "script", "function-and-script", "function"],
)
def test_a_suspend_ends_srun_and_its_fork_whatever_a_site_has_put_before_it(
    srun: str, setup: tuple[str, ...], starter: Starter
) -> None:
    started = starter.start(srun, setup=setup)
    assert state_of(started.processes()[0]) == "T", "it is srun that is stopped, not what has started it"
    started.lose_srun()
    (started.scene.stubs / "steps").write_text("7.batch\n")
    assert started.process.poll() is None
    started.end_run()
    status, output, errors = started.finish()
    assert (status, errors) == (0, "")
    assert "srun is ended" in output
    assert not (started.scene.stubs / "wrapper.says").exists(), "nobody was told to act on srun's end"


@pytest.mark.long
def test_a_suspend_ends_no_process_that_may_not_be_srun(starter: Starter) -> None:
    """Where srun itself is not to be found its own child would end the step: better nothing is done."""
    started = starter.start(UNKNOWN)
    started.suspend()
    started.end_run()
    assert started.process.wait(timeout=60) == 0
    assert not any(map(is_gone, started.processes()))


@pytest.mark.long
def test_a_suspend_ends_srun_although_the_runs_file_system_hangs(starter: Starter) -> None:
    """Two seconds after the TSTP everything stands still."""
    started = starter.start()
    (started.scene.run_dir / "agents" / "launch_agent").unlink()
    os.mkfifo(started.scene.run_dir / "agents" / "launch_agent")  # opening it to read hangs
    for name in ("find", "ls"):
        (started.scene.stubs / name).write_text('#!/bin/bash\nread -r _ <"$STUBS/hung"\n')
        (started.scene.stubs / name).chmod(0o755)
    os.mkfifo(started.scene.stubs / "hung")
    try:
        started.lose_srun()
    finally:  # what hangs is not below the script any more, once that has killed what looks for the end of the run
        for name in ("find", "ls"):
            (started.scene.stubs / name).unlink()
        for fifo in (started.scene.stubs / "hung", started.scene.run_dir / "agents" / "launch_agent"):
            os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))


@pytest.mark.long
def test_silence_of_slurm_after_a_suspend_does_not_end_the_job(starter: Starter) -> None:
    started = starter.start()
    started.lose_srun()
    started.lose_agent()
    wait_until(lambda: started.asked() >= 33, "Slurm was asked 33 times and did not answer")
    assert started.process.poll() is None
    (started.scene.stubs / "steps").write_text("7.batch\n7.extern\n")
    started.process.wait(timeout=60)
    status, output, _ = started.finish()
    assert "Slurm does not say" in output
    assert (started.scene.stubs / "concluded").exists()
    assert status == 137


@pytest.mark.long
@pytest.mark.parametrize("answer", ["steps", "refusal"])
def test_slurms_word_that_no_step_is_left_ends_the_job(answer: str, starter: Starter) -> None:
    started = starter.start()
    text = "" if answer == "steps" else "slurm_load_jobs error: Invalid job id specified\n"
    (started.scene.stubs / answer).write_text(text)
    started.lose_srun()
    started.lose_agent()
    started.finish()
    assert started.asked() == 3
    assert (started.scene.stubs / "concluded").exists()


@pytest.mark.long
def test_after_a_suspend_the_script_leaves_the_other_nodes_time_to_write_their_states(starter: Starter) -> None:
    """Slurm kills what is left when the script has ended, whoever still writes."""
    started = starter.start()
    (started.scene.stubs / "steps").write_text("7.batch\n7.3\n")
    started.lose_srun()
    started.end_run()
    started.lose_agent()
    wait_until(lambda: started.asked() >= 3, "Slurm was asked several times")
    (started.scene.stubs / "steps").write_text("7.batch\n")
    assert started.finish()[0] == 0
    assert started.asked() < 10, "it does not wait for the whole time"


@pytest.mark.long
@pytest.mark.parametrize("by", [BATCH, FOREGROUND], ids=["batch", "foreground"])
def test_the_death_of_the_agent_beside_srun_ends_srun_while_the_other_agents_go_on(
    by: tuple[str, ...], starter: Starter
) -> None:
    """A shell of salloc, too, may be on a node with an agent."""
    started = starter.start(by=by)
    (started.scene.stubs / "steps").write_text("7.batch\n7.3\n")
    started.lose_agent()
    wait_until(lambda: all(map(is_gone, started.processes())), "srun and its fork are gone")
    wait_until(lambda: started.asked() >= 5, "Slurm was asked several times")
    assert started.process.poll() is None
    started.end_run()
    (started.scene.stubs / "steps").write_text("7.batch\n")
    status, output, errors = started.finish()
    assert (status, errors) == (0, "")
    assert "srun is ended" in output


@pytest.mark.long
@pytest.mark.parametrize("what", ["run directory", "name of the agent", "attempts"])
def test_srun_stays_stopped_while_the_run_directory_is_away_and_its_agent_lives(what: str, starter: Starter) -> None:
    """As for the seconds of a `mv`, or of a file server; nobody would believe the line that the agent has ended."""
    started = starter.start()
    (started.scene.stubs / "steps").write_text("7.batch\n7.3\n")
    run_dir = started.scene.run_dir
    away = {
        "run directory": run_dir,
        "name of the agent": run_dir / "agents" / "launch_agent",
        "attempts": run_dir / "attempts",
    }[what]
    away.rename(run_dir.parent / "away")
    with pytest.raises(subprocess.TimeoutExpired):
        started.process.wait(timeout=2)  # many of its seconds
    assert not any(map(is_gone, started.processes()))
    assert "T" in map(state_of, starter.held(started))
    started.lose_agent()
    wait_until(lambda: all(map(is_gone, started.processes())), "srun and its fork are gone")
    (run_dir.parent / "away").rename(away)
    started.end_run()
    (started.scene.stubs / "steps").write_text("7.batch\n")
    status, output, errors = started.finish()
    assert (status, errors) == (0, "")
    assert output.count("this node's agent has ended") == 1


@pytest.mark.long
@pytest.mark.parametrize("by", [BATCH, FOREGROUND], ids=["batch", "foreground"])
def test_the_step_of_a_lost_node_keeps_no_script_whose_job_is_to_start_again(
    by: tuple[str, ...], starter: Starter
) -> None:
    """Slurm shows it for as long as there is no srun that completes it (22.05, also when the node is down)."""
    requeue = '{"format_version": 1, "kind": "requeue", "allocation": 1}'
    started = starter.start(by=by, setup=(f"echo '{requeue}' >requests.jsonl",))  # of an earlier start
    (started.scene.stubs / "steps").write_text("7.batch\n7.3\n")
    started.lose_agent()
    wait_until(lambda: started.asked() >= 5, "Slurm was asked several times")
    with (started.scene.run_dir / "requests.jsonl").open("a") as requests:
        requests.write('{"format_version": 1, "kind": "stop", "requeue": true}\n')
    asked = started.asked()
    wait_until(lambda: started.asked() >= asked + 3, "Slurm was asked several times")
    assert started.process.poll() is None
    with (started.scene.run_dir / "requests.jsonl").open("a") as requests:
        requests.write(f"{requeue}\n")
    started.finish()
    assert (started.scene.stubs / "concluded").exists()


@pytest.mark.long
def test_a_step_without_agents_keeps_no_script_if_nobody_is_found_five_times_in_a_row(starter: Starter) -> None:
    """Slurm shows the step of a lost node on, whoever has ended: here the agents of all others were killed."""
    started = starter.start()
    stubs = started.scene.stubs
    (stubs / "steps").write_text("7.batch\n7.3\n")

    def looks(found: str) -> int:
        lines = (stubs / "looked").read_text().splitlines() if (stubs / "looked").exists() else []
        return lines.count(found)

    started.lose_agent()
    wait_until(lambda: looks("") >= 2, "it was looked for agents, and some were there")
    (stubs / "survivors.new").write_text("LOOKS samples")
    (stubs / "survivors.new").rename(stubs / "survivors")
    wait_until(lambda: looks("LOOKS samples") >= 6, "nobody was found, but one has left traces since the last look")
    assert started.process.poll() is None
    (stubs / "survivors.new").write_text("2 samples")
    (stubs / "survivors.new").rename(stubs / "survivors")
    output = started.finish()[1]
    assert looks("2 samples") == 5
    assert "all agents have ended" in output
    assert (stubs / "concluded").exists()


@pytest.mark.long
@pytest.mark.parametrize("other", ["7.2", "7.30", "7.interactive"])
def test_other_steps_of_the_job_keep_no_script_whose_agents_have_all_ended(other: str, starter: Starter) -> None:
    """In an allocation of somebody's own they are somebody's own."""
    started = starter.start(by=FOREGROUND)
    (started.scene.stubs / "steps").write_text(f"{other}\n7.3\n")
    started.lose_agent()
    wait_until(lambda: started.asked() >= 3, "Slurm was asked several times")
    assert started.process.poll() is None
    (started.scene.stubs / "steps").write_text(f"{other}\n")
    started.finish()
    assert (started.scene.stubs / "concluded").exists()


@pytest.mark.long
def test_a_second_signal_to_a_script_in_the_foreground_ends_the_step_whose_srun_is_gone(starter: Starter) -> None:
    """The first one has asked the other agents to stop, as always."""
    started = starter.start(by=FOREGROUND)
    (started.scene.stubs / "steps").write_text("7.3\n")
    started.lose_agent()
    wait_until(lambda: all(map(is_gone, started.processes())), "srun and its fork are gone")
    requests, cancelled = started.scene.run_dir / "requests.jsonl", started.scene.stubs / "cancelled"
    started.process.send_signal(signal.SIGTERM)
    wait_until(lambda: requests.exists() and '"stop"' in requests.read_text(), "there is a request to stop")
    assert not cancelled.exists()
    started.process.send_signal(signal.SIGTERM)
    wait_until(cancelled.exists, "the step is ended")
    (started.scene.stubs / "steps").write_text("")
    started.finish()
    assert cancelled.read_text() == "7.3\n"
