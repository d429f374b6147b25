"""A script in the foreground: what becomes of its command line, and how the script's end becomes the run's."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_elastic.cli.foreground import ForegroundScheduler, local_job_id, script_environment, stop_on_signals
from hpc_elastic.cli.job_text import write_job
from hpc_elastic.cli.main import main
from hpc_elastic.cli.run import find_allocation, make_parser, prepare
from hpc_elastic.cli.torchrun_options import REPLACEMENTS
from hpc_elastic.errors import UsageError
from hpc_elastic.job.check import key_paths
from hpc_elastic.job.names import is_run_name
from hpc_elastic.job.spec import JobSpec
from hpc_elastic.plan.launch_plan import dump_plan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.protocol import JobState
from tests.cli.conftest import FakeSlurm
from tests.observe.builders import make_plan
from tests.tiers import variants
from tests.without_torch import hide_torch

Capture = pytest.CaptureFixture[str]
SETUP_FAILS = ["--set", "setup=['echo loading', 'false']"]


def only_run(workplace: Path) -> Path:
    (run,) = (workplace / "hpc-elastic-runs").iterdir()
    return run


@pytest.mark.parametrize(
    ("kind", "target", "name"),
    [
        ("script", "my train (2).py", "my-train-2"),
        ("script", "runs/_entraînement.py", "entraînement"),
        ("script", "训练.py", "训练"),
        ("module", "_pkg.train", "pkg.train"),
        ("module", "a." * 40 + "train", ("a." * 32).rstrip(".")),
        ("command", "./.start+.sh", "start"),
    ],
)
def test_a_run_is_named_by_what_it_runs_as_far_as_a_name_can_say_it(kind: str, target: str, name: str) -> None:
    text = write_job(command="", kind=kind, target=target, arguments=(), workdir="/", options={}, schema="")
    found = yaml.safe_load(text)["name"]
    assert (found, is_run_name(found)) == (name, True)


def test_job_file_of_a_script_keeps_every_argument() -> None:
    arguments = ["--nodes", "3", "--", "a b", "$HOME ${X}", "q\"'\\", "\N{SNOWMAN}", "-x: [1]\n#", ""]
    text = write_job(
        command="hpc-elastic run train.py\n", kind="script", target="my train.py", arguments=arguments,
        workdir="/data/$x", options={"nodes": "{min: 2, max: 4}", "restart.max_restarts": "5"},
        schema="/opt/job.schema.json",
    )  # fmt: skip
    data = yaml.safe_load(text)
    assert text.startswith("# yaml-language-server: $schema=/opt/job.schema.json\n# hpc-elastic run train.py")
    assert data["name"] == "my-train"
    assert data["entrypoint"]["script"] == "my train.py"
    assert [argument.replace("$$", "$") for argument in data["entrypoint"]["args"]] == arguments
    assert (data["workdir"], data["nodes"]) == ("/data/$$x", {"min": 2, "max": 4})
    assert data["restart"] == {"max_restarts": 5}


@pytest.mark.long
@pytest.mark.parametrize("dash", ["-", "_"])
def test_torchruns_log_options_are_keys_of_logs(
    workplace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, dash: str
) -> None:
    filters = {"local-ranks-filter": "0, 1", "duplicate-stdout-filters": "apple,a,,b", "duplicate-stderr-filters": "x"}
    options = [word for name, value in filters.items() for word in (f"--{name.replace('-', dash)}", value)]
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${role_name}${rank}]:")
    assert main(["run", "-r", "3", "-t", "0:3,1:2", *options, *SETUP_FAILS, "train.py"]) == 3
    logs = json.loads((only_run(workplace) / "plan.json").read_text())["logs"]
    assert logs["redirects"] == {"others": 3, "by_local_rank": {}}
    assert logs["tee"] == {"others": 0, "by_local_rank": {"0": 3, "1": 2}}
    assert (logs["tee_ranks"], logs["local_ranks_filter"]) == ([], [0, 1])
    assert (logs["duplicate_stdout_filters"], logs["duplicate_stderr_filters"]) == (["apple", "a,b"], ["x"])
    assert logs["prefix"] == "[${role_name}${rank}]:"


@pytest.mark.long
def test_torchruns_log_options_change_a_job_file(workplace: Path, capsys: Capture) -> None:
    assert main(["run", "--redirects", "0:1", "--tee", "2", *SETUP_FAILS, "job.yaml"]) == 3
    logs = json.loads((only_run(workplace) / "plan.json").read_text())["logs"]
    assert logs["redirects"] == {"others": 0, "by_local_rank": {"0": 1}}
    assert logs["tee"] == {"others": 2, "by_local_rank": {}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-t", "4"], "logs.tee: expected out, err, both, none, 0 to 3, or local ranks such as 0:3,1:2, found '4'"),
        (["--local-ranks-filter", "0,x"], "logs.local_ranks_filter[1]: expected a whole number, found 'x'"),
        (["--duplicate-stdout-filters", "a,"], "logs.duplicate_stdout_filters[1]: expected text that is not empty"),
    ],
)
def test_wrong_log_option_is_told_by_its_key(
    workplace: Path, capsys: Capture, options: list[str], message: str
) -> None:
    assert main(["run", *options, "train.py"]) == 3
    assert message in capsys.readouterr().err
    assert not (workplace / "hpc-elastic-runs").exists()


def test_options_after_the_script_are_the_scripts(workplace: Path, capsys: Capture) -> None:
    command = ["run", "--nodes", "1:2", "--name", "mine", *SETUP_FAILS, "train.py", "--nodes", "9", "--", "-m", "$HOME"]
    assert main(command) == 3
    plan = json.loads((only_run(workplace) / "plan.json").read_text())
    assert plan["roles"][0]["entrypoint"]["args"] == ["--nodes", "9", "--", "-m", "$$HOME"]
    assert plan["nodes"] == {"min": 1, "max": 2, "spares": 0}
    assert (plan["name"], plan["site"]) == ("mine", "local")
    assert "hpc-elastic run --nodes 1:2" in (only_run(workplace) / "job.yaml").read_text()


def test_failing_setup_line_is_the_cause_and_exit_code_three(workplace: Path, capsys: Capture) -> None:
    assert main(["run", *SETUP_FAILS, "job.yaml"]) == 3
    result = json.loads((only_run(workplace) / "result.json").read_text())
    assert (result["state"], result["reason"], result["written_by"]) == ("FAILED", "setup_failed", "login")
    assert "false" in result["cause"]
    error = capsys.readouterr().err
    assert "FAILED (exit code 3)" in error
    assert "Traceback" not in error
    assert main(["logs"]) == 0


def test_site_that_needs_an_allocation_is_refused_outside_of_one(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture
) -> None:
    assert main(["run", "--site", "generic-slurm", "train.py"]) == 2
    assert "needs an allocation" in capsys.readouterr().err
    assert not (workplace / "hpc-elastic-runs").exists()


def test_allocation_that_is_too_small_is_refused(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    assert main(["run", "--site", "generic-slurm", "job.yaml"]) == 3
    assert "job 42 has 1 nodes, the run needs at least 2" in capsys.readouterr().err


def test_a_heterogeneous_job_is_refused_before_anything_is_made(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert main(["run", "train.py"]) == 3
    assert "job 42 is a heterogeneous job of 2 parts" in capsys.readouterr().err
    assert not (workplace / "hpc-elastic-runs").exists()


@pytest.mark.long
def test_where_to_look_names_the_run_and_not_its_job_which_may_have_others(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch script may have a second run behind the first one: its job id would then mean that one."""
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert main(["run", *SETUP_FAILS, "train.py"]) == 3
    assert f"see: hpc-elastic explain {only_run(workplace)}\n" in capsys.readouterr().err


