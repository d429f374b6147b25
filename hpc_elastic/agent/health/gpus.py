"""Whether the GPUs of a node answer and keep their memory, by the vendor's tool: commands, parsers, and the check.

Sources. NVIDIA, "Dynamic Page Retirement" and "GPU Memory Error Management": a GPU with pages or rows that wait to be
retired or remapped has memory that has failed, until it is reset; `nvidia-smi --help-query-gpu`,
`--help-query-remapped-rows`, `--help-query-compute-apps`. AMD's `rocm-smi` is only asked whether it answers; the pages
are in a file of the driver: Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, "gpu_vram_bad_pages Interface".
"""

from __future__ import annotations

import glob
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpc_elastic.agent.system.child_programs import ChildPrograms, NoAnswerError
from hpc_elastic.hardware.device_lists import Device, Listing, Vendor, select_devices
from hpc_elastic.plan.launch_plan import LaunchPlan

RETIRED = ["nvidia-smi", "--query-gpu=index,uuid,retired_pages.pending", "--format=csv,noheader"]
REMAPPED = [
    "nvidia-smi",
    "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure",
    "--format=csv,noheader",
]
HOLDERS = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
AMD = ["rocm-smi", "--showid", "--json"]
_YES = frozenset({"yes", "1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as `nvidia-smi` numbers it."""

    index: int
    uuid: str
    has_pending_pages: bool = False


def parse_gpus(stdout: str) -> tuple[Gpu, ...]:
    """Return the GPUs of the output of `RETIRED`; a value that a GPU does not have is a word in brackets."""
    gpus = []
    for index, uuid, pending in _rows(stdout, 3):
        if index.isdigit():
            gpus.append(Gpu(index=int(index), uuid=uuid, has_pending_pages=pending.lower() in _YES))
    return tuple(gpus)


def parse_remapped(stdout: str) -> dict[str, str]:
    """Return, by the UUID of each GPU whose memory has failed, what the output of `REMAPPED` says of it."""
    found = {}
    for uuid, pending, failure in _rows(stdout, 3):
        if failure.lower() in _YES:
            found[uuid] = "has memory rows that could not be remapped"
        elif pending.lower() in _YES:
            found[uuid] = "has memory rows to be remapped"
    return found


def parse_holders(stdout: str) -> list[tuple[str, int]]:
    """Return the UUID of the GPU and the process id of each process that uses a GPU, of the output of `HOLDERS`."""
    return [(uuid, int(pid)) for uuid, pid in _rows(stdout, 2) if pid.isdigit()]


def select_gpus(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that a process with this environment may use.

    The tool shows all GPUs of a node whose jobs are not kept apart by cgroups. Names that it does not know, such as
    those of MIG parts, select all.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return gpus
    words = [word.strip() for word in named.split(",") if word.strip()]
    chosen = tuple(gpu for gpu in gpus if any(word == str(gpu.index) or _is_uuid(word, gpu.uuid) for word in words))
    return chosen if len(chosen) == len(words) else gpus


def find_gpu_problem(
    children: ChildPrograms, plan: LaunchPlan, environ: Mapping[str, str], within_s: float
) -> str | None:
    """Return what is wrong with the node's GPUs; None if nothing is, if none are asked for, or if there is no tool."""
    if not plan.resources.gpus_per_node:
        return None
    if shutil.which(RETIRED[0]) is None:
        if shutil.which(AMD[0]) is not None:
            children.run(AMD, within_s)
        return find_amd_problem(environ)
    returncode, stdout = children.run(RETIRED, within_s)
    if returncode != 0:
        return f"nvidia-smi failed with exit code {returncode}"
    gpus = select_gpus(parse_gpus(stdout), environ)
    pending = [f"GPU {gpu.index} has memory pages to be retired" for gpu in gpus if gpu.has_pending_pages]
    returncode, stdout = children.run(REMAPPED, within_s)
    remapped = parse_remapped(stdout) if returncode == 0 else {}  # an older driver does not know the question
    pending += [f"GPU {gpu.index} {remapped[gpu.uuid]}" for gpu in gpus if gpu.uuid in remapped]
    return f"{', '.join(pending)}; it has to be reset" if pending else None


def find_amd_problem(environ: Mapping[str, str], *, sys: str = "/sys") -> str | None:
    """Return which of the node's AMD GPUs have memory pages that wait to be retired, or could not be; None if none has.

    The files are of all GPUs of the node, and which of them are the step's is not known: where it has not all of them,
    nothing is found.
    """
    cards = sorted(glob.glob(f"{sys}/class/drm/card*/device/ras/gpu_vram_bad_pages"))
    node = Listing(vendor=Vendor.AMD, devices=tuple(Device(index=index) for index in range(len(cards))))
    seen = select_devices(environ, node)
    if seen is None or len(seen) != len(cards):
        return None
    problems = []
    for path in cards:
        card = path.removeprefix(f"{sys}/class/drm/").partition("/")[0]
        with open(path, encoding="ascii", errors="replace") as file:
            flags = {line.rpartition(":")[2].strip() for line in file}
        if "F" in flags:
            problems.append(f"{card} has memory pages that could not be retired")
        elif "P" in flags:
            problems.append(f"{card} has memory pages to be retired")
    return f"{', '.join(problems)}; it has to be reset" if problems else None


def list_holders(children: ChildPrograms, environ: Mapping[str, str], within_s: float) -> list[tuple[int, int]]:
    """Return each process that uses one of this step's GPUs, with the GPU's index; none if the tool does not say."""
    try:
        returncode, stdout = children.run(RETIRED, within_s)
        gpus = {gpu.uuid: gpu.index for gpu in select_gpus(parse_gpus(stdout), environ)} if returncode == 0 else {}
        returncode, stdout = children.run(HOLDERS, within_s) if gpus else (1, "")
    except (OSError, NoAnswerError):  # `find_gpu_problem` says so
        return []
    holders = parse_holders(stdout) if returncode == 0 else []
    return [(gpus[uuid], pid) for uuid, pid in holders if uuid in gpus]


def _rows(stdout: str, columns: int) -> Iterator[list[str]]:
    for line in stdout.splitlines():
        row = [word.strip() for word in line.split(",")]
        if len(row) == columns:
            yield row


def _is_uuid(word: str, uuid: str) -> bool:
    """Return whether a word names a GPU: CUDA takes the beginning of a UUID, too."""
    return bool(re.match(r"GPU-[0-9a-f]", word)) and uuid.startswith(word)
