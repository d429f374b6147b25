"""The simulated run directory, as far as claims and results go."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpc_elastic.codec import from_json, to_json
from hpc_elastic.rundir.records import AttemptClaim, NodeResult, RunResult


@dataclass
class Disk:
    claims: dict[int, AttemptClaim] = field(default_factory=dict)
    node_results: dict[tuple[int, str], NodeResult] = field(default_factory=dict)
    results: list[RunResult] = field(default_factory=list)

    def claim(self, claim: AttemptClaim) -> bool:
        if claim.attempt in self.claims:
            return False
        self.claims[claim.attempt] = from_json(AttemptClaim, to_json(claim))
        return True

    def write_result(self, result: RunResult) -> tuple[int, str]:
        if not self.results:
            self.results.append(result)
        return self.results[0].exit_code, self.results[0].cause