def test_nodes_are_the_allocations_if_nobody_says_how_many(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert main(["run", *SETUP_FAILS, "train.py"]) == 3
    run = only_run(workplace)
    plan = json.loads((run / "plan.json").read_text())
    submission = json.loads((run / "submission.json").read_text())
    assert plan["nodes"] == {"min": 4, "max": 4, "spares": 0}
    assert (plan["scheduler"], submission["job_id"], submission["foreground"]) == ("slurm", "42", True)
    assert (run / "slurm-42.out").exists()
    assert fake_slurm.calls("sbatch") == []


def test_several_tasks_of_srun_are_refused() -> None:
    step = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}
    with pytest.raises(UsageError, match="8 tasks"):
        find_allocation(step)
    assert find_allocation({**step, "SLURM_STEP_NUM_TASKS": "1"}) == "42"
    assert find_allocation({}) is None


def test_script_gets_our_allocation_and_no_other_identity() -> None:
    environ = {"PATH": "/bin", "RANK": "3", "MASTER_ADDR": "x", "SLURM_JOB_ID": "42"}
    assert script_environment(environ, is_in_allocation=True) == {"PATH": "/bin", "SLURM_JOB_ID": "42"}
    assert script_environment(environ, is_in_allocation=False) == {"PATH": "/bin"}


