"""The draws of the campaign of random stops: `make soak-stops` plays them."""

from __future__ import annotations

from tests.soak.stops import ENDS, MOST_DELAY_S, Kind, Stop


def test_a_seed_draws_the_same_stop_again_and_all_kinds_are_drawn() -> None:
    assert Stop.draw(7) == Stop.draw(7)
    drawn = [Stop.draw(seed) for seed in range(300)]
    assert {stop.kind for stop in drawn} == set(Kind) == set(ENDS)
    assert max(stop.delay_s for stop in drawn) <= MOST_DELAY_S


def test_only_the_kinds_that_are_asked_for_are_drawn() -> None:
    assert {Stop.draw(seed, [Kind.STOP]).kind for seed in range(20)} == {Kind.STOP}
