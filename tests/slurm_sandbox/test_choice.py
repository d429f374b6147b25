"""Which sandbox a command of `python -m tests.slurm_sandbox` acts on."""

from __future__ import annotations

from tests.slurm_sandbox.__main__ import choose
from tests.slurm_sandbox.configuration import Layout

FIRST, SECOND = Layout(slot=1), Layout(slot=4)


def test_a_slot_goes_before_the_sandbox_of_the_shell() -> None:
    assert choose([FIRST, SECOND], 4, FIRST.slurm_conf) == SECOND
    assert choose([FIRST], 4, FIRST.slurm_conf) is None


def test_without_a_slot_the_sandbox_of_the_shell_is_meant_else_the_first() -> None:
    assert choose([FIRST, SECOND], None, SECOND.slurm_conf) == SECOND
    assert choose([FIRST, SECOND], None, "/etc/slurm/slurm.conf") == FIRST
    assert choose([], None, None) is None
