"""The launchers: what each starts, and what its options are in a job file; pure.

Sources: torch 2.13 distributed/run.py and launch.py, accelerate 1.x `launch`, deepspeed 0.17 launcher/runner.py, NVRx
ft_launcher.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable, Collection, Mapping

from hpc_elastic.moving_in.command import LAUNCHERS, PYTHON, SHELLS, Around, Launch, unwrap
from hpc_elastic.moving_in.directives import ResourceRequest
from hpc_elastic.moving_in.moved import Moved
from hpc_elastic.moving_in.shell import LITERAL, unmark_literals

_MEETS = "the agents meet through the run directory, and nothing has to be named"
_NODE = "Slurm says which node this is, and the agents publish an address and a free port"
_TORCHRUN_FLAGS = frozenset({"standalone", "no-python", "run-path", "m", "module", "virtual-local-rank", "use-env"})
_LOGS = "each rank has a log of its own in the run directory; the keys of logs say more"
_TORCHRUN_LEFT_OUT = {
    **dict.fromkeys(("rdzv", "same-network"), _MEETS),
    **dict.fromkeys(("node-rank", "master-", "local-addr"), _NODE),
    **dict.fromkeys(("log-", "redirects", "tee", "local-ranks-filter"), _LOGS),
    "monitor-interval": "the end of a worker is seen at once",
}
_TORCHRUN_KEYS = {"start-method": "start: auto | fork | spawn", "max-restarts": "restart.max_restarts"}
_OF_ACCELERATE = "only `accelerate launch` knows it: give it in the script, Accelerator(...), or as ACCELERATE_* in env"
_ACCELERATE_FLAGS = frozenset(
    {
        *("multi-gpu", "cpu", "mps", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm", "use-xpu", "use-tpu"),
        *("m", "module", "no-python", "same-network", "debug", "q", "quiet", "dynamo-use-dynamic", "multi-node"),
        *("dynamo-use-fullgraph", "enable-cpu-affinity", "use-parallelism-config"),
    }
)
_ACCELERATE_COUNTED = frozenset(
    {
        *("num-machines", "num-processes", "n", "m", "module", "no-python", "multi-gpu", "multi-node", "q", "quiet"),
    }
)
_ACCELERATE_NODES = frozenset(
    {
        *("machine-rank", "main-process-ip", "main-process-port", "same-network", "num-cpu-threads-per-process"),
    }
)
_ACCELERATE_VARIABLES = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
}
LAUNCHER = 4
# What scripts run by srun before the training: to look around, to copy, to prepare.
_NO_TRAINING = frozenset(
    {
        *("amd-smi", "apptainer", "awk", "cat", "chmod", "conda", "cp", "date", "dcgmi", "df", "du", "echo"),
        *("enroot", "env", "false", "find", "free", "git", "grep", "gunzip", "hostname", "id", "ip", "ipcs"),
        *("kill", "killall", "ln", "ls", "lscpu", "mkdir", "module", "mount", "mv", "numactl"),
        *("nvidia-cuda-mps-control", "nvidia-smi", "pigz", "pip", "pip3", "pkill", "printenv", "printf"),
        *("python", "ray", "rm", "rmdir", "rocm-smi", "rsync", "sbcast", "scontrol", "sed", "set"),
        *("singularity", "sleep", "squashfuse", "stat", "sync", "tar", "tee", "tensorboard", "test", "touch"),
        *("true", "type", "uname", "unxz", "unzip", "which", "whoami", "xpu-smi", "zstd"),
    }
)
_NO_BUFFER = "workers write without a buffer"
_DEEPSPEED_FLAGS = frozenset({"no-python", "module", "no-local-rank", "no-ssh", "no-ssh-check", "bind-cores-to-rank"})


def is_launch(words: list[str], known: Mapping[str, str] | None = None) -> int:
    """Return how surely these words start the training: `LAUNCHER` most surely, 0 not at all.

    Below a launcher come Python under srun, Python alone or a shell script under srun, any other program under srun.
    """
    around = Around(Launch(0), Moved(), ResourceRequest(), known or {})
    command = unwrap(words, around)
    if not command:
        return 0
    program = os.path.basename(command[0])
    if program in ("torchrun", "ft_launcher", "deepspeed") or (program == "accelerate" and command[1:2] == ["launch"]):
        return LAUNCHER
    if PYTHON.fullmatch(program):
        if _from_launcher_on(command[1:]):
            return LAUNCHER
        is_file = any(word.endswith(".py") for word in command[1:]) or "-m" in command[1:3]
        if not is_file:
            return 0
        return 3 if around.is_under_srun else 2
    if not around.is_under_srun:
        return 0
    is_shell_script = program in SHELLS and any(word.endswith(".sh") for word in command[1:])
    if is_shell_script or program.endswith((".sh", ".py")):
        return 2
    return 0 if program in SHELLS or program in _NO_TRAINING or not re.match(r"[\w.]", program) else 1


def read_launch(
    words: list[str], line: int, moved: Moved, request: ResourceRequest, known: Mapping[str, str]
) -> Launch:
    """Return what a launch command starts, and put what its options say into the job file.

    Args:
        words: of the command, with `shell.LITERAL` for a dollar sign that bash does not expand.
        line: where it stands.
        moved: gets the remarks.
        request: what is asked of Slurm, which srun's options may change.
        known: variables whose values are known.
    """
    launch = Launch(line)
    around = Around(launch, moved, request, known)
    command = unwrap(words, around)
    if not command:
        return launch
    program, rest = os.path.basename(command[0]), command[1:]
    if PYTHON.fullmatch(program) and (module := _from_launcher_on(rest)):
        launch.python = command[0]
        if rest[0] == "-u":
            moved.not_needed(line, "-u", _NO_BUFFER)
        program, rest = _MODULES[module[0]], module[1:]
    elif os.path.dirname(command[0]) and program in LAUNCHERS:
        launch.python = os.path.join(os.path.dirname(command[0]), "python")
    if program == "accelerate" and rest[:1] == ["launch"]:
        program, rest = "accelerate launch", rest[1:]
    reader = _READERS.get(program, _read_program)
    launch.launcher = program if program in _READERS else ""
    launch.is_under_srun = around.is_under_srun
    reader(launch, command if reader is _read_program else rest, around)
    return launch


def _from_launcher_on(words: list[str]) -> list[str]:
    """Return what is behind a Python's `-m` or `-u -m` if it begins with a launcher's module, else []."""
    behind = words[1:] if words[:1] == ["-u"] else words
    return behind[1:] if behind[:1] == ["-m"] and behind[1:2] and behind[1] in _MODULES else []


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdecimal() and len(text) < 8


def _shown(name: str, value: str | None) -> str:
    return unmark_literals(f"--{name}" + (f"={value}" if value is not None else ""))


def _options(words: list[str], flags: Collection[str]) -> tuple[dict[str, str | None], list[str]]:
    """Return the options that words begin with, by name with dashes, and the words behind them."""
    given: dict[str, str | None] = {}
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        name, equals, value = words[place].lstrip("-").partition("=")
        name = name.replace("_", "-")
        place += 1
        if equals:
            given[name] = value
        elif name in flags or place >= len(words):
            given[name] = None
        else:
            given[name] = words[place]
            place += 1
    return given, words[place + (words[place : place + 1] == ["--"]) :]


def _target(launch: Launch, rest: list[str], *, is_module: bool, is_program: bool) -> None:
    if not rest:
        return
    launch.kind = "module" if is_module else "command" if is_program else "script"
    launch.target, launch.args = rest[0], rest[1:]


def _read_torchrun(launch: Launch, words: list[str], around: Around) -> None:
    given, rest = _options(words, _TORCHRUN_FLAGS)
    moved, line = around.moved, launch.line
    _target(launch, rest, is_module=bool(given.keys() & {"m", "module"}), is_program="no-python" in given)
    launch.workers, launch.nodes = 1, given.get("nnodes")
    processes, restarts = given.get("nproc-per-node"), given.get("max-restarts")
    if processes is not None:
        launch.workers = int(processes) if _is_number(processes) else "auto"
    if _is_number(restarts):
        launch.keys["restart.max_restarts"] = int(restarts or 0)
        del given["max-restarts"]
    role = given.get("role") or ""
    if re.search(rf"[${LITERAL}]", role):
        moved.not_needed(line, _shown("role", role), "`hpc-elastic logs` names the node of each rank")
    elif role:
        launch.keys["role"] = role
    if "virtual-local-rank" in given:
        launch.keys["virtual_local_rank"] = True
    for name, value in given.items():
        what = _shown(name, value)
        if why := next((why for start, why in _TORCHRUN_LEFT_OUT.items() if name.startswith(start)), None):
            moved.not_needed(line, what, why)
        elif name.startswith(("ft-", "fault-tol", "ignore-missing-fault")):
            moved.not_carried(line, what, "stall_timeout and start_timeout find ranks that hang, by heartbeat()")
        elif name not in _TORCHRUN_FLAGS and name not in ("nproc-per-node", "nnodes", "role"):
            moved.not_carried(line, what, _TORCHRUN_KEYS.get(name, "there is no key for it"))


def _read_launch_module(launch: Launch, words: list[str], around: Around) -> None:
    """Read `torch.distributed.launch`, which gives the script a local rank unless `--use-env` is there."""
    _read_torchrun(launch, words, around)
    given, _ = _options(words, _TORCHRUN_FLAGS)
    if "use-env" not in given:
        launch.args.insert(0, "--local-rank=$LOCAL_RANK")


def _read_accelerate(launch: Launch, words: list[str], around: Around) -> None:
    given, rest = _options(words, _ACCELERATE_FLAGS)
    moved, line = around.moved, launch.line
    _target(launch, rest, is_module=bool(given.keys() & {"m", "module"}), is_program="no-python" in given)
    machines = given.get("num-machines")
    launch.nodes = machines
    processes = given.get("num-processes") or given.get("n") or ""
    nodes = int(machines or 1) if _is_number(machines) else around.request.count_nodes()
    launch.workers = max(1, int(processes) // max(1, nodes)) if _is_number(processes) else "auto"
    for name, value in given.items():
        what = _shown(name, value)
        if name in _ACCELERATE_COUNTED:
            continue
        if name in _ACCELERATE_VARIABLES and value:
            launch.env[_ACCELERATE_VARIABLES[name]] = value
        elif name in _ACCELERATE_NODES:
            moved.not_needed(line, what, _NODE)
        elif name.startswith("rdzv"):
            moved.not_needed(line, what, _MEETS)
        elif name == "max-restarts" and _is_number(value):
            launch.keys["restart.max_restarts"] = int(value or 0)
        else:
            moved.not_carried(line, what, _OF_ACCELERATE)


def _read_deepspeed(launch: Launch, words: list[str], around: Around) -> None:
    given, rest = _options(words, _DEEPSPEED_FLAGS)
    moved, line = around.moved, launch.line
    is_program = "no-python" in given
    _target(launch, rest, is_module="module" in given, is_program=is_program)
    launch.nodes = given.get("num-nodes")
    gpus = given.get("num-gpus") or ""
    launch.workers = int(gpus) if _is_number(gpus) else "auto"
    if not is_program and "no-local-rank" not in given:
        launch.args.insert(0, "--local_rank=$LOCAL_RANK")
        moved.changed(
            line,
            "deepspeed",
            "it gives the script --local_rank, so args begin with it; take it out if the script ignores it",
        )
    for name, value in given.items():
        what = _shown(name, value)
        if name in ("hostfile", "H", "launcher", "no-ssh", "no-ssh-check", "ssh-port", "launcher-args", "force-multi"):
            moved.not_needed(line, what, "Slurm starts one agent a node, without ssh and a host file")
        elif name in ("master-addr", "master-port", "node-rank"):
            moved.not_needed(line, what, _NODE)
        elif name in ("include", "i", "exclude", "e", "bind-cores-to-rank"):
            moved.not_carried(line, what, "all nodes and GPUs of the job take part; binding says how ranks are bound")
        elif name not in ("num-gpus", "num-nodes", "no-local-rank", "no-python", "module"):
            moved.not_carried(line, what, "there is no key for it")


def _read_program(launch: Launch, command: list[str], around: Around) -> None:
    """Read a program that srun starts once a task, or that the script starts once."""
    program, rest = command[0], command[1:]
    launch.is_one_a_task = around.is_under_srun
    launch.workers = None if around.is_under_srun else 1
    if not PYTHON.fullmatch(os.path.basename(program)):
        _target(launch, command, is_module=False, is_program=True)
        why = "it is started once a rank, and was not read: if it starts torchrun or the like, move that command in"
        around.moved.changed(launch.line, unmark_literals(" ".join(command[:2])), why)
        return
    launch.python = program
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] == "-u":
            around.moved.not_needed(launch.line, "-u", _NO_BUFFER)
        else:
            around.moved.not_carried(
                launch.line, f"{program} {rest[0]}", "set a variable in env instead, such as PYTHONOPTIMIZE"
            )
        rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
    is_module = rest[:1] == ["-m"]
    _target(launch, rest[1:] if is_module else rest, is_module=is_module, is_program=False)


_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "torch.distributed.elastic": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_READERS: dict[str, Callable[[Launch, list[str], Around], None]] = {
    "torchrun": _read_torchrun,
    "ft_launcher": _read_torchrun,
    "torch.distributed.launch": _read_launch_module,
    "accelerate launch": _read_accelerate,
    "deepspeed": _read_deepspeed,
}
