"""Log options are torchrun's: what becomes of every stream, and the same script under both."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, to_map
from torch.distributed.elastic.multiprocessing.api import Std as TorchStd

from hpc_elastic.agent.workers.log_destinations import choose_destinations
from hpc_elastic.cli.log_options import split_list
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import LocalStreams, Std
from hpc_elastic.rundir.layout import RunLayout
from tests.integration.conftest import Door
from tests.integration.conftest import door as door
from tests.integration.conftest import folder as folder
from tests.without_torch import hide_compiler

WORKERS = 4


def some_streams(chance: random.Random) -> str:
    """A value as torchrun takes it."""
    if chance.random() < 0.4:
        return str(chance.randrange(4))
    ranks = chance.sample(range(WORKERS + 2), chance.randint(1, WORKERS))
    return ",".join(f"{rank}:{chance.randrange(4)}" for rank in ranks)


def torchs_destinations(
    redirects: str, tee: str, ranks_filter: set[int] | None, folder: Path
) -> list[dict[str, tuple[str, bool]]]:
    """For every worker and stream: where it goes (file, inherited, dropped), and whether it is teed."""
    specs = DefaultLogsSpecs(
        log_dir=str(folder),
        redirects=TorchStd.from_str(redirects),
        tee=TorchStd.from_str(tee),
        local_ranks_filter=ranks_filter,
    )
    logs = specs.reify({local_rank: {} for local_rank in range(WORKERS)})
    kinds = {"": "inherited", os.devnull: "dropped"}
    return [
        {
            "out": (kinds.get(logs.stdouts[local_rank], "file"), local_rank in logs.tee_stdouts),
            "err": (kinds.get(logs.stderrs[local_rank], "file"), local_rank in logs.tee_stderrs),
        }
        for local_rank in range(WORKERS)
    ]


def our_destinations(redirects: str, tee: str, ranks_filter: set[int] | None) -> list[dict[str, tuple[str, bool]]]:
    logs = LogsPlan(
        per="rank",
        redirects=LocalStreams.from_str(redirects),
        tee=LocalStreams.from_str(tee),
        local_ranks_filter=None if ranks_filter is None else tuple(ranks_filter),
    )
    found = []
    for local_rank in range(WORKERS):
        of = choose_destinations(logs, rank=local_rank, local_rank=local_rank)
        found.append(
            {
                name: (
                    "file" if stream & of.redirected else "dropped" if stream & of.dropped else "inherited",
                    bool(stream & of.teed),
                )
                for name, stream in (("out", Std.OUT), ("err", Std.ERR))
            }
        )
    return found


@pytest.mark.parametrize("seed", range(10))
def test_every_stream_goes_where_torch_sends_it(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        redirects, tee = some_streams(chance), some_streams(chance)
        ranks_filter = set(chance.sample(range(WORKERS), chance.randint(1, WORKERS)))
        asked = (redirects, tee, chance.choice([None, ranks_filter]))
        assert our_destinations(*asked) == torchs_destinations(*asked, tmp_path), asked


@pytest.mark.parametrize("text", ["0", "1", "2", "3", "0:3", "0:3,1:0,2:1,3:2", "3:1"])
def test_streams_are_read_as_torch_reads_them(text: str) -> None:
    theirs = to_map(TorchStd.from_str(text), WORKERS)
    assert {rank: int(std) for rank, std in theirs.items()} == LocalStreams.from_str(text).to_map(WORKERS)


@pytest.mark.parametrize("text", ["4", "", "0:4", "0:3,", "0:3;1:2", "a:1", "0: 3"])
def test_what_torch_refuses_is_refused(text: str) -> None:
    for read in (TorchStd.from_str, LocalStreams.from_str):
        with pytest.raises(ValueError, match=r"match|expected"):
            read(text)


@pytest.mark.parametrize("text", ["apple", "apple,orange", "a,,b,c", "a,,,b"])
def test_lists_of_filters_are_split_as_torch_splits_them(text: str) -> None:
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args(["--duplicate-stdout-filters", text, "train.py"])
    assert split_list(text) == options.duplicate_stdout_filters


# Each line in one write, and all of a file below 4096 bytes: torchrun repeats what it finds at the end of a file as a
# line, with a prefix of its own, be it only a part of one. It starts Python with -u, whose `print` writes the newline
# by itself; and what is written across a page comes into sight page by page.
SCRIPT = """
import os, sys
rank = os.environ["RANK"]
for number in range(50):
    sys.stdout.write(f"{'apple' if number % 10 == 0 else 'pear'} {number} of {rank}\\n")
    sys.stderr.write(f"apple {number} on the error stream of {rank}\\n")
"""
OPTIONS = (
    *("--redirects", "3", "--tee", "0:3,1:2", "--local-ranks-filter", "0", "--duplicate-stdout-filters", "apple"),
    *("--nproc-per-node", "2", "--max-restarts", "0"),
)
TEMPLATE = "[${role_name}:${local_rank}:${rank}]: "
PREFIX = re.compile(r"^\[default:.*")


def teed_lines(text: str) -> list[str]:
    return sorted(filter(PREFIX.match, text.splitlines()))


def read(paths: Iterable[Path]) -> list[str]:
    """The text of each file, by its place among them."""
    return [path.read_text() for path in paths]


@pytest.mark.local
def test_a_script_leaves_the_same_lines_in_the_same_places_as_under_torchrun(door: Door, tmp_path: Path) -> None:
    door.write("train.py", SCRIPT)
    environ = {**door.environ, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": TEMPLATE}
    logs = tmp_path / "logs"
    theirs = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *OPTIONS, "--log-dir", logs, "train.py"],
        cwd=door.folder, env=hide_compiler(environ), capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    (attempt,) = logs.glob("*/attempt_0")

    door.environ = environ
    door.run("run", *OPTIONS, "--run-dir", str(tmp_path / "run"), "train.py")
    layout = RunLayout(tmp_path / "run")
    agent = Path(layout.agent_output("local0")).read_text()

    names = ("0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log")
    ours = [Path(path_of(1, rank)) for rank in (0, 1) for path_of in (layout.stdout, layout.stderr)]
    assert read(ours) == read(attempt / name for name in names)
    assert teed_lines(agent) == sorted(teed_lines(theirs.stdout) + teed_lines(theirs.stderr))
    assert len(teed_lines(agent)) == 100
    filtered = Path(layout.filtered_stdout(1, "local0")).read_text()
    assert filtered == (attempt / "filtered_stdout.log").read_text()
    assert len(filtered.splitlines()) == 5
    assert not Path(layout.filtered_stderr(1, "local0")).exists()
    assert not (attempt / "filtered_stderr.log").exists()
