"""The roles example on this machine: an evaluator that fails starts again while the trainers run on."""

from __future__ import annotations

import pytest

from tests.integration.conftest import REPOSITORY, Door

pytestmark = pytest.mark.local
ROLES = REPOSITORY / "examples" / "roles" / "job.yaml"


@pytest.mark.variant(of="test_a_failure_restarts_what_the_policy_of_its_role_says")
def test_the_evaluators_start_again_alone_and_score_every_checkpoint_once(door: Door) -> None:
    fails = "roles[1].entrypoint.args=[--fail-at-step, 60]"
    run = door.submit(str(ROLES), "--site", "local", "--set", fails, wait=True)
    result = run.result()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 1), run.story()
    assert run.read(run.layout.claim(1))["roles"] == ["trainer", "evaluator"]
    assert run.read(run.layout.claim(2))["roles"] == ["evaluator"]
    assert "step 100: loss" in run.stdout(1, 0)
    assert "step 100: error" in run.stdout(2, 3)
    scores = [line.split(",") for line in (run.path / "checkpoints" / "scores.csv").read_text().splitlines()]
    assert [step for step, _ in scores] == ["20", "40", "60", "80", "100"]
    assert float(scores[-1][1]) < 0.01 * float(scores[0][1])
    run.assert_nothing_left()
    run.assert_records_valid()
