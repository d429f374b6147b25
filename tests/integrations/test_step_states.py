"""`StepStates`, with which the libraries' callbacks keep their states: it ends no training, and mixes no two."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.integrations.step_states import StepStates
from hpc_elastic.rundir.state_records import StateVersion
from tests.worker.conftest import runner as runner
from tests.worker.test_memory import Node, held
from tests.worker.test_memory import node as node

START = """
from hpc_elastic.integrations.step_states import StepStates
def states(library="lightning", every=1, replicated=False):
    return StepStates(library, every, replicated=replicated)
"""


@pytest.mark.long
def test_every_so_many_steps_are_kept_from_where_it_began(node: Node) -> None:
    steps = "kept = states(every=3)\nkept.begin(5)\nfor step in range(5, 13): kept.save(step, lambda: step)\n"
    node.run_both(START + steps)
    assert node.states.verify() == held((1, 11), (1, 8))
    node.begin(2, StateVersion(attempt=1, step=11))
    assert node.run_both(START + "print(states().load())") == ["(11, 11)\n"] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("kept.save(1, lambda: [object()])", "memory.save: state['state'][0]: found object"),
        ("__import__('hpc_elastic.memory').memory.save(9, 0); kept.save(1, lambda: 0)", "memory.save: found step 1"),
        ("kept.give_up('too odd')", "too odd"),
    ],
    ids=["a value that cannot be kept", "a second training", "another reason"],
)
def test_one_line_says_that_nothing_more_is_kept_and_states_are_still_made_on_every_rank(
    node: Node, what: str, said: str
) -> None:
    more = "kept.save(10, lambda: print('makes'))\nkept.save(11, lambda: print('makes'))\n"
    outcome = node.run(0, f"{START}kept = states()\n{what}\n{more}")
    assert (outcome.exit_code, outcome.stdout) == (0, "makes\nmakes\n"), outcome
    assert outcome.stderr.startswith(f"hpc-elastic: memory: {said}")
    assert outcome.stderr.endswith("; training goes on without states in memory\n")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.long
def test_a_state_of_another_library_is_not_loaded(node: Node) -> None:
    node.run_both(START + "states('transformers').save(4, lambda: 'other')")
    node.begin(2, StateVersion(attempt=1, step=4))
    outcome = node.run(0, START + "print(states().load())")
    assert outcome.stdout == "(None, None)\n"
    assert outcome.stderr == "hpc-elastic: memory: step 4 was not saved by lightning's callback; it is not loaded\n"


@pytest.mark.long
def test_random_numbers_go_on_only_on_the_rank_that_kept_them(node: Node) -> None:
    source = "import os\nos.environ['RANK'] = os.environ['LOCAL_RANK']\n" + START
    draw = "states(replicated=True).save(4, lambda: 0)\nimport random\nprint(random.random())"
    drawn = node.run(0, source + draw).stdout
    node.begin(2, StateVersion(attempt=1, step=4))
    again = """
kept = states()
kept.load()
if (state := kept.random_state()) is not None:
    from hpc_elastic import memory
    memory.set_random_state(state)
    import random
    print(random.random())
"""
    assert node.run_both(source + again) == [drawn, ""]


def test_nothing_is_made_or_said_outside_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HPC_ELASTIC_ATTEMPT", raising=False)
    states = StepStates("lightning", 1, replicated=True)
    assert states.load() == (None, None)
    states.save(1, lambda: pytest.fail("made"))
    states.stop("no state is kept with FSDPStrategy")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("every", [0, -1])
def test_a_number_of_steps_below_one_is_refused(every: int) -> None:
    with pytest.raises(ValueError, match="keep_every: found"):
        StepStates("lightning", every, replicated=True)