def test_foreground_job_is_the_process_that_its_id_names(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("echo $$; cut -d' ' -f22 /proc/$$/stat; exit 7\n")
    scheduler = ForegroundScheduler(None)
    job_id = scheduler.submit(make_plan(tmp_path, scheduler="local"), str(tmp_path / "job.sh"))
    scheduler.wait()
    process_id, start = Path(RunLayout(tmp_path).script_output(job_id)).read_text().split()
    assert job_id == f"local-{process_id}-{start}"
    status = scheduler.query([job_id])[job_id]
    assert (status.state, status.exit_code) == (JobState.FAILED, "7:0")


@pytest.mark.parametrize(
    ("number", "script"),
    # TERM is for the script alone, which ends what it has started; KILL is for all of its session.
    [(signal.SIGTERM, "exec sleep 100\n"), (signal.SIGKILL, "sleep 100 & wait\n")],
)
def test_foreground_job_that_a_signal_ended_is_cancelled(tmp_path: Path, number: int, script: str) -> None:
    (tmp_path / "job.sh").write_text(script)
    scheduler = ForegroundScheduler("42")
    scheduler.submit(make_plan(tmp_path), str(tmp_path / "job.sh"))
    assert scheduler.query(["42"])["42"].state is JobState.RUNNING
    scheduler.signal(number)
    scheduler.wait()
    assert scheduler.query(["42"])["42"].state is JobState.CANCELLED


@pytest.mark.long
def test_a_script_whose_allocation_ended_before_srun_got_a_step_is_killed_and_told_as_cancelled(
    tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    (tmp_path / "job.sh").write_text("echo 'hpc_elastic: starting an agent on each of 2 nodes (start 0)'; sleep 300\n")
    scheduler = ForegroundScheduler("42")
    scheduler.submit(make_plan(tmp_path), str(tmp_path / "job.sh"))
    fake_slurm.say("RUNNING")
    deadline = time.monotonic() + 60
    while not fake_slurm.calls("squeue"):
        assert scheduler.query(["42"])["42"].state is JobState.RUNNING
        assert time.monotonic() < deadline
        time.sleep(0.1)
    fake_slurm.say("CANCELLED")
    while scheduler.query(["42"])["42"].state is JobState.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    scheduler.wait()
    assert scheduler.query(["42"])["42"].native_state == "CANCELLED"
    assert len(fake_slurm.calls("squeue")) == 2


def test_local_job_id_is_of_a_living_process() -> None:
    assert local_job_id(os.getpid()).startswith(f"local-{os.getpid()}-")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["ctrl-c", "ctrl-backslash"])
def test_interrupt_in_a_setup_line_cancels_the_run(workplace: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "run", "--set", "setup=[exec sleep 100]", "train.py"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "] RUNNING" in line:
            break
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    result = json.loads((only_run(workplace) / "result.json").read_text())
    assert (result["state"], process.returncode) == ("CANCELLED", 10), error
    assert "stopping, with grace" in error


def test_interrupt_in_the_middle_of_a_printed_line_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            signal.raise_signal(signal.SIGINT)
            return memoryview(data).nbytes

    layout = RunLayout(tmp_path)
    with stop_on_signals(layout, ForegroundScheduler(None)):
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Interrupting())))
        print("attempt 1", file=sys.stderr, flush=True)
    assert capfd.readouterr().err == "\nhpc-elastic: stopping, with grace; Ctrl-C again stops at once\n"


