"""`MemoryWriter` and `MemoryReader` under the real torch.distributed.checkpoint, in processes that are ranks."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.rundir.state_records import StateVersion
from tests.worker.conftest import LAUNCH, Runner
from tests.worker.conftest import runner as runner
from tests.worker.test_memory import Node
from tests.worker.test_memory import node as node

torch = pytest.importorskip("torch")

REPOSITORY = LAUNCH.parents[1]
START = """
import os, warnings
warnings.simplefilter("ignore")
import logging
logging.disable()
import torch
import torch.distributed.checkpoint as dcp
from hpc_elastic.integrations.torch_checkpoint import MemoryReader, MemoryWriter

rank = int(os.environ["LOCAL_RANK"])

def attempt(call, *arguments, **options):
    try:
        call(*arguments, **options)
        print("done")
    except BaseException as error:
        print("StateError" in str(error) or type(error).__name__, str(error).splitlines()[-1].strip())
"""


@pytest.mark.long
def test_what_memory_cannot_hold_is_refused_by_its_name(node: Node) -> None:
    save = "attempt(dcp.save, {'w': torch.empty(2, device='meta')}, storage_writer=MemoryWriter(5))"
    assert "['w'][0]['data']: found a meta tensor, expected a dense one" in node.run(0, START + save).stdout


@pytest.mark.long
def test_outside_of_a_run_nothing_is_kept_and_there_is_nothing_to_load(runner: Runner) -> None:
    script = """
dcp.save({"w": torch.ones(2), "text": "a"}, storage_writer=MemoryWriter(5))
print(MemoryReader().step)
attempt(dcp.load, {"w": torch.ones(2)}, storage_reader=MemoryReader())
"""
    path = str(runner.write("script.py", START + script))
    said = runner.run([sys.executable, path], PYTHONPATH=str(REPOSITORY)).stdout
    assert said.splitlines()[0] == "None", said
    assert "there is no state in memory; ask for `step` before" in said


@pytest.mark.long
def test_a_state_that_the_training_saved_itself_is_none_of_a_checkpoint(node: Node) -> None:
    node.run_both("from hpc_elastic import memory\nmemory.save(7, {'w': 1})")
    node.begin(2, StateVersion(attempt=1, step=7))
    assert node.run(0, START + "print(MemoryReader().step)").stdout == "None\n"
