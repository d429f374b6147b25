from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.protocol import Exclusion, JobState
from hpc_elastic.scheduler.questions import JobQuestions, end_job
from hpc_elastic.scheduler.registry import make_scheduler
from hpc_elastic.scheduler.slurm import commands, from_node, output
from hpc_elastic.scheduler.slurm.host_side import run_from_node
from hpc_elastic.scheduler.slurm.scheduler import SlurmScheduler, cluster_name, slurm_answers
from tests.observe.builders import RunBuilder
from tests.plans import make_run_plan
from tests.slurm_sandbox.cluster import Cluster, wait_until

Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a fake program on PATH, and takes the real Slurm off it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin" if not os.path.exists("/bin/squeue") else str(folder))

    def install(name: str, lines: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/bash\n{lines}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return install


def write_script(folder: Path, lines: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n#SBATCH --output=%j.out\n{lines}\n")
    return str(path)


def state_of(job_id: str) -> JobState:
    return SlurmScheduler().query([job_id])[job_id].state


def test_import_is_cheap() -> None:
    program = (
        "import sys; import hpc_elastic.scheduler.slurm, hpc_elastic.scheduler.local\n"
        "print(sorted({'asyncio', 'subprocess', 'hpc_elastic.plan.launch_plan', 'psutil'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_does_not_answer_if_there_is_no_slurm(program: Program) -> None:
    assert not slurm_answers()
    assert JobQuestions().is_over("1") is None
    with pytest.raises(SchedulerError, match="cannot run squeue: No such file or directory") as caught:
        SlurmScheduler().query(["1"])
    assert "--site local" in (caught.value.tip or "")


def test_a_controller_that_hides_its_nodes_answers(program: Program) -> None:
    """Where `PrivateData` has nodes, `sinfo` is refused to all but operators (22.05 to 26.05)."""
    program("sinfo", "echo 'slurm_load_node: Access/permission denied' >&2; exit 1")
    assert slurm_answers()


def test_a_run_is_cancelled_in_the_cluster_that_it_was_submitted_to(program: Program, tmp_path: Path) -> None:
    """In this shell's own cluster a job of the same id may be another run."""
    program("scancel", f'echo "$SLURM_CLUSTERS $1" >> {tmp_path}/cancelled')
    run = RunBuilder(tmp_path / "run").submit("42", selected_by={"SLURM_CLUSTERS": "other"})
    make_scheduler("slurm", run_dir=run.layout.root).cancel("42")
    assert (tmp_path / "cancelled").read_text() == "other 42\n"


@pytest.mark.long
def test_does_not_hang_if_slurm_does(program: Program) -> None:
    for name in ("sinfo", "squeue", "sbatch", "scancel", "scontrol"):
        program(name, "exec /bin/sleep 600")
    scheduler = SlurmScheduler(timeout_s=0.1, submit_timeout_s=0.1)
    with pytest.raises(SchedulerError, match=r"sinfo did not answer within 0\.1 s") as silent:
        slurm_answers(timeout_s=0.1)
    assert "--site local" in (silent.value.tip or "")
    with pytest.raises(SchedulerError, match=r"scontrol did not answer within 0\.1 s"):  # another site would be found
        cluster_name(timeout_s=0.1)
    with pytest.raises(SchedulerError, match="squeue did not answer"):
        from_node.is_over("1", timeout_s=0.1)
    with pytest.raises(SchedulerError, match=r"squeue did not answer within 0\.1 s"):
        scheduler.query(["1"])
    with pytest.raises(SchedulerError, match="scancel did not answer"):
        scheduler.cancel("1")
    with pytest.raises(SchedulerError, match="sbatch did not answer"):
        scheduler.submit(make_run_plan("/"), "/job.sh")


def test_a_chained_job_whose_id_a_sites_sbatch_does_not_tell_is_found_among_those_that_wait(
    program: Program, tmp_path: Path
) -> None:
    folder = tmp_path.resolve()
    program("sbatch", f"echo 'on its way'; echo > {folder}/submitted")
    program(
        "squeue",
        f'[[ "$*" != *--states=PENDING* ]] && echo "41|{folder}|"\n[ ! -e {folder}/submitted ] || echo "42|{folder}|"',
    )
    assert JobQuestions().submit_after("41", Exclusion(script=f"{folder}/job.sh")) == ("42", "")
    program("squeue", "exit 1")
    chained, refusal = JobQuestions().submit_after("41", Exclusion(script=f"{folder}/job.sh"))
    assert chained == ""
    assert "its output 'on its way' is no job id" in refusal


@pytest.mark.parametrize(("ping", "can"), [("echo 'Slurmctld(primary) at one is UP'", True), ("exit 1", False)])
def test_a_node_can_end_its_job_if_a_controller_answers(program: Program, ping: str, can: bool) -> None:
    assert not JobQuestions().can_end_job("42")  # there is no scontrol
    program("scontrol", ping)
    assert JobQuestions().can_end_job("42") is can
    assert not JobQuestions().can_end_job("local-1-2")
    assert not JobQuestions().can_end_job("")


def test_a_controller_that_hangs_ends_no_job(program: Program) -> None:
    program("scontrol", "exec /bin/sleep 600")
    with pytest.raises(SchedulerError, match="scontrol did not answer"):
        from_node.controller_answers(timeout_s=0.1)


def test_a_job_is_ended_once_and_for_all(program: Program, tmp_path: Path) -> None:
    program(
        "scancel", f"echo $* >> {tmp_path}/ended; echo 'scancel: error: Kill job error on job id 42: nope' >&2; exit 1"
    )
    with pytest.raises(SchedulerError, match="could not end job 42: Kill job error on job id 42: nope"):
        end_job("42")
    assert (tmp_path / "ended").read_text() == "42\n"


def test_query_asks_accounting_for_what_the_controller_forgot(program: Program, tmp_path: Path) -> None:
    program("squeue", "echo '1|1|RUNNING|2|0|node1|None|'")
    program("sacct", f"echo \"$@\" >> {tmp_path}/asked; echo '2|2|FAILED|3:0|node1|None'")
    found = SlurmScheduler().query(["1", "2", "3", "local-1-1"])
    assert [found[job_id].state for job_id in ("1", "2", "3", "local-1-1")] == [
        *(JobState.RUNNING, JobState.FAILED, JobState.GONE, JobState.GONE),
    ]
    assert found["1"].restarts == 2
    assert "--jobs=2,3 " in (tmp_path / "asked").read_text()


def test_a_task_that_was_cancelled_while_it_waited_is_asked_for_by_its_array(program: Program, tmp_path: Path) -> None:
    rows = "case $* in *--jobs=5_3*) ;; *) echo '5|5|CANCELLED|0|0||None|' ;; esac"
    program("squeue", f'echo "$@" >> {tmp_path}/asked; {rows}')
    assert SlurmScheduler().query(["5_3"])["5_3"].state is JobState.CANCELLED
    assert [line.split()[4] for line in (tmp_path / "asked").read_text().splitlines()] == ["--jobs=5_3", "--jobs=5"]


def test_accounting_too_is_asked_for_a_task_by_its_array(program: Program, tmp_path: Path) -> None:
    program("squeue", "exit 0")
    program("sacct", "case $* in *--jobs=5_3,5' '*) echo '5|5_[1-3%1]|CANCELLED by 0|0:0|None assigned|None' ;; esac")
    assert SlurmScheduler().query(["5_3"])["5_3"].state is JobState.CANCELLED


def test_a_requeue_is_found_although_the_command_that_asks_gets_slurms_term_too(program: Program) -> None:
    program("squeue", "kill -TERM $$; echo '7|7|COMPLETING|1|0|node1|None|'")
    assert JobQuestions().is_requeued("7", 0) is True
    assert JobQuestions().is_requeued("7", 1) is False


def test_query_asks_accounting_once_if_there_is_none(program: Program, tmp_path: Path) -> None:
    program("squeue", "exit 0")
    program("sacct", f"echo >> {tmp_path}/asked; echo 'Slurm accounting storage is disabled' >&2; exit 1")
    scheduler = SlurmScheduler()
    assert scheduler.query(["1"])["1"].state is JobState.GONE
    assert scheduler.query(["1"])["1"].state is JobState.GONE
    assert (tmp_path / "asked").read_text() == "\n"


def test_cancel_rejects_if_slurm_refuses(program: Program) -> None:
    program("scancel", "echo 'scancel: error: Kill job error on job id 1: Access/permission denied' >&2; exit 1")
    with pytest.raises(SchedulerError, match="permission denied") as caught:
        SlurmScheduler().cancel("1")
    assert caught.value.tip == "it belongs to somebody else"


@pytest.mark.parametrize("sacct", ["echo 'sacct: error: slurmdbd is away' >&2; exit 1", "echo '1|1|WELL'"])
def test_a_job_is_not_gone_while_accounting_does_not_answer(program: Program, tmp_path: Path, sacct: str) -> None:
    program("squeue", "exit 0")
    program("sacct", f"echo >> {tmp_path}/asked; {sacct}")
    scheduler = SlurmScheduler()
    for _ in range(2):  # asked again each time: the data base may be back
        with pytest.raises(SchedulerError, match="sacct"):
            scheduler.query(["1"])
    assert (tmp_path / "asked").read_text() == "\n\n"
    program("sacct", "echo '1|1|COMPLETED|0:0|node1|None'")
    assert scheduler.query(["1"])["1"].state is JobState.COMPLETED


def test_a_node_that_is_not_in_the_job_any_more_is_dead(program: Program, tmp_path: Path) -> None:
    program("squeue", f"echo \"$@\" >> {tmp_path}/asked; echo '7|7|RUNNING|0|0|node[1-2,4]|None|'")
    program("sacct", f"echo >> {tmp_path}/asked")
    questions = JobQuestions()
    assert questions.dead_nodes("7", ["node2", "node3"]) == {"node3"}
    assert questions.dead_nodes("7", ["node1"]) == frozenset()
    assert (tmp_path / "asked").read_text().count("\n") == 2
    assert questions.dead_nodes("7", []) == questions.dead_nodes("local-1-1", ["local1"]) == frozenset()
    assert (tmp_path / "asked").read_text().count("\n") == 2


NO_ANSWERS = {
    "it fails": "exit 1",
    "it fails without a word of why": "echo; exit 1",
    "its restarts are no number": "echo '7|7|RUNNING|many|0|node[1|None|'",
    "its exit code is of another kind": "echo '7|7|RUNNING|0|0:0:core|node1|None|'",
    "a field is missing": "echo '7|7|RUNNING|0|0|'",
    "it has no state": "echo '7|7||0|0|node1|None|'",
    "it is not text": "printf '\\xff\\x00|'",
    "a wrapper says more": "echo 'Welcome to the cluster!'; echo '7|7|RUNNING|0|0|node1|None|'",
}


@pytest.mark.parametrize("lines", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_what_slurm_says_decides_nothing_if_it_cannot_be_read(program: Program, lines: str) -> None:
    program("squeue", lines)
    program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    questions = JobQuestions()
    assert questions.is_over("7") is None
    assert questions.is_requeued("7", 0) is None
    assert questions.dead_nodes("7", ["node3"]) == frozenset()


def test_no_node_is_dead_if_their_list_cannot_be_read(program: Program) -> None:
    program("squeue", "echo '7|7|RUNNING|0|0|node[1|None|'")
    said: list[str] = []
    assert JobQuestions(said.append).dead_nodes("7", ["node3"]) == frozenset()
    (line,) = said
    assert line.startswith("Slurm does not say which nodes job 7 has lost: squeue's list of nodes cannot be read: ")
    assert "'node[1'" in line


@pytest.mark.parametrize("lines", ["exit 0", "echo '7|7|COMPLETING|0|0|node1|None|'"])
def test_no_node_is_dead_of_a_job_that_does_not_run(program: Program, lines: str) -> None:
    program("squeue", lines)
    assert JobQuestions().dead_nodes("7", ["node3"]) == frozenset()


def test_whether_a_job_starts_again_is_not_known_of_one_that_the_controller_has_forgotten(program: Program) -> None:
    """Accounting knows its last start, and not how often it was started again."""
    program("squeue", "exit 0")
    program("sacct", "echo '7|7|REQUEUED|0:0|node1|None'")
    assert JobQuestions().is_requeued("7", 0) is None


def test_no_node_is_dead_if_there_is_no_slurm(program: Program) -> None:
    assert JobQuestions().dead_nodes("7", ["node3"]) == frozenset()


def test_why_slurm_does_not_answer_is_said_once_and_again_after_it_did(program: Program) -> None:
    said: list[str] = []
    questions = JobQuestions(said.append)
    program("squeue", "echo 'not today'")
    assert [questions.is_requeued("7", 0) for _ in range(3)] == [None] * 3
    assert len(said) == 1
    assert "'not today'" in said[0]
    program("squeue", "echo '7|7|RUNNING|1|0:0|node1|None|'")
    assert questions.is_requeued("7", 0) is True
    program("squeue", "echo 'not tomorrow'; exit 1")
    assert questions.is_requeued("7", 0) is None
    assert len(said) == 2


@pytest.mark.every_slurm
def test_runs_a_script_to_its_end(slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")  # as in a shell of salloc
    monkeypatch.setenv("SBATCH_PARTITION", "urgent")
    monkeypatch.setenv("RANK", "3")
    script = write_script(tmp_path / "a run", 'echo "$SLURM_JOB_ID,$SLURM_JOB_PARTITION,${RANK-none}"; exit 3')
    scheduler = SlurmScheduler()
    job_id = scheduler.submit(make_run_plan(tmp_path, sbatch={"partition": "batch"}), script)
    wait_until(lambda: scheduler.query([job_id])[job_id].state.is_terminal, "the job is over")
    status = scheduler.query([job_id])[job_id]
    assert (status.state, status.exit_code, status.nodes) == (JobState.FAILED, "3:0", "node1")
    assert (tmp_path / "a run" / f"{job_id}.out").read_text() == f"{job_id},batch,none\n"
    assert JobQuestions().is_over(job_id) is True


@pytest.mark.every_slurm
def test_cancels_a_pending_and_a_running_job(slurm: Cluster, tmp_path: Path) -> None:
    running = SlurmScheduler().submit(make_run_plan(tmp_path), write_script(tmp_path, "sleep 600"))
    slurm.wait_for_job(running, "RUNNING")
    pending = slurm.submit("--nodes=4", "--exclusive", "--output=/dev/null", "--wrap=sleep 600")
    assert [state_of(running), state_of(pending)] == [JobState.RUNNING, JobState.PENDING]
    assert [JobQuestions().is_over(running), JobQuestions().is_over(pending)] == [False, False]
    for job_id in (pending, running, running, "999999"):
        SlurmScheduler().cancel(job_id)
    wait_until(lambda: state_of(running) is state_of(pending) is JobState.CANCELLED, "both are cancelled")
    assert state_of("999999") is JobState.GONE


@pytest.mark.every_slurm
def test_submit_rejects_what_slurm_refuses(slurm: Cluster, tmp_path: Path) -> None:
    script = write_script(tmp_path, "#SBATCH --partition=nowhere")
    with pytest.raises(SchedulerError, match="sbatch refused the job: invalid partition specified: nowhere"):
        SlurmScheduler().submit(make_run_plan(tmp_path), script)


# A site's script around Slurm's sbatch, which says nothing that could be read as the job's id.
SITES_SBATCH = """{sbatch} "$@" > /dev/null
echo "12 credits are left" >&2
echo "Your job is on its way."
"""


@pytest.mark.every_slurm
def test_a_job_whose_id_a_sites_sbatch_does_not_tell_is_found_by_its_folder(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text("#!/bin/bash\n" + SITES_SBATCH.format(sbatch=shutil.which("sbatch")))
    script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    SlurmScheduler().submit(make_run_plan(tmp_path), write_script(tmp_path / "another", "#SBATCH --hold"))
    said: list[str] = []
    array = write_script(tmp_path / "array", "#SBATCH --hold\n#SBATCH --array=0-3")
    job_ids = [
        SlurmScheduler(say=said.append).submit(make_run_plan(tmp_path), each)
        for each in (write_script(tmp_path / "a run", "#SBATCH --hold"), array)
    ]
    folders = [slurm.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%Z").stdout for job_id in job_ids]
    assert folders == [f"{tmp_path / 'a run'}\n", f"{tmp_path / 'array'}\n"]
    assert said == ["12 credits are left"] * 2
    slurm.run("scancel", "--user=root")


@pytest.mark.mirrored
def test_answers_only_if_the_controller_does(slurm: Cluster) -> None:
    assert slurm_answers()
    slurm.end_slurmctld()  # it writes down which jobs have ended
    with pytest.raises(SchedulerError, match="Slurm does not answer"):
        slurm_answers()
    slurm.kill("controller")
    with pytest.raises(SchedulerError, match="Slurm does not answer"):
        slurm_answers(timeout_s=0.5)
    with pytest.raises(SchedulerError, match="squeue did not answer"):
        from_node.is_over("1", timeout_s=0.5)


@pytest.mark.every_slurm
def test_a_node_that_is_set_down_is_dead_for_its_job_and_no_other_is(slurm: Cluster) -> None:
    job_id = slurm.submit("--nodes=3", "--no-kill", "--output=/dev/null", "--wrap=sleep 600")
    slurm.wait_for_job(job_id, "RUNNING")
    nodes = [f"node{number}" for number in range(1, 4)]
    assert JobQuestions().dead_nodes(job_id, nodes) == frozenset()
    slurm.run("scontrol", "update", "NodeName=node3", "State=DOWN", "Reason=for a test")
    wait_until(lambda: JobQuestions().dead_nodes(job_id, nodes) == {"node3"}, "node3 is dead for the job")
    slurm.run("scancel", job_id)


def job_with_a_script(slurm: Cluster, folder: Path) -> str:
    """Returns the job id of a job of two nodes that outlives one of them, once its script runs."""
    began = folder / "began"
    job_id = slurm.submit("--nodes=2", "--no-kill", f"--output={began}", "--wrap=echo began; exec sleep 600")
    wait_until(lambda: began.exists() and began.read_text() == "began\n", "the script runs")
    return job_id


def has_lost_host(job_id: str) -> bool:
    """Whether Slurm tells a node of a job so."""
    return output.has_lost_host(run_from_node(commands.host_command(job_id), environ=os.environ, timeout_s=10))


@pytest.mark.every_slurm
def test_a_job_whose_script_a_person_kills_has_lost_no_node(slurm: Cluster, tmp_path: Path) -> None:
    job_id = job_with_a_script(slurm, tmp_path)
    slurm.run("scancel", "--batch", "--signal=KILL", job_id)
    wait_until(lambda: from_node.outlook(job_id).state is not JobState.RUNNING, "the job ends")
    assert not from_node.outlook(job_id).has_lost_node
    assert not has_lost_host(job_id)


@pytest.mark.every_slurm(but=("26.05",))  # it lets such a job go on: the test below
def test_a_job_that_ends_as_its_scripts_node_is_set_down_has_lost_that_node(slurm: Cluster, tmp_path: Path) -> None:
    job_id = job_with_a_script(slurm, tmp_path)
    host = slurm.job(job_id)["BatchHost"]
    assert not has_lost_host(job_id)
    slurm.run("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=for a test")
    wait_until(lambda: from_node.outlook(job_id).state is not JobState.RUNNING, "the job ends")
    assert from_node.outlook(job_id).has_lost_node
    assert has_lost_host(job_id)


@pytest.mark.every_slurm(but=("22.05", "24.11"))
def test_a_job_goes_on_as_its_scripts_node_is_set_down(slurm: Cluster, tmp_path: Path) -> None:
    job_id = job_with_a_script(slurm, tmp_path)
    host = slurm.job(job_id)["BatchHost"]
    slurm.run("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=for a test")
    wait_until(lambda: JobQuestions().dead_nodes(job_id, ["node1", "node2"]) == {host}, f"{host} is dead for the job")
    assert from_node.outlook(job_id).state is JobState.RUNNING
    assert not from_node.outlook(job_id).has_lost_node
    assert slurm.job(job_id)["NodeList"] != host
    slurm.run("scancel", job_id)