def test_interrupt_stops_a_run_whose_directory_takes_no_request(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: the error ended the command, and nothing stopped the run."""
    sent: list[int] = []

    class Recording(ForegroundScheduler):
        def signal(self, number: int) -> None:
            sent.append(number)

    (tmp_path / "file").touch()
    layout = RunLayout(tmp_path / "file")
    with stop_on_signals(layout, Recording(None)):
        signal.raise_signal(signal.SIGINT)
    assert sent == [signal.SIGTERM]
    said = capfd.readouterr().err
    assert f"cannot write {layout.requests}: Not a directory: the agents get a TERM instead\n" in said


@pytest.mark.parametrize(("below_nohup", "stops"), [(True, []), (False, [signal.SIGTERM])])
def test_hangup_stops_the_run_except_below_nohup(below_nohup: bool, stops: list[int], tmp_path: Path) -> None:
    """A shell whose terminal is closed sends HUP to all its jobs, those below `nohup` too."""
    sent: list[int] = []

    class Recording(ForegroundScheduler):
        def signal(self, number: int) -> None:
            sent.append(number)

    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN if below_nohup else signal.SIG_DFL)
    try:
        with stop_on_signals(RunLayout(tmp_path), Recording(None)):
            signal.raise_signal(signal.SIGHUP)
            assert sent == stops
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.local
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="ctrl-c"),
        *variants(
            signal.SIGQUIT,
            of="test_interrupt_of_a_local_run_stops_its_workers_with_grace",
            ids=["ctrl-backslash"],
        ),
    ],
)
def test_interrupt_of_a_local_run_stops_its_workers_with_grace(
    workplace: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (workplace / "train.py").write_text("import time\nprint('training', flush=True)\ntime.sleep(300)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_elastic", "run", "--nodes", "2", "train.py"],
        env=hide_torch(os.environ, tmp_path / "without-torch"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    result = json.loads((only_run(workplace) / "result.json").read_text())
    assert (process.returncode, result["state"], result["reason"]) == (10, "CANCELLED", "stop_requested"), error
    assert result["written_by"] != "login"


@pytest.mark.local
def test_run_ends_with_the_exit_code_of_its_workers(workplace: Path, tmp_path: Path) -> None:
    (workplace / "train.py").write_text("print('one step')\nraise ValueError('no data')\n")
    command = [sys.executable, "-m", "hpc_elastic", "run", "--max-restarts", "1", "train.py"]
    environ = hide_torch(os.environ, tmp_path / "without-torch")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert done.stdout.count("one step\n") == 2
    assert "restart 1 of 1" in done.stderr
    assert "ValueError: no data" in done.stderr


PRINTS_AGAIN = """
import os, time
print("one step", flush=True)
while not os.path.exists("closed"):
    time.sleep(0.05)
print("another", flush=True)
while os.path.exists("waits"):
    time.sleep(0.05)
raise ValueError("no data")
"""


def start_and_stop_reading(workplace: Path, environ: dict[str, str], *words: str) -> subprocess.Popen[str]:
    (workplace / "train.py").write_text(PRINTS_AGAIN)
    command = [sys.executable, "-m", "hpc_elastic", *words]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "one step\n"
    process.stdout.close()
    process.stdout = None  # for `communicate`
    (workplace / "closed").touch()
    return process


@pytest.mark.local
def test_run_stays_to_its_end_if_nobody_reads_its_output(workplace: Path, tmp_path: Path) -> None:
    environ = hide_torch(os.environ, tmp_path / "without-torch")
    process = start_and_stop_reading(workplace, environ, "run", "--max-restarts", "1", "train.py")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    assert error.count("cannot write the output: Broken pipe; the run goes on") == 1
    assert "restart 1 of 1" in error
    assert "ValueError: no data" in error


@pytest.mark.local
def test_follow_is_no_success_if_nobody_reads_its_output(workplace: Path, tmp_path: Path) -> None:
    (workplace / "waits").touch()
    (workplace / "job.yaml").write_text("entrypoint: {script: train.py}\n")
    environ = hide_torch(os.environ, tmp_path / "without-torch")
    process = start_and_stop_reading(workplace, environ, "submit", "job.yaml", "--site", "local", "--follow")
    try:
        _, error = process.communicate(timeout=60)
        assert process.returncode == 130, error
        assert "detached; the run goes on" in error
    finally:
        assert main(["cancel", str(only_run(workplace))]) == 0


# Each option of torchrun that is taken, a value, and the part of the plan that it makes.
TAKEN: dict[str, tuple[str | None, str, Any]] = {
    "--nnodes": ("1:2", "nodes", {"min": 1, "max": 2, "spares": 0}),
    "--nproc-per-node": ("3", "roles.0.workers_per_node", 3),
    "--standalone": (None, "site", "local"),
    "--max-restarts": ("7", "restart.max_restarts", 7),
    "--rdzv-id": ("42", "name", "42"),
    "--role": ("trainer", "roles.0.name", "trainer"),
    "--start-method": ("forkserver", "start", "fork"),
    "--module": (None, "roles.0.entrypoint.kind", "module"),
    "--no-python": (None, "roles.0.entrypoint.kind", "command"),
    "--run-path": (None, "roles.0.entrypoint.kind", "script"),
    "--log-dir": ("logs", "name", "train"),
    "--redirects": ("1", "logs.redirects.others", 1),
    "--tee": ("2", "logs.tee.others", 2),
    "--local-ranks-filter": ("0", "logs.local_ranks_filter", [0]),
    "--duplicate-stdout-filters": ("a", "logs.duplicate_stdout_filters", ["a"]),
    "--duplicate-stderr-filters": ("b", "logs.duplicate_stderr_filters", ["b"]),
    "--numa-binding": ("exclusive", "binding", "cores"),
    "--signals-to-handle": ("SIGTERM,SIGINT,SIGHUP,SIGQUIT", "signals.notice", ""),
    "--shutdown-timeout": ("9", "signals.restart_grace_s", 9.0),
    "--virtual-local-rank": (None, "virtual_local_rank", True),
}


def planned(*arguments: str) -> Any:
    """Return the plan of a command line, which is not started."""
    prepared, _ = prepare(arguments)
    return json.loads(dump_plan(prepared.plan))


def test_every_option_of_torchrun_is_taken_or_answered_with_what_stands_in_its_place() -> None:
    pytest.importorskip("torch")
    from torch.distributed.run import get_args_parser

    ours = make_parser()
    options = {option for option in get_args_parser()._option_string_actions if option.startswith("--")} - {"--help"}
    assert options <= set(ours._option_string_actions)
    assert {option for option in options if "_" not in option} == {*TAKEN, *REPLACEMENTS}
    for option in REPLACEMENTS:
        for words in ([option, "train.py"], [option, "value", "train.py"], [f"{option}=value", "train.py"]):
            with pytest.raises(UsageError, match=f"{option} is an option of torchrun") as raised:
                ours.parse_args(words)
            assert raised.value.tip == REPLACEMENTS[option]


@pytest.mark.long
@pytest.mark.parametrize("option", sorted(TAKEN))
def test_an_option_of_torchrun_makes_the_plan_that_it_means(workplace: Path, capsys: Capture, option: str) -> None:
    value, path, expected = TAKEN[option]
    words = [option] if value is None else [option, value]
    (workplace / "train.py").chmod(0o700)
    found = planned(*words, "train" if option == "--module" else "./train.py")
    for key in path.split("."):
        found = found[int(key)] if key.isdigit() else found[key]
    assert found == expected
    assert capsys.readouterr().err == ""


def test_the_run_directory_is_made_in_torchruns_log_dir_with_a_name_of_its_own(workplace: Path) -> None:
    plan = planned("--log_dir", "logs", "train.py")
    assert plan["run_dir"] == str(workplace / "logs" / plan["run"])


def test_torchruns_shutdown_timeout_is_both_times_between_term_and_kill(workplace: Path) -> None:
    signals = planned("--shutdown-timeout", "9", "train.py")["signals"]
    assert (signals["grace_s"], signals["restart_grace_s"]) == (9.0, 9.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--start-method", "thread"], "--start-method is 'thread', expected spawn or fork or forkserver"),
        (["--numa-binding", "socket"], "--numa-binding is 'socket', expected node or exclusive"),
        (["--shutdown-timeout", "1m"], "--shutdown-timeout is '1m', expected whole seconds"),
        (["--signals-to-handle", "SIGTERM,SIGUSR1"], "--signals-to-handle names SIGUSR1, which does not stop a run"),
        (["--standalone", "--site", "generic-slurm"], "--standalone means this machine, and --site is generic-slurm"),
        (["--no-python", "-m"], "-m names a Python module, and --no-python a program"),
        (["--log-dir", "a", "--run-dir", "b"], "--log-dir and --run-dir both say where the run directory is"),
        (["--nproc-per-node", "2", "--workers-per-node", "2"], "not allowed with argument"),
        (["--nproc-per-node", "xpu"], "--nproc-per-node xpu is not supported"),
    ],
)
def test_a_value_of_torchrun_that_means_nothing_here_is_refused(
    workplace: Path, capsys: Capture, words: list[str], message: str
) -> None:
    assert main(["run", *words, "train.py"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not (workplace / "hpc-elastic-runs").exists()


def test_options_of_torchrun_change_a_job_file(workplace: Path, capsys: Capture) -> None:
    plan = planned("--numa-binding", "node", "--virtual_local_rank", "job.yaml")
    assert (plan["binding"], plan["virtual_local_rank"]) == ("numa", True)


def test_standalone_is_this_machine_and_one_node_also_inside_an_allocation(
    workplace: Path, fake_slurm: FakeSlurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    plan = planned("--standalone", "train.py")
    assert (plan["site"], plan["nodes"]) == ("local", {"min": 1, "max": 1, "spares": 0})


@pytest.mark.local
def test_a_program_that_is_not_python_runs_as_the_target(workplace: Path) -> None:
    script = workplace / "train.sh"
    script.write_text('#!/bin/sh\necho "$RANK of $WORLD_SIZE: $*"\n')
    script.chmod(0o700)
    command = [sys.executable, "-m", "hpc_elastic", "run", "--no-python", "./train.sh", "--lr", "1 e"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "0 of 1: --lr 1 e\n"), done.stderr


def test_variables_of_torchrun_are_named_at_the_start_as_not_read(
    workplace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_OF_SOMEBODY_ELSE"):
        monkeypatch.setenv(name, "2")
    plan = planned("train.py")
    assert plan["nodes"]["max"] == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "PET_" in line]
    named = "PET_NNODES (--nnodes), PET_NPROC_PER_NODE (--nproc-per-node)"
    assert line == f"hpc-elastic: warning: torchrun's variables are not read, give the options instead: {named}"


def test_options_of_torchrun_behind_the_script_are_the_scripts() -> None:
    assert make_parser().parse_args(["train.py", "--standalone", "--role", "x"]).arguments == [
        "--standalone",
        "--role",
        "x",
    ]


@pytest.mark.parametrize(
    "key", sorted({key for text in REPLACEMENTS.values() for key in re.findall(r"--set ([\w.]+)", text)})
)
def test_keys_that_stand_in_place_of_torchruns_options_exist(key: str) -> None:
    assert key in set(key_paths(JobSpec))
