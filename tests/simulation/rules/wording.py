"""What people read is whole: no sentence lacks a name or a reason, none is cut off, and none shows a value of Python.

Such texts are put together from parts, of which some are there only sometimes. The cause of a run's end stands in its
result, in the mail that a site sends, and in the log of every node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from hpc_elastic.membership.actions import Note
    from hpc_elastic.rundir.records import AttemptClaim, RootCause, RunResultRecord
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

NOT_WHOLE = re.compile(
    r"^\s|^[:;,]|\s$|[:;,]$| {2}|[:;,]\s*[:;,]|\(\s*\)|\[\s*\]|\{\}"
    r"|\bNone\b|\bTrue\b|\bFalse\b|\binf\b|\bnan\b|<\w+\."
)
NO_SUBJECT = re.compile(r"(?:was|were|got|lost|asked|by)\b")  # of a sentence that names whom it is about


class Wording:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run

    def notes(self, agent: Agent, note: Note) -> None:
        """An agent writes an event down; that of a worker's failure has the worker's own words."""
        if not note.name.startswith("worker."):
            self.says(f"{agent.name} in {note.name}", note.message)

    def says(self, who: str, text: str) -> None:
        """Somebody says something to people."""
        found = NOT_WHOLE.search(text)
        require(found is None, f"{who} says what is not whole: {text!r}")

    def claimed(self, claim: AttemptClaim) -> None:
        """A claim is on disk."""
        self._explains(f"the claim of attempt {claim.attempt}", claim.reason, claim.root_cause)

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        self._explains("the result", result.cause, result.root_cause)

    def _explains(self, what: str, why: str, root_cause: RootCause | None) -> None:
        for text in (why, *(() if root_cause is None else (root_cause.line,))):
            self.says(what, text)
            require(NO_SUBJECT.match(text) is None, f"{what} says what is not whole: {text!r}")
